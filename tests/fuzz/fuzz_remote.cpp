// SPDX-License-Identifier: MIT
// A hostile process: it has mapped a library and rewrites its headers, dynamic section, hash
// tables, symbols and relocations; modules, symbols and interpreters are looked for in it all the
// same. Fails on a crash, a hang, or when nothing was found or everything.
#include <elf.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iterator>
#include <string>
#include <utility>
#include <vector>

#include "../cpu_time.h"
#include "cpython/interpreter.h"
#include "mutator.h"
#include "process/remote_elf.h"
#include "util/fd.h"

namespace {

using namespace speedbump;

constexpr uint64_t kPage = 4096;

void require(bool condition, const char* what) {
    if (condition) return;
    std::perror(what);
    std::abort();
}

template <typename T>
T at(const std::string& bytes, uint64_t offset) {
    T value{};
    if (offset <= bytes.size() && bytes.size() - offset >= sizeof value)
        std::memcpy(&value, bytes.data() + offset, sizeof value);
    return value;
}

// A library as linked, and where in its file what the dynamic linker reads lies.
struct Seed {
    std::string bytes;
    std::vector<Elf64_Phdr> segments;
    std::vector<std::pair<uint64_t, uint64_t>> parts; // offset and size

    explicit Seed(const char* path) {
        std::ifstream in(path, std::ios::binary);
        bytes.assign(std::istreambuf_iterator<char>(in), {});
        const auto header = at<Elf64_Ehdr>(bytes, 0);
        require(header.e_phnum > 0, path);
        parts = {{0, sizeof header}, {header.e_phoff, header.e_phnum * sizeof(Elf64_Phdr)}};
        for (size_t i = 0; i < header.e_phnum; ++i) {
            segments.push_back(at<Elf64_Phdr>(bytes, header.e_phoff + i * sizeof(Elf64_Phdr)));
            if (segments.back().p_type == PT_DYNAMIC)
                parts.emplace_back(segments.back().p_offset, segments.back().p_filesz);
        }
        for (size_t i = 0; i < header.e_shnum; ++i) {
            const auto section = at<Elf64_Shdr>(bytes, header.e_shoff + i * sizeof(Elf64_Shdr));
            for (uint32_t type : {SHT_GNU_HASH, SHT_HASH, SHT_DYNSYM, SHT_STRTAB, SHT_RELA})
                if (section.sh_type == type && (section.sh_flags & SHF_ALLOC))
                    parts.emplace_back(section.sh_offset, section.sh_size);
        }
    }
};

// A process that has the library mapped as the dynamic linker does, and does nothing else. What it
// has mapped is this program's to write, as if it wrote it itself.
class Process {
  public:
    explicit Process(const Seed& seed) : file_(::memfd_create("fuzz_remote", MFD_CLOEXEC)) {
        show(seed.bytes);
        pid_ = ::fork();
        require(pid_ >= 0, "fork");
        if (pid_ == 0) live(seed);
        // Until it has mapped all: it stops then.
        require(::waitpid(pid_, nullptr, WUNTRACED) == pid_, "waitpid");
    }
    ~Process() {
        ::kill(pid_, SIGKILL);
        ::waitpid(pid_, nullptr, 0);
    }
    Process(const Process&) = delete;
    Process& operator=(const Process&) = delete;

    pid_t pid() const { return pid_; }
    void show(const std::string& bytes) const {
        require(::pwrite(file_.get(), bytes.data(), bytes.size(), 0) ==
                    static_cast<ssize_t>(bytes.size()),
                "write the library");
    }

