// SPDX-License-Identifier: MIT
// The module's list of probe sites on x86-64 (kmod/site_x86_64.c), under the address and undefined
// sanitizers, beside the loader's own.
#include <elf.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <algorithm>
#include <filesystem>
#include <random>
#include <vector>

#include "elf/placement.h"
#include "elf/probe_site.h"
#include "elf/symbols.h"
#include "util/fd.h"

extern "C" {
#include "site.h"
}

namespace speedbump {
namespace {

using Bytes = std::vector<unsigned char>;
using View = std::basic_string_view<unsigned char>;

// One that does not rewrite nops: the module asks nobody what the kernel makes of them.
constexpr elf::SiteOptions kAnyKernel{false, true, true};

// From a copy of the exact size: a byte read too far is found.
int length_of(View code) {
    Bytes copy(code.begin(), code.end());
    copy.shrink_to_fit();
    return sb_site_length(copy.data(), copy.size());
}

std::string text_of(View code) {
    std::string text;
    for (size_t i = 0; i < code.size() && i < SB_SITE_MAX; ++i)
        text += fmt::format("{:02x} ", code[i]);
    return text + elf::instruction_text(code, 0);
}

TEST(KmodSite, LengthsOfWhatIsListed) {
    const std::vector<Bytes> good = {
        {0x55},
        {0x41, 0x57},
        {0xf3, 0x0f, 0x1e, 0xfa},
        {0x48, 0x89, 0xe5},
        {0x48, 0x8d, 0x3d, 1, 2, 3, 4},
        {0x48, 0x8b, 0x84, 0x24, 1, 2, 3, 4},
        {0x64, 0x48, 0x8b, 0x04, 0x25, 0x28, 0, 0, 0},
        {0x48, 0xb8, 1, 2, 3, 4, 5, 6, 7, 8},
        {0x66, 0xb8, 1, 2},
        {0xb8, 1, 2, 3, 4},
        {0x83, 0x3d, 1, 2, 3, 4, 5},
        {0x66, 0x81, 0x7c, 0x24, 8, 1, 2},
        {0x0f, 0x84, 1, 2, 3, 4},
        {0x75, 1},
        {0xe9, 1, 0, 0, 0},
        {0xff, 0x25, 1, 2, 3, 4},
        {0x90},
        {0x66, 0x90},
        {0x0f, 0x1f, 0x44, 0, 0},
        {0xc3},
        {0xf3, 0xc3},
        {0xf2, 0x0f, 0x10, 0x05, 1, 2, 3, 4},
        {0x66, 0x0f, 0x70, 0xc0, 0xe0},
        {0x48, 0xc7, 0x45, 0xf8, 1, 2, 3, 4},
    };
    for (Bytes code : good) {
        const auto length = static_cast<int>(code.size());
        EXPECT_EQ(length_of({code.data(), code.size()}), length)
            << text_of({code.data(), code.size()});
        for (size_t cut = 0; cut < code.size(); ++cut)
            EXPECT_NE(length_of({code.data(), cut}), length) << cut;
        code.resize(code.size() + 20, 0xcc);
        EXPECT_EQ(length_of({code.data(), code.size()}), length);
    }
}

TEST(KmodSite, WhatKernelsGetWrongIsRefused) {
    const std::vector<Bytes> bad = {
        {0x62, 0xf2, 0x7d, 0x48, 0x7a, 0xc6},          // vpbroadcastb %esi,%zmm0
        {0xc5, 0xf9, 0x7e, 0xc0},                      // vmovd %xmm0,%eax
        {0xc5, 0xfa, 0x7f, 0x44, 0x24, 0xe0},          // vmovdqu %xmm0,-32(%rsp)
        {0xc5, 0xf8, 0x77},                            // vzeroupper
        {0x8f, 0xe9, 0x78, 0x81, 0xc1},                // XOP
        {0xd5, 0x10, 0x89, 0xc0},                      // REX2
        {0xf0, 0x48, 0x0f, 0xb1, 0x0f},                // lock cmpxchg
        {0xf3, 0xaa},                                  // rep stosb
        {0xa4},                                        // movsb
        {0x41, 0x90},                                  // xchg %r8,%rax
        {0x9c},                                        // pushf
        {0x9d},                                        // popf
        {0x0f, 0x05},                                  // syscall
        {0xcc},                                        // int3
        {0x0f, 0x0b},                                  // ud2
        {0x66, 0xe8, 1, 2, 3, 4},                      // call, with a size
        {0x64, 0x48, 0x89, 0x04, 0x25, 0, 0, 0, 0},    // a store to thread-local memory
        {0x8e, 0xd0},                                  // mov %eax,%ss
        {0xc7, 0xf8, 0, 0, 0, 0},                      // xbegin
        {0x2e, 0x66, 0x0f, 0x1f, 0x84, 0, 0, 0, 0, 0}, // 10-byte nop
        {0x66, 0x0f, 0x1f, 0x40, 0},                   // another 5-byte nop
        {0x48, 0x8d, 0x64, 0x24, 0},                   // lea 0(%rsp),%rsp
        {0xe9, 0, 0, 0, 0},                            // jmp to the next instruction
        {0xeb, 0},                                     // the same, short
        {0x67, 0x8b, 0x00},                            // an address of 32 bits
        {},
    };
    for (const Bytes& code : bad)
        EXPECT_LT(length_of({code.data(), code.size()}), 0) << text_of({code.data(), code.size()});
}

// What the module accepts the loader accepts too, and takes for as long, whatever the bytes.
TEST(KmodSite, RandomBytesAreJudgedAsByTheLoader) {
    std::mt19937 random(7);
    const unsigned char often[] = {0x66, 0xf2, 0xf3, 0x64, 0x40, 0x41, 0x48, 0x4c, 0x0f,
                                   0x0f, 0x0f, 0x8d, 0x90, 0x24, 0x25, 0x05, 0xe9, 0xff};
    size_t accepted = 0, module_only = 0;
    for (int round = 0; round < 1000000; ++round) {
        unsigned char code[SB_SITE_MAX + 3];
        for (unsigned char& byte : code) byte = static_cast<unsigned char>(random());
        for (unsigned i = random() % 4; i > 0; --i) code[i - 1] = often[random() % sizeof often];
        const View view(code, 1 + random() % sizeof code);
        const int length = length_of(view);
        if (length < 0) continue;
        ++accepted;
        const auto verdict = elf::judge_site(view, 0x1000, kAnyKernel, elf::SitePosition::kEntry);
        ASSERT_EQ(length, verdict.length) << text_of(view);
        if (!verdict.allowed && ++module_only <= 20)
            ADD_FAILURE() << "only the module: " << text_of(view);
    }
    EXPECT_GT(accepted, 200000u);
}

// --- the distribution's libraries

struct File {
    Fd fd;
    uint64_t size = 0;
};

ssize_t read_file(void* context, void* buffer, size_t length, u64 offset) {
    return pread(static_cast<File*>(context)->fd.get(), buffer, length, static_cast<off_t>(offset));
}

constexpr uint64_t kPlaced = 1 << 20; // larger files take too long to place probes in

struct Sum {
    size_t functions = 0, entries = 0, sites = 0;
};

// The module accepts no entry that the loader's list does not, and each site that the loader picks
// and that list allows.
void look_at(const std::filesystem::path& path, Sum& sum) {
    File file{Fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC)), std::filesystem::file_size(path)};
    const auto image = elf::ElfFile::open(file.fd.get(), path);
    if (!image) return;
    const auto verdict_at = [&](uint64_t offset, elf::SitePosition position) {
        const View code = (*image)->code_at(offset, SB_SITE_MAX);
        return elf::judge_site(code, 0x1000, kAnyKernel, position).allowed;
    };
    const sb_reader reader = {read_file, &file, file.size};
    std::vector<uint64_t> entries;
    for (const elf::Function& function : (*image)->functions()) {
        const uint64_t entry = function.file_offset;
        entries.push_back(entry);
        const View code = (*image)->code_at(entry, SB_SITE_MAX);
        const bool module_allows = length_of(code) > 0;
        sum.entries += module_allows;
        EXPECT_EQ(module_allows, verdict_at(entry, elf::SitePosition::kEntry))
            << path << ' ' << text_of(code);
    }
    sum.functions += entries.size();
    if (file.size > kPlaced) return;
    const auto sites = elf::place_probes(**image, entries, {kAnyKernel});
    for (size_t i = 0; i < sites.size(); ++i) {
        if (!sites[i]) continue;
        const uint64_t offset = sites[i]->file_offset;
        const bool at_entry = offset == entries[i];
        if (!verdict_at(offset, at_entry ? elf::SitePosition::kEntry : elf::SitePosition::kInside))
            continue;
        ++sum.sites;
        u8 code[SB_SITE_MAX];
        EXPECT_EQ(sb_site_check(&reader, offset, {true, true}, code), 0)
            << path << fmt::format(" 0x{:x} ", offset)
            << text_of((*image)->code_at(offset, SB_SITE_MAX));
    }
}

