// SPDX-License-Identifier: MIT
// The module's list of probe sites on aarch64 (kmod/site_aarch64.c), under the address and
// undefined sanitizers, beside the loader's own.
#include <fcntl.h>
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <random>
#include <vector>

#include "elf/probe_site.h"

extern "C" {
#include "make_elf.h"
#include "site.h"
}

namespace speedbump {
namespace {

using Word = std::array<unsigned char, 4>;

constexpr uint32_t kNop = 0xd503201f, kPush = 0xa9bf7bfd;

Word bytes_of(uint32_t word) {
    Word bytes;
    std::memcpy(bytes.data(), &word, sizeof word);
    return bytes;
}

std::string text_of(uint32_t word) {
    const Word bytes = bytes_of(word);
    return elf::instruction_text({bytes.data(), bytes.size()}, 0x1000);
}

// How many of a kind of words both take; where one alone does, the test fails.
struct Agreement {
    size_t accepted = 0, differing = 0;

    void look_at(uint32_t word) {
        const Word bytes = bytes_of(word);
        const auto verdict =
            elf::judge_site({bytes.data(), bytes.size()}, 0x1000, {}, elf::SitePosition::kEntry);
        const int length = sb_site_length(bytes.data(), bytes.size());
        accepted += length > 0;
        const bool agree = verdict.allowed ? length == 4 : length == -EOPNOTSUPP;
        if (!agree && ++differing <= 20)
            ADD_FAILURE() << (length > 0 ? "only the module: " : "only the loader: ")
                          << text_of(word);
    }
};

// All values of the upper 17 bits, where instructions are told apart, each with some of the fields
// and registers below them.
TEST(KmodSiteAarch64, EveryKindOfInstructionIsJudgedAsByTheLoader) {
    constexpr std::array<uint32_t, 24> kLow = {0x0000, 0x0001, 0x0020, 0x03e0, 0x03ff, 0x0400,
                                               0x0410, 0x041f, 0x07ff, 0x0800, 0x0802, 0x0bff,
                                               0x0c00, 0x0fe0, 0x1000, 0x1041, 0x201f, 0x241f,
                                               0x2800, 0x4800, 0x4bff, 0x5000, 0x7c00, 0x7fff};
    Agreement agreement;
    for (uint32_t upper = 0; upper < 1u << 17; ++upper)
        for (const uint32_t low : kLow) agreement.look_at(upper << 15 | low);
    EXPECT_GT(agreement.accepted, 500000u);
}

TEST(KmodSiteAarch64, RandomWordsAreJudgedAsByTheLoader) {
    std::mt19937 random(7);
    Agreement agreement;
    for (int round = 0; round < 1000000; ++round)
        agreement.look_at(static_cast<uint32_t>(random()));
    EXPECT_GT(agreement.accepted, 100000u);
}

// Hints, system instructions, exceptions and returns: each word.
TEST(KmodSiteAarch64, SystemInstructionsAreJudgedAsByTheLoader) {
    Agreement agreement;
    for (uint32_t word = 0xd5030000; word < 0xd5040000; ++word) agreement.look_at(word);
    for (uint32_t word = 0xd53bd000; word < 0xd53be000; ++word) agreement.look_at(word);
    for (uint32_t word = 0xd6000000; word < 0xd6c00000; word += 31) agreement.look_at(word);
    EXPECT_GT(agreement.accepted, 40u);
}

TEST(KmodSiteAarch64, HalfAnInstructionIsNone) {
    const Word nop = bytes_of(kNop);
    for (size_t length = 0; length < nop.size(); ++length) {
        std::vector<unsigned char> cut(nop.begin(), nop.begin() + static_cast<ptrdiff_t>(length));
        cut.shrink_to_fit(); // a byte read too far is found
        EXPECT_EQ(sb_site_length(cut.data(), cut.size()), -EOPNOTSUPP) << length;
    }
}

// --- sites of a file

// A file whose code is nops, with one function, at kEntry.
class CodeFile {
  public:
    static constexpr uint64_t kEntry = SB_TEST_CODE_OFFSET + 0x400;

    CodeFile() {
        const auto path =
            std::filesystem::temp_directory_path() / fmt::format("speedbump-site-{}", getpid());
        const test_symbol symbol = {"entry", STT_FUNC, STB_GLOBAL, 1, SB_TEST_CODE_ADDRESS + 0x400,
                                    0};
        test_elf made = {};
        made.symtab = &symbol;
        made.symtab_count = 1;
        EXPECT_EQ(make_elf(path.c_str(), &made), 0);
        bytes_.resize(std::filesystem::file_size(path));
        const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
        EXPECT_EQ(::read(fd, bytes_.data(), bytes_.size()), static_cast<ssize_t>(bytes_.size()));
        ::close(fd);
        std::filesystem::remove(path);
        for (uint64_t at = 0; at < SB_TEST_CODE_SIZE; at += 4) put(SB_TEST_CODE_OFFSET + at, kNop);
    }

