// SPDX-License-Identifier: MIT
#include "elf/probe_site.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <sstream>
#include <string>
#include <vector>

namespace speedbump::elf {
namespace {

using testing::HasSubstr;

std::basic_string<unsigned char> bytes_of(const std::string& text) {
    std::basic_string<unsigned char> bytes;
    std::istringstream in(text);
    for (unsigned value; in >> std::hex >> value;)
        bytes.push_back(static_cast<unsigned char>(value));
    return bytes;
}

SiteVerdict judge(const std::string& code, SitePosition position = SitePosition::kEntry,
                  bool optimizes = true, uint64_t address = 0x1000) {
    SiteOptions options;
    options.kernel_optimizes_nop5 = optimizes;
    options.nop5_is_safe = true;
    options.no_shadow_stacks = true;
    return judge_site(bytes_of(code), address, options, position);
}

struct Row {
    const char* code;
    const char* text;
};

void expect_allowed(const std::vector<Row>& rows, SiteKind kind) {
    for (const Row& row : rows) {
        SCOPED_TRACE(row.text);
        for (const SitePosition position : {SitePosition::kEntry, SitePosition::kInside}) {
            const SiteVerdict verdict = judge(row.code, position);
            EXPECT_TRUE(verdict.allowed) << verdict.reason;
            EXPECT_EQ(verdict.kind, kind);
            EXPECT_EQ(verdict.length, bytes_of(row.code).size());
            EXPECT_EQ(instruction_text(bytes_of(row.code), 0x1000), row.text);
        }
    }
}

void expect_refused(const std::vector<Row>& rows, const std::string& reason) {
    for (const Row& row : rows) {
        SCOPED_TRACE(row.text);
        for (const bool optimizes : {true, false}) {
            const SiteVerdict verdict = judge(row.code, SitePosition::kEntry, optimizes);
            EXPECT_FALSE(verdict.allowed);
            EXPECT_THAT(verdict.reason, HasSubstr(reason));
            EXPECT_EQ(verdict.length, bytes_of(row.code).size());
        }
    }
}

TEST(ProbeSiteTest, EmulatedByEveryKernel) {
    expect_allowed({{"55", "push %rbp"},
                    {"54", "push %rsp"},
                    {"41 57", "push %r15"},
                    {"90", "nop"},
                    {"66 90", "nop"},
                    {"eb 10", "jmp 0x1012"},
                    {"e9 00 01 00 00", "jmp 0x1105"},
                    {"e8 00 01 00 00", "call 0x1105"},
                    {"74 10", "jz 0x1012"},
                    {"0f 84 00 01 00 00", "jz 0x1106"}},
                   SiteKind::kEmulated);
}

TEST(ProbeSiteTest, SingleStepped) {
    expect_allowed({{"f3 0f 1e fa", "endbr64"},
                    {"48 89 e5", "mov %rsp, %rbp"},
                    {"64 48 8b 04 25 28 00 00 00", "mov %fs:0x28, %rax"},
                    {"48 8b 05 00 01 00 00", "mov 0x1107, %rax"},
                    {"48 8d 3d 00 01 00 00", "lea 0x1107, %rdi"},
                    {"48 83 ec 18", "sub $0x18, %rsp"},
                    {"48 f7 3d 00 01 00 00", "idiv 0x1107"},
                    {"66 89 07", "mov %ax, (%rdi)"},
                    {"f2 0f 10 07", "movsdq (%rdi), %xmm0"},
                    {"66 48 0f 6e c7", "movq %rdi, %xmm0"},
                    {"0f 11 44 24 f0", "movups %xmm0, -0x10(%rsp)"},
                    {"5d", "pop %rbp"},
                    {"41 5f", "pop %r15"},
                    {"6a 01", "push $0x01"},
                    {"ff 35 00 01 00 00", "push 0x1106"},
                    {"c3", "ret"},
                    {"f3 c3", "ret"},
                    {"c2 08 00", "ret $0x08"},
                    {"c9", "leave"},
                    {"ff e0", "jmp %rax"},
                    {"41 ff d3", "call %r11"},
                    {"ff 25 00 01 00 00", "jmp *0x1106"},
                    {"ff 64 24 f8", "jmp -0x08(%rsp)"}},
                   SiteKind::kSingleStep);
}

// branch_setup_xol_ops and arch_uprobe_analyze_insn compare the opcode byte without its map.
TEST(ProbeSiteTest, NothingButLegacyEncoding) {
    expect_refused({{"62 f2 7d 48 7a c6", "vpbroadcastb %esi,%zmm16: 7a, jp"},
                    {"c5 f9 7e c0", "vmovd %xmm0,%eax: 7e, jle"},
                    {"c5 fa 7f 44 24 e0", "vmovdqu %xmm0,-32(%rsp): 7f, jg"},
                    {"c5 f8 77", "vzeroupper: 77, ja"},
                    {"c5 f8 90 07", "kmovw (%rdi),%k0: 90, nop"},
                    {"c5 f8 c2 c1 00", "vcmpps: c2, ret"},
                    {"c5 f9 ea c1", "vpminsw: ea, far jmp"},
                    {"c5 f9 e8 c1", "vpsubsb: e8, call"},
                    {"c5 f9 eb c1", "vpor: eb, jmp"},
                    {"c4 e2 f9 f7 c1", "shlx"},
                    {"c5 f8 28 c1", "vmovaps: not compared, but of the class"},
                    {"0f 0f c1 9e", "pfadd (3DNow)"},
                    {"8f e9 78 e1 c1", "vphadd (XOP)"}},
                   "kernel's uprobes get wrong");
}

TEST(ProbeSiteTest, PrefixesThatTheKernelRefuses) {
    expect_refused({{"f0 48 ff 07", "lock incq (%rdi)"},
                    {"3e ff e0", "notrack jmp *%rax"},
                    {"66 2e 0f 1f 84 00 00 00 00 00", "nopw %cs:0(%rax,%rax,1)"},
                    {"2e 74 00", "jz with a hint"},
                    {"36 8b 07", "mov %ss:(%rdi),%eax"},
                    {"26 8b 07", "mov %es:(%rdi),%eax"}},
                   "prefix");
}

TEST(ProbeSiteTest, StringInstructions) {
    expect_refused({{"f3 aa", "rep stosb"}, {"f3 48 a5", "rep movsq"}, {"f2 ae", "repne scasb"}},
                   "once per repetition");
    expect_refused({{"aa", "stosb"}, {"a4", "movsb"}, {"a6", "cmpsb"}}, "not on the list");
}

TEST(ProbeSiteTest, EncodingsThatKernelsDoNotAgreeOn) {
    expect_refused({{"41 90", "xchg %r8d,%eax"},
                    {"48 90", "nop with REX"},
                    {"f3 90", "pause"},
                    {"40 50", "push with an idle REX"},
                    {"48 50", "push with REX.W"},
                    {"66 50", "push %ax"},
                    {"ff f0", "push by ff /6"},
                    {"8f c0", "pop by 8f /0"},
                    {"5c", "pop %rsp"},
                    {"66 e8 00 00 00 00", "call with 66"},
                    {"f2 e9 00 01 00 00", "bnd jmp"},
                    {"f2 c3", "bnd ret"},
                    {"48 c3", "ret with REX.W"},
                    {"48 ff e0", "jmp with REX.W"},
                    {"67 8b 07", "mov (%edi),%eax"},
                    {"66 48 8d 3d 00 00 00 00", "data16 lea"},
                    {"a1 00 00 00 00 00 00 00 00", "movabs 0,%eax"},
                    {"f3 f3 0f 10 c1", "movss with its prefix twice"},
                    {"66 f3 0f 10 c1", "movss with 66"},
                    {"f3 89 c0", "mov with rep"}},
                   "");
}

TEST(ProbeSiteTest, WhatDoesMoreThanCompute) {
    expect_refused({{"9c", "pushf"},
                    {"9d", "popf"},
                    {"8e d8", "mov %eax,%ds"},
                    {"8e d0", "mov %eax,%ss"},
                    {"0f a9", "pop %gs"},
                    {"64 89 04 25 08 00 00 00", "mov %eax,%fs:8"},
                    {"0f 05", "syscall"},
                    {"0f a2", "cpuid"},
                    {"0f 31", "rdtsc"},
                    {"0f 01 d0", "xgetbv"},
                    {"0f 0b", "ud2"},
                    {"cc", "int3"},
                    {"cd 80", "int $0x80"},
                    {"f4", "hlt"},
                    {"d9 30", "fnstenv (%rax)"},
                    {"d9 c0", "fld %st(0)"},
                    {"0f ae 10", "ldmxcsr (%rax)"},
                    {"c7 f8 00 00 00 00", "xbegin"},
                    {"0f 01 d5", "xend"},
                    {"e2 00", "loop"},
                    {"e3 00", "jrcxz"},
                    {"c8 10 00 00", "enter"},
                    {"cb", "lret"},
                    {"48 cf", "iretq"},
                    {"ff 2f", "ljmp *(%rdi)"},
                    {"ff 1f", "lcall *(%rdi)"},
                    {"87 07", "xchg %eax,(%rdi): locked"},
                    {"0f b1 0f", "cmpxchg"},
                    {"0f 6f 07", "movq (%rdi),%mm0"},
                    {"66 0f f7 c1", "maskmovdqu"}},
                   "");
}

// A nop of 5 bytes becomes a call, which pushes: only where nothing lives below the stack pointer.
// Other things of 5 bytes are nops to the kernel as well, and longer nops to later kernels.
TEST(ProbeSiteTest, Nops) {
    const std::string nop5 = "0f 1f 44 00 00";
    EXPECT_EQ(judge(nop5).kind, SiteKind::kOptimizedNop);
    EXPECT_TRUE(judge(nop5).allowed);
    EXPECT_TRUE(judge(nop5, SitePosition::kEntry, false).allowed);
    EXPECT_EQ(judge(nop5, SitePosition::kEntry, false).kind, SiteKind::kSingleStep);
    EXPECT_EQ(judge(nop5, SitePosition::kEntry, true, 0x1ffb).kind, SiteKind::kOptimizedNop);
    EXPECT_EQ(judge(nop5, SitePosition::kEntry, true, 0x1ffc).kind, SiteKind::kEmulated)
        << "a nop across two pages is not rewritten";
    for (const bool optimizes : {true, false}) {
        EXPECT_FALSE(judge(nop5, SitePosition::kInside, optimizes).allowed);
        EXPECT_THAT(judge(nop5, SitePosition::kInside, optimizes).reason, HasSubstr("rewritten"));
    }
    SiteOptions careful;
    EXPECT_THAT(judge_site(bytes_of(nop5), 0x1000, careful, SitePosition::kEntry).reason,
                HasSubstr("could not be tried out"));
    careful.kernel_optimizes_nop5 = true;
    EXPECT_THAT(judge_site(bytes_of(nop5), 0x1000, careful, SitePosition::kEntry).reason,
                HasSubstr("by this kernel into a call that ends forked children"));
    EXPECT_EQ(judge("0f 1f 00").kind, SiteKind::kEmulated);
    EXPECT_EQ(judge("0f 1f 40 00", SitePosition::kInside, false).kind, SiteKind::kSingleStep);
    expect_refused({{"48 8d 64 24 00", "lea 0(%rsp),%rsp"},
                    {"48 8d 7f 00", "lea 0(%rdi),%rdi"},
                    {"e9 00 00 00 00", "jmp to the next instruction"},
                    {"eb 00", "jmp to the next instruction"}},
                   "rewritten");
    expect_refused({{"66 0f 1f 40 00", "nopw 0(%rax)"},
                    {"66 0f 1f 44 00 00", "nopw 0(%rax,%rax,1)"},
                    {"0f 1f 80 00 00 00 00", "nopl 0(%rax)"},
                    {"0f 1f 84 00 00 00 00 00", "nopl 0(%rax,%rax,1)"},
                    {"0f 1f c0", "nop %eax"},
                    {"0f 1f 45 00", "nopl 0(%rbp)"},
                    {"0f 0d 00", "prefetch"},
                    {"0f 18 00", "prefetchnta"}},
                   "");
}

// What a probed call pushes on a shadow stack is nothing, or the address of the kernel's copy.
TEST(ProbeSiteTest, CallsWhereProcessesMayHaveShadowStacks) {
    SiteOptions careful;
    careful.kernel_optimizes_nop5 = careful.nop5_is_safe = true;
    for (const char* code : {"e8 00 01 00 00", "ff d0", "41 ff d3", "ff 15 00 01 00 00", "ff 10"}) {
        SCOPED_TRACE(code);
        const auto judged = judge_site(bytes_of(code), 0x1000, careful, SitePosition::kEntry);
        EXPECT_FALSE(judged.allowed);
        EXPECT_THAT(judged.reason, HasSubstr("shadow stack"));
        EXPECT_TRUE(judge(code).allowed);
    }
    // jumps, returns and the call that the kernel makes of a nop
    for (const char* code :
         {"e9 00 01 00 00", "74 10", "ff e0", "c3", "55", "c9", "0f 1f 44 00 00"}) {
        EXPECT_TRUE(judge_site(bytes_of(code), 0x1000, careful, SitePosition::kEntry).allowed)
            << code;
    }
}

TEST(ProbeSiteTest, WhatIsNoInstruction) {
    for (const char* code : {"", "0f", "06", "48", "0f 0b 90", "e8 00", "ff ff"}) {
        EXPECT_FALSE(judge(code).allowed) << code;
    }
    EXPECT_EQ(judge("06").length, 0);
    EXPECT_THAT(judge("06").reason, HasSubstr("decoded"));
    EXPECT_EQ(instruction_text(bytes_of("06"), 0), "");
}

} // namespace
} // namespace speedbump::elf
