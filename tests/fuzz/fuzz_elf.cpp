// SPDX-License-Identifier: MIT
// Damages ELF files in ways that repeat from run to run and reads them with everything there is:
// each header field with each of a list of values, truncations, then random bytes. And reads files
// that are written to keep whoever reads them at work (elf_shapes.h). Fails on a crash, on more CPU
// time than a file's size is worth, too much memory, or when nothing was refused or nothing
// accepted.
#include <elf.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "../cpu_time.h"
#include "elf/demangle.h"
#include "elf/exits.h"
#include "elf/marks.h"
#include "elf/placement.h"
#include "elf/symbols.h"
#include "elf_image.h"
#include "elf_shapes.h"
#include "mutator.h"
#include "util/fd.h"
#include "watch.h"

namespace {

using namespace speedbump;

// What the tool's own bounds come to, whatever a file's size: 16 Mi instructions, 64 MiB of tables,
// 32 Mi relocations, 1 GiB of code, 2 GiB of data (user/elf).
constexpr std::chrono::nanoseconds kMaxTime = std::chrono::seconds(4) * fuzz::kSlower;
// Of real files nothing takes more than a tenth of that (libLLVM, libz3, libpython).
constexpr std::chrono::nanoseconds kMaxTimePerByte{500 * fuzz::kSlower};
// For its place: 48 instructions, each of which may be the first of eight that are moved together.
constexpr std::chrono::nanoseconds kMaxTimePerFunction =
    std::chrono::microseconds(100) * fuzz::kSlower;

struct Counts {
    size_t accepted = 0;
    size_t refused = 0;
    std::chrono::nanoseconds longest{}; // of one thing with one file
    std::string longest_of;
};

// Sees to it that what is done with a file takes no longer than its size is worth.
class Judge {
  public:
    Judge(std::string_view file, uint64_t bytes, Counts& counts)
        : file_(file), limit_(kMaxTime + bytes * kMaxTimePerByte), counts_(counts) {
        fuzz::watch(file);
    }

    template <typename Work>
    void step(const char* what, const Work& work) {
        step(what, std::chrono::nanoseconds{}, work);
    }
    // May take so much more.
    template <typename Work>
    void step(const char* what, std::chrono::nanoseconds more, const Work& work) {
        const auto took = fuzz::require_soon(what, limit_ + more, work);
        if (took <= counts_.longest) return;
        counts_.longest = took;
        counts_.longest_of = what + (", of " + file_);
    }