    void put(uint64_t offset, uint32_t word) {
        std::memcpy(bytes_.data() + offset, &word, sizeof word);
    }

    int check(uint64_t offset) {
        const sb_reader reader = {read, this, bytes_.size()};
        u8 code[SB_SITE_MAX];
        const int result = sb_site_check(&reader, offset, {true, true}, code);
        EXPECT_TRUE(std::equal(code, code + 4, bytes_.data() + offset)) << offset;
        return result;
    }

  private:
    static ssize_t read(void* context, void* into, size_t size, u64 offset) {
        const auto& bytes = static_cast<CodeFile*>(context)->bytes_;
        if (offset >= bytes.size()) return 0;
        const size_t got = std::min(size, bytes.size() - offset);
        std::memcpy(into, bytes.data() + offset, got);
        return static_cast<ssize_t>(got);
    }

    std::vector<unsigned char> bytes_;
};

// A trap between the two would undo it each time.
TEST(KmodSiteAarch64, NotWithinAnExclusiveAccess) {
    const struct {
        uint32_t begins, ends;
    } accesses[] = {
        {0xc85f7c20, 0xc8027c20}, // ldxr x0,[x1]; stxr w2,x0,[x1]
        {0x885ffc20, 0x8802fc20}, // ldaxr w0,[x1]; stlxr w2,w0,[x1]
        {0x085f7c20, 0x08027c20}, // ldxrb, stxrb
        {0xc87f0420, 0xc8220420}, // ldxp x0,x1,[x1]; stxp w2,x0,x1,[x1]
        {0xc85f7c20, 0xd5033f5f}, // ldxr; clrex
    };
    const uint64_t at = CodeFile::kEntry + 0x200;
    for (const auto& access : accesses) {
        CodeFile file;
        file.put(at, access.begins);
        file.put(at + 40, access.ends);
        EXPECT_EQ(file.check(at - 4), 0) << text_of(access.begins);
        for (uint64_t inside = at; inside <= at + 40; inside += 4)
            EXPECT_EQ(file.check(inside), -EOPNOTSUPP) << inside - at << text_of(access.begins);
        EXPECT_EQ(file.check(at + 44), 0) << text_of(access.ends);
    }
    CodeFile file;
    file.put(at, accesses[0].begins); // with no end: so far as it is looked for
    EXPECT_EQ(file.check(at + 4 * 32), -EOPNOTSUPP);
    EXPECT_EQ(file.check(at + 4 * 33), 0);
    for (const uint32_t whole : {0x48607c82u, 0x88dffc20u}) { // caspa and ldar: by themselves
        file.put(at, whole);
        EXPECT_EQ(file.check(at + 4), 0) << text_of(whole);
    }
}

// What the function before it does is none of its own.
TEST(KmodSiteAarch64, AnEntryIsInNoExclusiveAccess) {
    CodeFile file;
    file.put(CodeFile::kEntry - 8, 0xc85f7c20);
    file.put(CodeFile::kEntry, kPush);
    EXPECT_EQ(file.check(CodeFile::kEntry - 4), -EOPNOTSUPP);
    EXPECT_EQ(file.check(CodeFile::kEntry), 0);
    EXPECT_EQ(file.check(CodeFile::kEntry + 4), -EOPNOTSUPP);
}

TEST(KmodSiteAarch64, NotWhatSignalHandlersReturnTo) {
    CodeFile file;
    file.put(CodeFile::kEntry, 0xd2801168); // mov x8,#139
    EXPECT_EQ(file.check(CodeFile::kEntry), 0);
    file.put(CodeFile::kEntry + 4, 0xd4000001); // svc #0
    EXPECT_EQ(file.check(CodeFile::kEntry), -EOPNOTSUPP);
}

TEST(KmodSiteAarch64, WhatTheLoaderRefusesIsRefused) {
    for (const uint32_t word : {0x94000001u, 0xd63f0000u, 0xd65f03c0u, 0x58000001u, 0x1c000001u,
                                0xc85f7c20u, 0xd53b4220u, 0xd4000001u, 0xd4200000u, 0xd65f0bffu,
                                0xb8200000u, 0x00000000u, 0xa9c10400u, 0x1200fc00u}) {
        CodeFile file;
        file.put(CodeFile::kEntry, word);
        EXPECT_EQ(file.check(CodeFile::kEntry), -EOPNOTSUPP) << text_of(word);
    }
}

} // namespace
} // namespace speedbump