  private:
    [[noreturn]] void live(const Seed& seed) const {
        ::prctl(PR_SET_PDEATHSIG, SIGKILL);
        uint64_t size = 0;
        for (const Elf64_Phdr& segment : seed.segments)
            size = std::max(size, segment.p_vaddr + segment.p_memsz);
        auto* base = static_cast<char*>(
            ::mmap(nullptr, size + kPage, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
        for (const Elf64_Phdr& segment : seed.segments) {
            if (segment.p_type != PT_LOAD) continue;
            const uint64_t before = segment.p_vaddr % kPage;
            const int protection = PROT_READ | (segment.p_flags & PF_X ? PROT_EXEC : 0);
            ::mmap(base + segment.p_vaddr - before, segment.p_memsz + before, protection,
                   MAP_SHARED | MAP_FIXED, file_.get(),
                   static_cast<off_t>(segment.p_offset - before));
        }
        ::raise(SIGSTOP);
        for (;;) ::pause();
    }

    Fd file_;
    pid_t pid_ = -1;
};

struct Counts {
    uint64_t images = 0;
    uint64_t found = 0; // symbols, slots and interpreters
    uint64_t missed = 0;

    void add(bool is_found) { ++(is_found ? found : missed); }
};

void look(const Process& process, uint64_t slot_offset, Counts& counts) {
    constexpr std::chrono::seconds kMaxTime(60); // sanitizers are slow
    limit_cpu_time(kMaxTime);
    const auto modules = process::load_modules(process.pid());
    require(modules.has_value(), "the process can be read");
    const auto own = std::find_if(modules->begin(), modules->end(), [](const auto& module) {
        return module.path().find("memfd:fuzz_remote") != std::string::npos;
    });
    counts.add(own != modules->end());
    if (own == modules->end()) return;
    require(own->soname().size() < 256, "a name is no longer than names are");
    counts.add(own->find("pthread_create").has_value());
    counts.add(own->find("no_such_symbol").has_value());
    const std::optional<std::string> slot = own->symbol_of_slot(own->bias() + slot_offset);
    counts.add(slot == "puts");
    const auto interpreters =
        cpython::interpreters_of(process::RemoteMemory(process.pid()), {*own});
    for (const cpython::Interpreter& interpreter : interpreters)
        require(!interpreter.describe().empty(), "an interpreter can be described");
    counts.add(!interpreters.empty() && interpreters.front().is_supported());
}

uint64_t evil_word(const std::string& bytes, fuzz::Random& random) {
    const std::array<uint64_t, 12> words = {0,
                                            1,
                                            ~uint64_t{0},
                                            ~uint64_t{0} - random.below(kPage),
                                            0x7fffffff,
                                            0xffffffff,
                                            1ull << 63,
                                            1ull << 40,
                                            bytes.size(),
                                            random.next(),
                                            random.below(bytes.size()),
                                            random.below(64)};
    return words[random.below(words.size())];
}

// In the parts that are read, and in words as they lie there.
void damage(std::string& bytes, const Seed& seed, fuzz::Random& random) {
    for (size_t count = 1 + random.below(4); count > 0; --count) {
        const auto [offset, size] = seed.parts[random.below(seed.parts.size())];
        const size_t width = size_t{1} << random.below(4);
        if (size < width) continue;
        const uint64_t word = evil_word(bytes, random);
        std::memcpy(bytes.data() + offset + random.below(size / width) * width, &word, width);
    }
}

// Where the address of puts() is put.
uint64_t slot_of_puts(const Process& process, const Seed& seed) {
    const auto modules = process::load_modules(process.pid());
    require(modules.has_value(), "the process can be read");
    for (const process::RemoteModule& module : *modules) {
        if (module.path().find("memfd:fuzz_remote") == std::string::npos) continue;
        for (const Elf64_Phdr& segment : seed.segments)
            for (uint64_t offset = segment.p_vaddr / 8 * 8;
                 segment.p_type == PT_LOAD && offset < segment.p_vaddr + segment.p_memsz;
                 offset += 8)
                if (module.symbol_of_slot(module.bias() + offset) == "puts") return offset;
    }
    require(false, "a relocation of puts");
    return 0;
}

} // namespace

#ifndef SPEEDBUMP_LIBFUZZER
// fuzz_remote IMAGES SECONDS (of CPU time) [SEED]
int main(int argc, char** argv) {
    const uint64_t wanted = argc > 1 ? std::strtoull(argv[1], nullptr, 10) : 100'000;
    const std::chrono::duration<double> seconds(argc > 2 ? std::atof(argv[2]) : 10);
    fuzz::Random random(argc > 3 ? std::strtoull(argv[3], nullptr, 10) : 1);
    Counts counts;
    for (const char* path : {FUZZ_REMOTE_GNU, FUZZ_REMOTE_SYSV}) {
        const Seed seed(path);
        const Process process(seed);
        const uint64_t slot = slot_of_puts(process, seed);
        const auto end = CpuClock::now() + seconds / 2;
        std::string bytes = seed.bytes;
        for (uint64_t done = 0; done < wanted && CpuClock::now() < end; ++done) {
            if (random.below(4) != 0) bytes = seed.bytes;
            if (done != 0) damage(bytes, seed, random);
            process.show(bytes);
            look(process, slot, counts);
            ++counts.images;
        }
    }
    std::printf("%llu inputs: %llu found, %llu missed\n",
                static_cast<unsigned long long>(counts.images),
                static_cast<unsigned long long>(counts.found),
                static_cast<unsigned long long>(counts.missed));
    return counts.found > 0 && counts.missed > 0 ? 0 : 1;
}
#else
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
    static const Seed seed(FUZZ_REMOTE_GNU);
    static const Process process(seed);
    static const uint64_t slot = slot_of_puts(process, seed);
    static Counts counts;
    uint64_t state = 0;
    for (size_t i = 0; i < size; ++i) state = state * 31 + data[i];
    fuzz::Random random(state);
    std::string bytes = seed.bytes;
    damage(bytes, seed, random);
    process.show(bytes);
    look(process, slot, counts);
    return 0;
}
#endif