  private:
    std::string file_;
    std::chrono::nanoseconds limit_;
    Counts& counts_;
};

void place(const elf::ElfFile& file, const std::vector<uint64_t>& entries,
           const elf::PlacementOptions& options) {
    const auto sites = elf::place_probes(file, entries, options);
    if (sites.size() != entries.size()) std::abort();
    for (size_t i = 0; i < sites.size(); ++i) {
        if (!sites[i]) {
            if (sites[i].error().message.empty()) std::abort();
            continue;
        }
        if (sites[i]->reason.empty() || sites[i]->file_offset < entries[i] ||
            sites[i]->file_offset - entries[i] > 256)
            std::abort();
    }
}

// The entries of all functions, and two places where none is.
std::vector<uint64_t> look_up(const elf::ElfFile& file, uint64_t file_size) {
    std::vector<uint64_t> entries;
    for (const elf::Function& function : file.functions()) {
        entries.push_back(function.file_offset);
        const elf::Function* found = file.function_at_offset(function.file_offset);
        // More code than 1 GiB is not read.
        const bool has_code = !file.code_at(function.file_offset, 1).empty();
        if (function.names.empty() || (!has_code && file_size <= 1u << 30)) std::abort();
        if (found == nullptr &&
            file.address_of_offset(function.file_offset) == std::optional(function.address))
            std::abort();
    }
    entries.push_back(file_size / 2);
    entries.push_back(UINT64_MAX);
    return entries;
}

// Uses every part of the interface on the file.
void use(int fd, const std::string& path, const elf::DebugSearch& search, Judge& judge,
         Counts& counts) {
    const uint64_t file_size = static_cast<uint64_t>(::lseek(fd, 0, SEEK_END));
    Result<std::shared_ptr<const elf::ElfFile>> file = std::shared_ptr<const elf::ElfFile>();
    judge.step("to open it", [&] { file = elf::ElfFile::open(fd, path, search); });
    judge.step("to read its marks", [&] { (void)elf::read_marks(fd, path).has_value(); });
    if (!file) {
        ++counts.refused;
        if (file.error().message.empty()) std::abort();
        return;
    }
    ++counts.accepted;
    judge.step("to demangle its names", [&] {
        for (const elf::Function& function : (*file)->functions())
            for (std::string_view name : function.names) elf::demangle(name);
    });
    std::vector<uint64_t> entries;
    judge.step("to look its functions up", [&] { entries = look_up(**file, file_size); });
    elf::PlacementOptions options;
    options.kernel_optimizes_nop5 = file_size % 2 == 0;
    const std::chrono::nanoseconds more =
        kMaxTimePerFunction * static_cast<int64_t>(entries.size());
    judge.step("to place probes", more, [&] { place(**file, entries, options); });
    options.jump = true; // the sites of probes are found first
    judge.step("to place jumps", kMaxTime + 2 * more, [&] { place(**file, entries, options); });
    judge.step("to read its relocations", [&] { (void)(*file)->relocations().has_value(); });
    std::optional<elf::ExitFinder> finder;
    judge.step("to read its unwind tables", [&] { finder.emplace(*file, options); });
    for (const size_t index : {size_t{0}, entries.size() / 2, entries.size() - 1})
        judge.step("to find a function's exits",
                   [&] { (void)finder->find(entries[index]).has_value(); });
}

void use(const std::string& bytes, Counts& counts) {
    const Fd fd(::memfd_create("fuzz_elf", MFD_CLOEXEC));
    if (::write(fd.get(), bytes.data(), bytes.size()) != static_cast<ssize_t>(bytes.size()))
        std::abort();
    elf::DebugSearch nowhere;
    nowhere.directories.clear();
    Judge judge("a damaged file", bytes.size(), counts);
    use(fd.get(), "/nonexistent/fuzzed", nowhere, judge, counts);
}

// `path` is where its debug files are looked for.
void use_image(fuzz::ShapedElf shaped, const std::string& path, Counts& counts) {
    fuzz::watch(shaped.told() + " being made");
    fuzz::ElfImage image(ET_DYN);
    fuzz::on_stack(fuzz::kMakersStack, [&] {
        image = shaped.make({"holes.debug", "folder.debug", "no.debug"});
    });
    const Fd fd(::memfd_create("fuzz_elf", MFD_CLOEXEC));
    image.write_to(fd.get());
    elf::DebugSearch search;
    search.directories.clear();
    Judge judge(shaped.told(), image.data_size(), counts);
    use(fd.get(), path, search, judge, counts);
}

} // namespace

#ifdef SPEEDBUMP_LIBFUZZER

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
    Counts counts;
    use(std::string(reinterpret_cast<const char*>(data), size), counts);
    const fuzz::Random choices(std::span(data, size));
    use_image(fuzz::ShapedElf(choices, "image:"), "/nonexistent/fuzzed", counts);
    return 0;
}

#else

namespace {

constexpr long kMaxMemoryKiB = 2L << 20;

// Debug files beside the written ones: one that consists of holes, one that is no file, and none.
class DebugFiles {
  public:
    explicit DebugFiles(std::string folder) : folder_(std::move(folder)) {
        for (const char* below : {"/.debug", "/.debug/folder.debug", "/folder.debug"})
            if (::mkdir((folder_ + below).c_str(), 0700) != 0) std::abort();
        fuzz::ElfImage image(ET_DYN);
        image.finish();
        for (const char* name : {"/holes.debug", "/.debug/holes.debug"}) {
            const Fd fd(::open((folder_ + name).c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600));
            image.write_to(fd.get());
            if (::ftruncate(fd.get(), (off_t{8} << 30) - 1) != 0) std::abort();
        }
    }
    std::string path() const { return folder_ + "/fuzzed"; }

