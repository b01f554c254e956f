// SPDX-License-Identifier: MIT
#include "elf/probe_site.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <cstring>
#include <string>

namespace speedbump::elf {
namespace {

using testing::HasSubstr;

SiteVerdict judge(uint32_t word, const SiteOptions& options = {}) {
    unsigned char bytes[4];
    std::memcpy(bytes, &word, sizeof bytes);
    return judge_site({bytes, sizeof bytes}, 0x1000, options, SitePosition::kEntry);
}

std::string text_of(uint32_t word) {
    unsigned char bytes[4];
    std::memcpy(bytes, &word, sizeof bytes);
    return instruction_text({bytes, sizeof bytes}, 0x1000);
}

// What kernels do with a probed instruction, by arch/arm64/kernel/probes/decode-insn.c and the
// macros of arch/arm64/include/asm/insn.h, of Linux 6.1 and later.
enum class Kernel { kSteps, kEmulates, kRejects };

Kernel system_instruction(uint32_t word) {
    if ((word & 0xfff8f01f) == 0xd500401f) return Kernel::kRejects; // msr (immediate)
    if ((word & 0xfff00000) == 0xd5100000) return Kernel::kRejects; // msr
    if ((word & 0xff000000) == 0xd4000000) return Kernel::kRejects; // exceptions
    if ((word & 0xfff00000) == 0xd5300000)                          // mrs, but of the DAIF bits
        return (word >> 5 & 0xffff) == 0xda11 ? Kernel::kRejects : Kernel::kSteps;
    if ((word & 0xfffff01f) != 0xd503201f) return Kernel::kSteps;
    switch (word & 0xfe0) { // the hints that are stepped
        case 0x00 << 5:     // nop
        case 0x07 << 5:     // xpaclri
        case 0x08 << 5:     // pacia1716
        case 0x0a << 5:     // pacib1716
        case 0x18 << 5:     // paciaz
        case 0x19 << 5:     // paciasp
        case 0x1a << 5:     // pacibz
        case 0x1b << 5:     // pacibsp
        case 0x20 << 5:     // bti
        case 0x22 << 5:
        case 0x24 << 5:
        case 0x26 << 5:
            return Kernel::kSteps;
        default:
            return Kernel::kRejects;
    }
}

Kernel kernel_does(uint32_t word) {
    const auto is = [word](uint32_t mask, uint32_t value) { return (word & mask) == value; };
    if (is(0xff000010, 0x54000000) || is(0x7e000000, 0x34000000) || is(0x7e000000, 0x36000000) ||
        is(0x1f000000, 0x10000000) || is(0x7c000000, 0x14000000) || is(0xfffffc1f, 0xd61f0000) ||
        is(0xfffffc1f, 0xd63f0000) || is(0xfffffc1f, 0xd65f0000))
        return Kernel::kEmulates;
    if (is(0x1c000000, 0x14000000)) { // branches, exceptions and system instructions
        if (is(0xff000000, 0xd5000000) || is(0xff000000, 0xd4000000))
            return system_instruction(word);
        return Kernel::kRejects;
    }
    if (is(0x3b000000, 0x18000000)) return Kernel::kRejects; // literals; wrong, of vectors
    if (is(0x3f800000, 0x08000000)) return Kernel::kRejects; // exclusive
    if (is(0x3b200c00, 0x19000400)) return Kernel::kRejects; // copies of memory
    return Kernel::kSteps;
}

// All values of the upper 17 bits, where instructions are told apart, with registers and other
// fields of each kind below them.
template <typename Check>
void for_many_words(Check check) {
    constexpr std::array<uint32_t, 24> kLow = {0x0000, 0x0001, 0x0020, 0x03e0, 0x03ff, 0x0400,
                                               0x0410, 0x041f, 0x07ff, 0x0800, 0x0802, 0x0bff,
                                               0x0c00, 0x0fe0, 0x1000, 0x1041, 0x201f, 0x241f,
                                               0x2800, 0x4800, 0x4bff, 0x5000, 0x7c00, 0x7fff};
    for (uint32_t upper = 0; upper < 1u << 17; ++upper)
        for (const uint32_t low : kLow) check(upper << 15 | low);
}

TEST(ProbeSiteAarch64, WhatIsAllowedTheKernelDoesRightInTheWayThatIsSaid) {
    size_t allowed = 0, wrong = 0;
    uint32_t example = 0;
    for_many_words([&](uint32_t word) {
        const SiteVerdict verdict = judge(word);
        if (!verdict.allowed) return;
        ++allowed;
        const Kernel wanted =
            verdict.kind == SiteKind::kEmulated ? Kernel::kEmulates : Kernel::kSteps;
        if (kernel_does(word) == wanted) return;
        ++wrong;
        example = word;
    });
    EXPECT_GT(allowed, 500000u);
    EXPECT_EQ(wrong, 0u) << "for example " << text_of(example);
}

// Each encoding of the forms that the kernel emulates, field by field.
TEST(ProbeSiteAarch64, BranchesAndAddressesAreEmulated) {
    const auto expect_emulated = [](uint32_t first, uint32_t last, uint32_t step) {
        for (uint64_t word = first; word <= last; word += step)
            if (judge(static_cast<uint32_t>(word)).kind != SiteKind::kEmulated ||
                !judge(static_cast<uint32_t>(word)).allowed) {
                ADD_FAILURE() << text_of(static_cast<uint32_t>(word));
                return;
            }
    };
    expect_emulated(0x14000000, 0x17ffffff, 61);              // b
    for (uint32_t condition = 0; condition < 16; ++condition) // b.cond
        expect_emulated(0x54000000 | condition, 0x54ffffe0 | condition, 32 * 7);
    for (uint32_t base :
         {0x34000000u, 0x35000000u, 0xb4000000u, 0xb5000000u, 0x36000000u, 0x37000000u, 0xb6000000u,
          0xb7000000u, 0x10000000u, 0x30000000u, 0x90000000u, 0xf0000000u})
        expect_emulated(base, base | 0xffffff, 61); // cbz, cbnz, tbz, tbnz, adr, adrp
    expect_emulated(0xd61f0000, 0xd61f03e0, 32);    // br
}

TEST(ProbeSiteAarch64, EntriesThatCompilersEmit) {
    const struct {
        uint32_t word;
        const char* text;
    } steps[] = {
        {0xa9bf7bfd, "stp"},  {0xa9be4ff4, "stp"},  {0xd10083ff, "sub"},  {0xd503233f, "paciasp"},
        {0xd503245f, "bti"},  {0xd503249f, "bti"},  {0xaa0003e1, "orr"},  {0x52800000, "movz"},
        {0xb9400000, "ldr"},  {0xf9400c01, "ldr"},  {0x0b000020, "add"},  {0x8b010000, "add"},
        {0xd53bd041, "mrs"},  {0x2f00e400, "movi"}, {0x4e010c20, "dup"},  {0xf81f0ffe, "str"},
        {0x7100041f, "subs"}, {0x1e604000, "fmov"}, {0x6dbc2feb, "stp"},  {0x92401c00, "and"},
        {0x12001c00, "and"},  {0x3c9f0fe0, "str"},  {0xd37ef400, "ubfm"}, {0x88dffc20, "ldar"},
        {0x9b017c00, "madd"}};
    for (const auto& one : steps) {
        const SiteVerdict verdict = judge(one.word);
        EXPECT_TRUE(verdict.allowed) << std::hex << one.word << " " << verdict.reason;
        EXPECT_EQ(verdict.kind, SiteKind::kSingleStep) << one.text;
        EXPECT_EQ(verdict.length, 4u);
        EXPECT_THAT(text_of(one.word), HasSubstr(one.text));
    }
    EXPECT_EQ(judge(0xd503201f).kind, SiteKind::kOptimizedNop); // a kind of its own
    EXPECT_EQ(text_of(0xa9bf7bfd), "stp (a9bf7bfd)");
    EXPECT_EQ(text_of(0x00000000), ".inst 0x00000000");
}

TEST(ProbeSiteAarch64, ReturnsWhereThereAreNoGuardedControlStacks) {
    const SiteOptions none{.no_shadow_stacks = true};
    EXPECT_TRUE(judge(0xd65f03c0, none).allowed); // ret
    EXPECT_TRUE(judge(0xd65f0200, none).allowed); // ret x16
    EXPECT_EQ(judge(0xd65f03c0, none).kind, SiteKind::kEmulated);
    for (const uint32_t other : {0xd65f0bffu, 0xd65f0fffu, 0xd65f03c1u, 0xd69f03e0u, 0xd63f0000u})
        EXPECT_FALSE(judge(other, none).allowed) << std::hex << other; // retaa, retab, -, eret, blr
}

TEST(ProbeSiteAarch64, WhatIsNotAllowedSaysWhy) {
    const struct {
        uint32_t word;
        const char* reason;
    } refused[] = {
        {0x94000001, "guarded control stack"}, // bl
        {0xd63f0000, "guarded control stack"}, // blr x0
        {0xd65f03c0, "guarded control stack"}, // ret
        {0x58000001, "beside it"},             // ldr x1, literal
        {0x1c000001, "beside it"},             // ldr s1, literal, which the kernel would step
        {0x98000001, "beside it"},             // ldrsw
        {0xd8000001, "beside it"},             // prfm
        {0x885f7c00, "exclusive"},             // ldxr
        {0xc8007c01, "exclusive"},             // stxr
        {0x48207c82, "exclusive"},             // casp
        {0x88a07c41, "not on the list"},       // cas
        {0xd503203f, "system instruction"},    // yield
        {0xd50323bf, "system instruction"},    // autiasp
        {0xd5033fdf, "system instruction"},    // isb
        {0xd53b4220, "system instruction"},    // mrs daif
        {0xd51bd040, "system instruction"},    // msr tpidr_el0
        {0xd4000001, "exception"},             // svc
        {0xd4200000, "exception"},             // brk
        {0xd65f0bff, "not on the list"},       // retaa
        {0xd69f03e0, "not on the list"},       // eret
        {0xb8200000, "not on the list"},       // ldadd
        {0x04603fe0, "not on the list"},       // of SVE
        {0x00000000, "not on the list"},       // udf
        {0x54000010, "not on the list"},       // bc.cond
        {0x12400000, "encoded in a way"},      // and w, of 64 bits
        {0x1200fc00, "encoded in a way"},      // and w, of ones alone
        {0xa9c10400, "encoded in a way"},      // ldp x0,x1,[x0,#16]!
        {0xa9400000, "encoded in a way"},      // ldp x0,x0,[x0]
        {0xf8408400, "encoded in a way"},      // ldr x0,[x0],#8
    };
    for (const auto& one : refused) {
        const SiteVerdict verdict = judge(one.word);
        EXPECT_FALSE(verdict.allowed) << text_of(one.word);
        EXPECT_THAT(verdict.reason, HasSubstr(one.reason)) << text_of(one.word);
    }
    const unsigned char three[] = {0x1f, 0x20, 0x03};
    const SiteVerdict cut = judge_site({three, 3}, 0, {}, SitePosition::kEntry);
    EXPECT_FALSE(cut.allowed);
    EXPECT_EQ(cut.length, 0u);
}

} // namespace
} // namespace speedbump::elf