// Places with a nop of 5 bytes: where a function begins, after its endbr64, and further on.
__asm__(
    ".pushsection .text\n"
    ".type nop_entry, @function\n"
    "nop_entry: .byte 0x0f, 0x1f, 0x44, 0, 0; ret\n"
    ".type nop_behind, @function\n"
    "nop_behind: endbr64; .byte 0x0f, 0x1f, 0x44, 0, 0; ret\n"
    ".type nop_inside, @function\n"
    "nop_inside: endbr64; mov %rdi, -8(%rsp); .byte 0x0f, 0x1f, 0x44, 0, 0; ret\n"
    ".popsection\n");

TEST(KmodSite, Nop5OnlyAtAnEntryAndWhereTheKernelIsSafe) {
    File file{Fd(::open("/proc/self/exe", O_RDONLY | O_CLOEXEC)),
              std::filesystem::file_size("/proc/self/exe")};
    const auto image = elf::ElfFile::open(file.fd.get(), "self");
    ASSERT_TRUE(image);
    const sb_reader reader = {read_file, &file, file.size};
    const auto offset_of = [&](std::string_view name) -> uint64_t {
        for (const elf::Function& one : (*image)->functions())
            if (one.names.front() == name) return one.file_offset;
        return 0;
    };
    const struct {
        uint64_t offset;
        int when_safe, otherwise;
    } places[] = {
        {offset_of("nop_entry"), 0, -EOPNOTSUPP},
        {offset_of("nop_behind"), 0, 0},
        {offset_of("nop_behind") + 4, 0, -EOPNOTSUPP},
        {offset_of("nop_inside") + 4, 0, 0},
        {offset_of("nop_inside") + 9, -EOPNOTSUPP, -EOPNOTSUPP},
    };
    for (const auto& place : places) {
        u8 code[SB_SITE_MAX];
        EXPECT_EQ(sb_site_check(&reader, place.offset, {true, false}, code), place.when_safe)
            << place.offset;
        EXPECT_EQ(sb_site_check(&reader, place.offset, {false, false}, code), place.otherwise)
            << place.offset;
        const View there = (*image)->code_at(place.offset, SB_SITE_MAX);
        EXPECT_TRUE(std::equal(there.begin(), there.end(), code)) << place.offset;
    }
}

