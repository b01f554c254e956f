// SPDX-License-Identifier: MIT
// Damages ELF files in ways that repeat from run to run and reads them with everything there is:
// each header field with each of a list of values, truncations, then random bytes. Fails on a
// crash, a hang, too much memory, or when nothing was refused or nothing accepted.
#include <elf.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "../cpu_time.h"
#include "elf/demangle.h"
#include "elf/placement.h"
#include "elf/symbols.h"
#include "mutator.h"
#include "util/fd.h"

namespace {

using namespace speedbump;

constexpr std::chrono::seconds kMaxTimePerFile(20); // sanitizers are slow
constexpr long kMaxMemoryKiB = 2L << 20;

struct Counts {
    size_t accepted = 0;
    size_t refused = 0;
};

// Opens the bytes as a file and uses every part of the interface on it.
void use(const std::string& bytes, Counts& counts) {
    Fd fd(::memfd_create("fuzz_elf", MFD_CLOEXEC));
    if (::write(fd.get(), bytes.data(), bytes.size()) != static_cast<ssize_t>(bytes.size()))
        std::abort();
    limit_cpu_time(kMaxTimePerFile);
    elf::DebugSearch nowhere;
    nowhere.directories.clear();
    auto file = elf::ElfFile::open(fd.get(), "/nonexistent/fuzzed", nowhere);
    if (!file) {
        ++counts.refused;
        if (file.error().message.empty()) std::abort();
        return;
    }
    ++counts.accepted;
    std::vector<uint64_t> entries;
    for (const elf::Function& function : (*file)->functions()) {
        entries.push_back(function.file_offset);
        for (std::string_view name : function.names) elf::demangle(name);
        const elf::Function* found = (*file)->function_at_offset(function.file_offset);
        if (function.names.empty() || (*file)->code_at(function.file_offset, 1).empty())
            std::abort();
        if (found == nullptr &&
            (*file)->address_of_offset(function.file_offset) == std::optional(function.address))
            std::abort();
    }
    entries.push_back(bytes.size() / 2);
    entries.push_back(UINT64_MAX);
    elf::PlacementOptions options;
    options.kernel_optimizes_nop5 = bytes.size() % 2 == 0;
    const auto sites = elf::place_probes(**file, entries, options);
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
    (void)(*file)->relocations().has_value();
}

} // namespace

#ifdef SPEEDBUMP_LIBFUZZER

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
    Counts counts;
    use(std::string(reinterpret_cast<const char*>(data), size), counts);
    return 0;
}

#else

namespace {

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

} // namespace

// fuzz_elf [ITERATIONS [SECONDS]]: the first is the other fuzzers'; this one is bound by time.
int main(int argc, char** argv) {
    const std::string paths[] = {FUZZ_ELF_SEED, FUZZ_ELF_SEED_STRIPPED, FUZZ_ELF_SEED_MINI};
    fuzz::Random random(1);
    Counts counts;
    auto start = CpuClock::now();
    std::chrono::duration<double> share((argc > 2 ? std::atof(argv[2]) : 10) /
                                        static_cast<double>(std::size(paths)));
    for (size_t i = 0; i < std::size(paths); ++i) {
        std::ifstream in(paths[i], std::ios::binary);
        std::string seed{std::istreambuf_iterator<char>(in), {}};
        auto end = start + std::chrono::duration_cast<CpuClock::duration>(
                               share * static_cast<double>(i + 1));
        Counts here;
        damage(seed, end, random, here);
        std::printf("%s: %zu accepted, %zu refused\n", paths[i].c_str(), here.accepted,
                    here.refused);
        counts.accepted += here.accepted;
        counts.refused += here.refused;
    }
    rusage usage{};
    ::getrusage(RUSAGE_SELF, &usage);
    std::printf("largest memory: %ld MiB\n", usage.ru_maxrss >> 10);
    if (counts.accepted < 100 || counts.refused < 100 || usage.ru_maxrss > kMaxMemoryKiB) return 1;
    return 0;
}

#endif