  private:
    std::string folder_;
};

// Sets every field of `width` bytes in the range to each of the telling values.
void damage_fields(const std::string& seed, size_t from, size_t size, size_t width,
                   CpuClock::time_point end, Counts& counts) {
    const uint64_t values[] = {
        0,          1,          0xff,        0xffff,          0xff00,     0x7fffffff,
        0x80000000, 0xffffffff, seed.size(), seed.size() - 1, UINT64_MAX, UINT64_MAX - 4096,
        1ull << 63, 1ull << 40};
    for (size_t at = from; at + width <= std::min(from + size, seed.size()); at += width) {
        for (uint64_t value : values) {
            if (CpuClock::now() > end) return;
            std::string bytes = seed;
            std::memcpy(bytes.data() + at, &value, width);
            if (bytes != seed) use(bytes, counts);
        }
    }
}

void damage(const std::string& seed, CpuClock::time_point end, fuzz::Random& random,
            Counts& counts) {
    use(seed, counts);
    if (counts.accepted == 0) {
        std::fprintf(stderr, "a seed file was refused\n");
        std::exit(1);
    }
    Elf64_Ehdr header;
    std::memcpy(&header, seed.data(), sizeof header);
    for (size_t width : {2, 4, 8}) {
        damage_fields(seed, EI_NIDENT, sizeof header - EI_NIDENT, width, end, counts);
        if (width == 2) continue;
        damage_fields(seed, header.e_phoff, header.e_phnum * sizeof(Elf64_Phdr), width, end,
                      counts);
        if (header.e_shoff != 0)
            damage_fields(seed, header.e_shoff, header.e_shnum * sizeof(Elf64_Shdr), width, end,
                          counts);
    }
    for (size_t i = 0; i < header.e_phnum; ++i) {
        Elf64_Phdr program;
        std::memcpy(&program, seed.data() + header.e_phoff + i * sizeof program, sizeof program);
        if (program.p_type == PT_DYNAMIC)
            damage_fields(seed, program.p_offset, program.p_filesz, 8, end, counts);
    }
    for (size_t size = 0; size < seed.size() && CpuClock::now() < end; size += 97)
        use(seed.substr(0, size), counts);
    while (CpuClock::now() < end) {
        std::string bytes = seed;
        for (uint64_t n = 1 + random.next() % 8; n > 0; --n) {
            // Half of the damage to the first KiB, where the headers and the symbols are.
            size_t room =
                random.next() % 2 == 0 ? std::min<size_t>(bytes.size(), 1024) : bytes.size();
            bytes[random.next() % room] = static_cast<char>(random.next());
        }
        if (random.next() % 8 == 0) bytes.resize(random.next() % bytes.size());
        use(bytes, counts);
    }
}

int test_all(double seconds, const char* first_image, const DebugFiles& files) {
    const std::string paths[] = {FUZZ_ELF_SEED, FUZZ_ELF_SEED_STRIPPED, FUZZ_ELF_SEED_MINI};
    fuzz::Random random(1);
    Counts counts;
    const auto start = CpuClock::now();
    const auto after = [start, seconds](double share) {
        return start + std::chrono::duration_cast<CpuClock::duration>(
                           std::chrono::duration<double>(seconds * share));
    };
    const auto tell = [&counts](const std::string& what, const Counts& here) {
        std::printf("%s: %zu accepted, %zu refused, at most %.3f s %s\n", what.c_str(),
                    here.accepted, here.refused, 1e-9 * static_cast<double>(here.longest.count()),
                    here.longest_of.c_str());
        counts.accepted += here.accepted;
        counts.refused += here.refused;
    };
    double share = 0;
    for (const std::string& path : paths) {
        if (first_image != nullptr) break;
        std::ifstream in(path, std::ios::binary);
        std::string seed{std::istreambuf_iterator<char>(in), {}};
        Counts here;
        damage(seed, after(share += 0.5 / std::size(paths)), random, here);
        tell(path, here);
    }
    Counts here;
    uint64_t image = first_image != nullptr ? std::strtoull(first_image, nullptr, 10) : 1;
    do {
        use_image(fuzz::ShapedElf(fuzz::Random(image), "image " + std::to_string(image) + ":"),
                  files.path(), here);
        ++image;
    } while (CpuClock::now() < after(1));
    tell("images", here);
    rusage usage{};
    ::getrusage(RUSAGE_SELF, &usage);
    std::printf("largest memory: %ld MiB\n", usage.ru_maxrss >> 10);
    if (usage.ru_maxrss > kMaxMemoryKiB) return 1;
    return first_image != nullptr || (counts.accepted >= 100 && counts.refused >= 100) ? 0 : 1;
}

} // namespace

// fuzz_elf [ITERATIONS [SECONDS [IMAGE]]]: the first is the other fuzzers'; this one is bound by
// CPU time. With a number, written files from that one on.
int main(int argc, char** argv) {
    const double seconds = argc > 2 ? std::atof(argv[2]) : 10;
    const char* const first_image = argc > 3 ? argv[3] : nullptr;
    std::string folder = (std::filesystem::temp_directory_path() / "fuzz_elf.XXXXXX").string();
    if (::mkdtemp(folder.data()) == nullptr) std::abort();
    const DebugFiles files(folder);
    const int status = fuzz::run_watched([&] { return test_all(seconds, first_image, files); });
    std::filesystem::remove_all(folder);
    return status;
}

#endif