TEST(KmodSite, CallsWhereProcessesMayHaveShadowStacks) {
    const auto check = [](Bytes code, bool call_is_safe) {
        code.resize(SB_SITE_MAX);
        const auto read = [](void* context, void* into, size_t size, u64 offset) -> ssize_t {
            const auto& from = *static_cast<const Bytes*>(context);
            std::copy_n(from.begin() + static_cast<ptrdiff_t>(offset), size,
                        static_cast<unsigned char*>(into));
            return static_cast<ssize_t>(size);
        };
        const sb_reader reader = {read, &code, code.size()};
        u8 found[SB_SITE_MAX];
        return sb_site_check(&reader, 0, {true, call_is_safe}, found);
    };
    const std::vector<Bytes> calls = {
        {0xe8, 1, 2, 3, 4}, {0xff, 0xd0}, {0x41, 0xff, 0xd3}, {0xff, 0x15, 1, 2, 3, 4}};
    for (const Bytes& code : calls) {
        EXPECT_EQ(check(code, true), 0) << text_of({code.data(), code.size()});
        EXPECT_EQ(check(code, false), -EOPNOTSUPP) << text_of({code.data(), code.size()});
    }
    const std::vector<Bytes> others = {{0xe9, 1, 2, 3, 4}, {0xff, 0xe0}, {0x41, 0xff, 0xe3},
                                       {0xff, 0x75, 8},    {0x55},       {0xc3}};
    for (const Bytes& code : others)
        EXPECT_EQ(check(code, false), 0) << text_of({code.data(), code.size()});
}

TEST(KmodSite, EveryFunctionOfTheDistributionsLibraries) {
    Sum sum;
    for (const auto& entry : std::filesystem::directory_iterator("/usr/lib/x86_64-linux-gnu")) {
        if (entry.is_symlink() || !entry.is_regular_file() ||
            entry.path().filename().string().find(".so") == std::string::npos)
            continue;
        look_at(entry.path(), sum);
    }
    fmt::print("{} functions; the module accepts {} entries, and {} sites of the loader's\n",
               sum.functions, sum.entries, sum.sites);
    EXPECT_GT(sum.sites, 10000u);
}

} // namespace
} // namespace speedbump
