// SPDX-License-Identifier: MIT
#include "elf/placement.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <ctime>
#include <fstream>
#include <map>
#include <regex>
#include <set>
#include <unordered_map>
#include <unordered_set>

#include "../cpu_time.h"
#include "elf/image.h"
#include "elf_workshop.h"
#include "executed.h"
#include "process/maps.h"

namespace speedbump::elf {
namespace {

using testing::HasSubstr;

class PlacementTest : public testing::Test {
  protected:
    // Assembles the text into a library; `f` is the function that is asked for.
    Result<ProbeSite> try_place(const std::string& text, const PlacementOptions& options = {},
                                const std::string& flags = "-shared") {
        shop_.write(
            "f.s",
            "        .text\n        .globl f\n        .hidden f\n        .type f, @function\n" +
                text + "\n        .section .note.GNU-stack,\"\",@progbits\n");
        shop_.run("gcc " + flags + " -nostdlib f.s -o f.so");
        file_ = shop_.open("f.so");
        const Function* found = find_function(*file_, "f");
        if (found == nullptr) {
            ADD_FAILURE() << "no function f";
            return make_error(ErrorKind::kNotFound, "f");
        }
        entry_ = found->file_offset;
        return place_probe(*file_, entry_, options);
    }
    ProbeSite place(const std::string& text, const PlacementOptions& options = {},
                    const std::string& flags = "-shared") {
        auto site = try_place(text, options, flags);
        if (site) return *site;
        ADD_FAILURE() << site.error().message;
        return {};
    }
    void expect_refused(const std::string& text, const std::string& reason,
                        const PlacementOptions& options = {}) {
        auto site = try_place(text, options);
        ASSERT_FALSE(site) << text;
        EXPECT_EQ(site.error().kind, ErrorKind::kUnsupported);
        EXPECT_THAT(site.error().message, HasSubstr(reason)) << text;
    }
    void expect(const ProbeSite& site, uint64_t distance, SiteKind kind,
                const std::string& instruction) {
        EXPECT_EQ(site.file_offset - entry_, distance) << site.reason;
        EXPECT_EQ(site.kind, kind) << site.reason;
        EXPECT_EQ(site.instruction, instruction) << site.reason;
        EXPECT_FALSE(site.reason.empty());
    }

    Workshop shop_;
    std::shared_ptr<const ElfFile> file_;
    uint64_t entry_ = 0;
};

constexpr SiteKind kNop = SiteKind::kOptimizedNop;
constexpr SiteKind kEmulated = SiteKind::kEmulated;
constexpr SiteKind kStepped = SiteKind::kSingleStep;

TEST_F(PlacementTest, EmulatedEntriesStay) {
    expect(place("f: push %rbp\n mov %rsp,%rbp\n pop %rbp\n ret\n .size f,.-f"), 0, kEmulated,
           "push %rbp");
    expect(place("f: push %r12\n pop %r12\n ret\n .size f,.-f"), 0, kEmulated, "push %r12");
    expect(place("f: nop\n ret\n .size f,.-f"), 0, kEmulated, "nop");
    expect(place("f: .byte 0x66,0x90\n ret\n .size f,.-f"), 0, kEmulated, "nop");
    expect(place("f: jmp 1f\n nop\n1: ret\n .size f,.-f"), 0, kEmulated, "jmp 0x1003");
}

TEST_F(PlacementTest, PushBehindEndbr) {
    expect(place("f: endbr64\n push %rbx\n pop %rbx\n ret\n .size f,.-f"), 4, kEmulated,
           "push %rbx");
}

TEST_F(PlacementTest, OnlyTheEntryWhenAsked) {
    PlacementOptions options;
    options.entry_only = true;
    expect(place("f: endbr64\n push %rbx\n pop %rbx\n ret\n .size f,.-f", options), 0, kStepped,
           "endbr64");
}

TEST_F(PlacementTest, ThroughPlainInstructions) {
    expect(place("f: sub $24,%rsp\n lea (%rdi,%rsi),%rax\n mov %rax,(%rsp)\n rep stosb\n"
                 " test %eax,%eax\n je 1f\n nop\n1: add $24,%rsp\n ret\n .size f,.-f"),
           0x10, kEmulated, "jz 0x1013");
}

// What ends the block ends the search: nothing after is executed once for sure.
TEST_F(PlacementTest, NothingBehindTheEndOfTheBlock) {
    for (const char* end :
         {"ret", "syscall", "ud2", "int3", "hlt", "int $3", "jmp *%rax", "call *%rax", "jrcxz 1f",
          "loop 1f", "iretq", "popf", "mov %rax,%fs:8", "xbegin 1f", "rdtsc"})
        expect(place(std::string("f: xor %eax,%eax\n ") + end +
                     "\n push %rbx\n pop %rbx\n ret\n1: ret\n .size f,.-f"),
               0, kStepped, "xor %eax, %eax");
}

TEST_F(PlacementTest, TheEndOfTheBlockItselfMayBeTheSite) {
    PlacementOptions options;
    options.no_shadow_stacks = true;
    for (const char* end : {"call g", "jmp g", "je g", ".byte 0xeb, 0x01"}) {
        ProbeSite site =
            place(std::string("f: xor %eax,%eax\n ") + end + "\n nop\n ret\n .size f,.-f\n g: ret",
                  options);
        EXPECT_EQ(site.file_offset - entry_, 2u) << end;
        EXPECT_EQ(site.kind, kEmulated) << end;
    }
}

// Kernels differ on these, or got them wrong.
TEST_F(PlacementTest, DoubtfulEncodingsAreNoSites) {
    for (const char* bytes :
         {"0x41,0x90", "0x48,0x90", "0x40,0x50", "0x66,0x50", "0x48,0x50", "0xff,0xf0",
          "0x0f,0x1f,0x00", "0x66,0x0f,0x1f,0x44,0x00,0x00", "0xf3,0x90"})
        expect(place(std::string("f: xor %eax,%eax\n .byte ") + bytes + "\n ret\n .size f,.-f"), 0,
               kStepped, "xor %eax, %eax");
    for (const char* bytes : {"0x66,0xe8,0,0,0,0", "0xf2,0xe9,0,0,0,0", "0x2e,0x74,0"})
        expect(place(std::string("f: xor %eax,%eax\n .byte ") + bytes + "\n ret\n .size f,.-f"), 0,
               kStepped, "xor %eax, %eax");
}

TEST_F(PlacementTest, OptimizedNopWhereTheKernelHasIt) {
    PlacementOptions options;
    options.kernel_optimizes_nop5 = true;
    options.nop5_is_safe = true;
    const std::string at_entry = "f: nopl 0(%rax,%rax,1)\n push %rbx\n ret\n .size f,.-f";
    const std::string nop5 = ".byte 0x0f,0x1f,0x44,0,0\n";
    const std::string entry = "f: " + nop5 + " push %rbx\n pop %rbx\n ret\n .size f,.-f";
    EXPECT_EQ(place(entry, options).kind, kNop);
    EXPECT_EQ(place(entry).kind, kEmulated) << "the push after it, unless it is known to be safe";
    ProbeSite site =
        place("f: endbr64\n " + nop5 + " push %rbx\n pop %rbx\n ret\n .size f,.-f", options);
    EXPECT_EQ(site.file_offset - entry_, 4u) << "right after the endbr64";
    EXPECT_EQ(site.kind, kNop);
    // Anywhere else a leaf function may keep data below the stack pointer, where a call pushes.
    expect(place("f: endbr64\n mov %rdi,-8(%rsp)\n mov %rsi,-16(%rsp)\n " + nop5 +
                     " mov -8(%rsp),%rax\n add -16(%rsp),%rax\n ret\n .size f,.-f",
                 options),
           0, kStepped, "endbr64");
    site = place("        .balign 4096\n .skip 4093\nf: " + nop5 +
                     " push %rbx\n pop %rbx\n ret\n .size f,.-f",
                 options);
    EXPECT_EQ(site.kind, kEmulated) << "a nop across two pages is not rewritten";
    EXPECT_EQ(site.file_offset, entry_);
}

TEST_F(PlacementTest, LoopHeadRightBehindEndbr) {
    expect(place("f: endbr64\n1: push %rbx\n pop %rbx\n dec %edi\n jne 1b\n ret\n .size f,.-f"), 0,
           kStepped, "endbr64");
}

TEST_F(PlacementTest, LoopHeadBehindTheSiteDoesNotMatter) {
    expect(place("f: endbr64\n push %rbx\n1: dec %edi\n jne 1b\n pop %rbx\n ret\n .size f,.-f"), 4,
           kEmulated, "push %rbx");
}

// Jumping to the very entry is a call of it, as far as counting goes: both places see it once.
TEST_F(PlacementTest, LoopToTheEntryItself) {
    expect(place("f: endbr64\n push %rbx\n pop %rbx\n dec %edi\n jne f\n ret\n .size f,.-f"), 4,
           kEmulated, "push %rbx");
}

TEST_F(PlacementTest, SiteBeforeTheTarget) {
    expect(place("f: endbr64\n push %rbx\n mov %rdi,%rbx\n1: push %rax\n pop %rax\n dec %ebx\n"
                 " jne 1b\n pop %rbx\n ret\n .size f,.-f"),
           4, kEmulated, "push %rbx");
}

TEST_F(PlacementTest, EveryDirectBranchFromAnotherFunctionCounts) {
    for (const char* jump : {"jmp f+4", "call f+4", "je f+4", "jmp f+5", "call f+5", "jne f+5",
                             "loop f+4", "jrcxz f+5", ".byte 0xe9\n .long f+4-.-4",
                             ".byte 0x0f,0x8f\n .long f+4-.-4", "xbegin f+4"}) {
        ProbeSite site =
            place(std::string("f: endbr64\n mov %edi,%eax\n push %rbx\n pop %rbx\n ret\n"
                              " .size f,.-f\n .globl g\n .type g,@function\ng: ") +
                  jump + "\n ret\n .size g,.-g");
        EXPECT_EQ(site.file_offset, entry_) << jump;
        EXPECT_THAT(site.reason, HasSubstr("jump past")) << jump;
    }
}

// Even a jump that hides in an immediate.
TEST_F(PlacementTest, JumpInsideAnotherInstruction) {
    ProbeSite site = place(
        "f: endbr64\n push %rbx\n pop %rbx\n ret\n .size f,.-f\n"
        "g: movabs $0x90909090909090eb,%rax\n ret\n"
        "h: .byte 0xb8, 0xeb, f+4-.-1, 0x90, 0x90\n ret\n");
    EXPECT_EQ(site.file_offset, entry_);
}

TEST_F(PlacementTest, JumpTableToBehindThePrologue) {
    auto text = [](const std::string& prefix, const std::string& second) {
        return "f: endbr64\n mov %edi,%eax\n1: push %rbx\n pop %rbx\n ret\n .size f,.-f\n"
               " .globl g\n .type g,@function\n"
               "g: lea table(%rip),%rdx\n movslq (%rdx,%rdi,4),%rax\n add %rdx,%rax\n " +
               prefix +
               " jmp *%rax\n2: ret\n .size g,.-g\n"
               " .section .rodata\n .balign 4\ntable: .long 2b-table\n .long " +
               second + "-table\n";
    };
    ProbeSite site = place(text("notrack", "1b"));
    EXPECT_EQ(site.file_offset, entry_);
    EXPECT_THAT(site.reason, HasSubstr("table"));
    site = place(text("", "2b"));
    EXPECT_EQ(site.file_offset, entry_ + 6);
}

TEST_F(PlacementTest, OwnJumpTable) {
    auto text = [](const std::string& last) {
        return "f: endbr64\n push %rbx\n lea table(%rip),%rdx\n movslq (%rdx,%rdi,4),%rax\n"
               " add %rdx,%rax\n jmp *%rax\n2: pop %rbx\n ret\n .size f,.-f\n"
               " .section .rodata\n .balign 4\n .long 0x7fffffff\ntable: .long 2b-table\n"
               " .long 0x7fffffff\n .long " +
               last + "-table\n";
    };
    expect(place(text("2b")), 4, kEmulated, "push %rbx");
    // Behind an entry that leads nowhere: still within what the function could reach.
    ProbeSite site = place(text("(f+4)"));
    EXPECT_EQ(site.file_offset, entry_);
}

TEST_F(PlacementTest, JumpThroughARegisterToNobodyKnowsWhere) {
    ProbeSite site = place("f: endbr64\n push %rbx\n add %rdi,%rsi\n jmp *%rsi\n .size f,.-f");
    EXPECT_EQ(site.file_offset, entry_);
    EXPECT_THAT(site.reason, HasSubstr("register"));
}

// The pointer that is loaded is some function's address, and all addresses in the file are known.
TEST_F(PlacementTest, TailCallThroughMemory) {
    expect(place("f: endbr64\n push %rbx\n pop %rbx\n mov (%rdi),%rax\n jmp *16(%rax)\n"
                 " .size f,.-f"),
           4, kEmulated, "push %rbx");
}

TEST_F(PlacementTest, ComputedGotoByAddressesAndByDistances) {
    const std::string body =
        "f: endbr64\n mov %edi,%eax\n1: push %rbx\n pop %rbx\n ret\n"
        " .size f,.-f\n";
    ProbeSite site = place(body + " .data\n .quad 1b\n");
    EXPECT_EQ(site.file_offset, entry_);
    EXPECT_THAT(site.reason, HasSubstr("pointer"));
    site = place(body + " .data\n .quad 1b\n", {}, "-shared -Wl,-z,pack-relative-relocs");
    EXPECT_EQ(site.file_offset, entry_);
    site = place(body + "g: lea 1b(%rip),%rax\n jmp *%rax\n");
    EXPECT_EQ(site.file_offset, entry_);
    EXPECT_THAT(site.reason, HasSubstr("address of code"));
}

TEST_F(PlacementTest, FixedAddresses) {
    const std::string body =
        ".globl _start\n_start: ret\nf: endbr64\n mov %edi,%eax\n1: push %rbx\n pop %rbx\n"
        " ret\n .size f,.-f\n";
    expect(place(body, {}, "-no-pie"), 6, kEmulated, "push %rbx");
    EXPECT_EQ(place(body + "g: mov $1b,%eax\n jmp *%rax\n", {}, "-no-pie").file_offset, entry_);
    EXPECT_EQ(place(body + " .section .rodata\n .byte 0\n .quad 1b\n", {}, "-no-pie").file_offset,
              entry_);
}

TEST_F(PlacementTest, AnotherSymbolBehindTheEntry) {
    ProbeSite site = place(
        "f: endbr64\n mov %edi,%eax\n .globl inner\ninner: push %rbx\n"
        " pop %rbx\n ret\n .size f,.-f");
    EXPECT_EQ(site.file_offset, entry_);
    EXPECT_THAT(site.reason, HasSubstr("symbol"));
    site = place("f: endbr64\n mov %edi,%eax\nlocal: push %rbx\n pop %rbx\n ret\n .size f,.-f");
    EXPECT_EQ(site.file_offset, entry_) << "a local label counts as well";
}

TEST_F(PlacementTest, ColdPartThatJumpsBack) {
    ProbeSite site = place(
        "f: endbr64\n test %edi,%edi\n1: push %rbx\n pop %rbx\n ret\n"
        " .size f,.-f\n .section .text.unlikely,\"ax\",@progbits\n"
        " .type f.cold,@function\nf.cold: nop\n jmp 1b\n .size f.cold,.-f.cold");
    EXPECT_EQ(site.file_offset, entry_);
}

// One function around all others must not be decoded, nor searched for, anew for each of them.
TEST_F(PlacementTest, ManyFunctionsInsideOfOne) {
    constexpr int kMany = 20'000;
    const auto took = [this](bool is_nested) {
        std::string text = " .type outer,@function\nouter: ret\n";
        if (!is_nested) text += " .size outer,.-outer\n";
        for (int i = 0; i < kMany; ++i) {
            const std::string name = "inner" + std::to_string(i);
            text +=
                " .type " + name + ",@function\n nop\n" + name + ": nop\n .size " + name + ",1\n";
        }
        if (is_nested) text += " .size outer,.-outer\n";
        shop_.write("many.s", " .text\n" + text + " .section .note.GNU-stack,\"\",@progbits\n");
        shop_.run("gcc -shared -nostdlib many.s -o many.so");
        const auto file = shop_.open("many.so");
        std::vector<uint64_t> entries;
        for (const Function& function : file->functions())
            if (function.names.front().starts_with("inner"))
                entries.push_back(function.file_offset);
        EXPECT_EQ(entries.size(), static_cast<size_t>(kMany));
        PlacementOptions options;
        options.entry_only = true;
        const std::clock_t start = std::clock();
        const auto sites = place_probes(*file, entries, options);
        const std::clock_t end = std::clock();
        for (const auto& site : sites) EXPECT_TRUE(site) << site.error().message;
        return end - start;
    };
    const std::clock_t apart = took(false);
    EXPECT_LT(took(true), 10 * apart);
}

TEST_F(PlacementTest, NoSizeNoMove) {
    ProbeSite site = place("f: endbr64\n push %rbx\n pop %rbx\n ret\n");
    EXPECT_EQ(site.file_offset, entry_);
    EXPECT_THAT(site.reason, HasSubstr("extent"));
}

TEST_F(PlacementTest, NeverBehindTheEndOfTheFunction) {
    expect(place("f: xor %eax,%eax\n .size f,.-f\n push %rbx\n ret\n"), 0, kStepped,
           "xor %eax, %eax");
}

TEST_F(PlacementTest, OffsetsThatAreNoFunction) {
    place(
        "f: endbr64\n push %rbx\n pop %rbx\n ret\n .size f,.-f\n"
        "g: .cfi_startproc\n push %rbx\n ret\n .cfi_endproc\n");
    uint64_t entries[] = {entry_ + 4, 0, UINT64_MAX, entry_, entry_ + 7};
    auto sites = place_probes(*file_, entries, {});
    ASSERT_EQ(sites.size(), 5u);
    ASSERT_FALSE(sites[0]);
    EXPECT_THAT(sites[0].error().message, HasSubstr("nothing proves"));
    ASSERT_FALSE(sites[1]);
    ASSERT_FALSE(sites[2]);
    EXPECT_THAT(sites[2].error().message, HasSubstr("no code"));
    ASSERT_TRUE(sites[3]);
    EXPECT_EQ(sites[3]->file_offset, entry_ + 4);
    ASSERT_TRUE(sites[4]) << sites[4].error().message;
    EXPECT_EQ(sites[4]->file_offset, entry_ + 7) << "unwind information begins there";
}

// What the kernel gets wrong or refuses is left for the next instruction of the block.
TEST_F(PlacementTest, MovesOffWhatMayNotBeProbed) {
    for (const char* first :
         {"vmovd %xmm0,%eax", "vmovdqu %xmm0,-32(%rsp)", "vpbroadcastb %esi,%zmm16", "rep stosb",
          "lock incl (%rdi)", "mfence", "fldz"}) {
        ProbeSite site = place(std::string("f: ") + first +
                               "\n mov %edi,%eax\n push %rbx\n pop %rbx\n ret\n .size f,.-f");
        EXPECT_EQ(site.instruction, "push %rbx") << first;
        EXPECT_EQ(site.kind, kEmulated) << first;
        site = place(std::string("f: ") + first + "\n mov %edi,%eax\n ret\n .size f,.-f");
        EXPECT_EQ(site.instruction, "mov %edi, %eax") << first;
        EXPECT_EQ(site.kind, kStepped) << first;
        EXPECT_THAT(site.reason, HasSubstr("bytes after the entry, as ")) << first;
    }
}

TEST_F(PlacementTest, RefusedWhereNothingElseWillDo) {
    expect_refused("f: vmovd %xmm0,%eax\n vzeroupper\n syscall\n ret\n .size f,.-f",
                   "its first instruction vmovd %xmm0, %eax is of a kind that the kernel's uprobes "
                   "get wrong, and no other instruction that every call passes once may be probed");
    expect_refused("f: vmovd %xmm0,%eax\n1: dec %edi\n jne 1b\n ret\n .size f,.-f",
                   "and something may jump past its first instruction");
    expect_refused("f: ud2\n .size f,.-f", "its first instruction ud2 is not on the list");
    expect_refused("f: vzeroupper\n push %rbx\n ret\n", "the extent of the function");
    PlacementOptions options;
    options.entry_only = true;
    expect_refused("f: vzeroupper\n push %rbx\n ret\n .size f,.-f", "no other place was asked for",
                   options);
    expect_refused("f: mov $15,%eax\n syscall\n .size f,.-f", "unwinders");
    expect_refused("f: mov $15,%rax\n syscall\n .size f,.-f", "unwinders");
}

TEST_F(PlacementTest, NothingIsMovedIntoARestartableSequence) {
    const std::string section =
        " .section __rseq_cs,\"aw\"\n .balign 32\n .long 0,0\n .quad f,4,f\n .text\n";
    expect(place("f: endbr64\n push %rbx\n pop %rbx\n ret\n .size f,.-f\n" + section), 0, kStepped,
           "endbr64");
    expect_refused("f: vzeroupper\n push %rbx\n pop %rbx\n ret\n .size f,.-f\n" + section,
                   "restartable");
}

// Data of hand-written assembly, or a label that jumps over a prefix.
TEST_F(PlacementTest, SymbolsMustBeProvenToBeCode) {
    const std::string text = "f: ret\n .size f,.-f\n .globl u\nu: ";
    place(text + "push %rbx\n pop %rbx\n ret\n");
    auto site = place_probe(*file_, find_function(*file_, "u")->file_offset, {});
    ASSERT_FALSE(site);
    EXPECT_THAT(site.error().message, HasSubstr("nothing proves"));
    place(text + ".cfi_startproc\n push %rbx\n pop %rbx\n ret\n .cfi_endproc\n");
    site = place_probe(*file_, find_function(*file_, "u")->file_offset, {});
    ASSERT_TRUE(site) << site.error().message;
    EXPECT_EQ(site->instruction, "push %rbx");
    expect_refused(
        ".type g, @function\ng: xor %eax,%eax\n .byte 0xb8\nf: push %rbp\n nop\n nop\n nop\n"
        " ret\n .size f,.-f\n .size g,.-g\n",
        "in the middle of an instruction of g");
    expect(place(".type g, @function\ng: xor %eax,%eax\nf: push %rbp\n pop %rbp\n"
                 " ret\n .size f,.-f\n .size g,.-g\n"),
           0, kEmulated, "push %rbp");
    PlacementOptions options;
    options.kernel_optimizes_nop5 = true;
    options.nop5_is_safe = true;
    expect_refused(
        ".type g, @function\ng: mov %rdi,-8(%rsp)\nf: .byte 0x0f,0x1f,0x44,0,0\n ret\n"
        " .size f,5\n .size g,.-g\n",
        "rewritten", options);
}

// A stripped file: the extent of what an IFUNC stands for is that of its unwind information.
TEST_F(PlacementTest, ExtentFromUnwindInformation) {
    place(
        "f: ret\n .size f,.-f\n"
        "g: .cfi_startproc\n vzeroupper\n push %rbx\n pop %rbx\n ret\n .cfi_endproc\n");
    auto site = place_probe(*file_, entry_ + 1, {});
    ASSERT_TRUE(site) << site.error().message;
    EXPECT_EQ(site->file_offset, entry_ + 4);
    EXPECT_EQ(site->instruction, "push %rbx");
}

// The sites of every function of a file that has one.
struct Placed {
    std::vector<uint64_t> entries;
    std::vector<ProbeSite> sites;
    std::map<std::string, size_t> refused; // by reason
};

Placed place_all(const ElfFile& file) {
    Placed placed;
    for (const Function& function : file.functions())
        placed.entries.push_back(function.file_offset);
    const std::vector<uint64_t> all = std::move(placed.entries);
    placed.entries.clear();
    PlacementOptions options;
    options.no_shadow_stacks = true;
    auto sites = place_probes(file, all, options);
    for (size_t i = 0; i < all.size(); ++i) {
        if (!sites[i]) {
            ++placed.refused[sites[i].error().message];
            continue;
        }
        placed.entries.push_back(all[i]);
        placed.sites.push_back(std::move(*sites[i]));
    }
    return placed;
}

// Holds what was chosen in a real binary against another disassembler.
void compare_with_objdump(const std::string& path) {
    if (!std::filesystem::exists(path)) {
        std::printf("%s: not here, skipped\n", path.c_str());
        return;
    }
    auto file = Workshop::try_open(path);
    ASSERT_TRUE(file) << file.error().message;
    size_t code_bytes = 0;
    for (const Segment& segment : (*file)->segments())
        if (segment.executable) code_bytes += segment.file_size;
    auto start = CpuClock::now();
    Placed placed = place_all(**file);
    std::chrono::duration<double> took = CpuClock::now() - start;
    size_t kinds[3] = {};
    size_t moved = 0;
    std::map<std::string, size_t> reasons;
    for (size_t i = 0; i < placed.sites.size(); ++i) {
        ++kinds[static_cast<size_t>(placed.sites[i].kind)];
        moved += placed.sites[i].file_offset != placed.entries[i];
        if (placed.sites[i].kind == kStepped) ++reasons[placed.sites[i].reason];
    }
    double all = static_cast<double>(std::max<size_t>(placed.sites.size(), 1));
    std::printf(
        "%s: %zu functions, emulated %.1f%% (moved there %.1f%%), single-stepped %.1f%%; "
        "%.0f ms for %.1f MB of code\n",
        path.c_str(), placed.sites.size(), 100.0 * static_cast<double>(kinds[1]) / all,
        100.0 * static_cast<double>(moved) / all, 100.0 * static_cast<double>(kinds[2]) / all,
        took.count() * 1e3, static_cast<double>(code_bytes) * 1e-6);
    for (const auto& [reason, count] : reasons)
        std::printf("    %6zu  %s\n", count, reason.c_str());
    for (const auto& [reason, count] : placed.refused)
        std::printf("    %6zu  refused: %s\n", count, reason.c_str());

    std::unordered_set<uint64_t> boundaries;
    std::set<uint64_t> targets;
    FILE* listing = ::popen(("objdump -d --no-show-raw-insn -w '" + path + "'").c_str(), "r");
    ASSERT_NE(listing, nullptr);
    char line[4096];
    while (std::fgets(line, sizeof line, listing) != nullptr) {
        unsigned long long address = 0, target = 0;
        char mnemonic[64];
        int fields = std::sscanf(line, " %llx:\t%63s %llx", &address, mnemonic, &target);
        if (fields < 2) continue;
        boundaries.insert(address);
        std::string_view name = mnemonic;
        if (name == "bnd" || name == "notrack") {
            fields = std::sscanf(line, " %*[0-9a-f]:\t%*s %63s %llx", mnemonic, &target) + 1;
            name = mnemonic;
        }
        if (fields >= 3 && (name.starts_with('j') || name.starts_with("call") ||
                            name.starts_with("loop") || name == "xbegin"))
            targets.insert(target);
    }
    ASSERT_EQ(::pclose(listing), 0);
    ASSERT_GT(boundaries.size(), 1000u);
    for (size_t i = 0; i < placed.sites.size(); ++i) {
        if (placed.sites[i].file_offset == placed.entries[i]) continue;
        uint64_t entry = *(*file)->address_of_offset(placed.entries[i]);
        uint64_t site = *(*file)->address_of_offset(placed.sites[i].file_offset);
        EXPECT_TRUE(boundaries.contains(site)) << path << std::hex << " " << entry << " " << site;
        auto between = targets.upper_bound(entry);
        EXPECT_FALSE(between != targets.end() && *between <= site)
            << path << std::hex << ": function " << entry << " site " << site << " jump to "
            << *between;
    }
}

TEST(PlacementReal, AgreesWithObjdump) {
    const std::string libraries = "/usr/lib/x86_64-linux-gnu/";
    for (const std::string& path :
         {libraries + "libc.so.6", libraries + "libstdc++.so.6", libraries + "libcrypto.so.3",
          libraries + "libpython3.11.so.1.0", std::string("/usr/bin/redis-server"),
          std::string("/usr/sbin/nginx"), std::filesystem::read_symlink("/proc/self/exe").string()})
        compare_with_objdump(path);
}

// What objdump calls the instructions that may be sites: written down apart from the list that
// judge_site has, for another disassembler.
bool is_known_text(const std::string& text) {
    static const std::regex known(
        "(repz )?ret|ret *\\$0x[0-9a-f]+|leave|nop|xchg *%ax,%ax|nopl *0x0\\(%rax(,%rax,1)?\\)|"
        "nopl *\\(%rax\\)|endbr64|(jmp|call) *\\*?[-%()0-9a-fx,a-z]+( *#.*)?|"
        "j(o|no|b|ae|e|ne|be|a|s|ns|p|np|l|ge|le|g) *0x[0-9a-f]+|c[wlq]t[ldqo]|cqto|"
        "(mov|movabs|lea|push|pop|add|sub|adc|sbb|and|or|xor|cmp|test|not|neg|inc|dec|i?mul|i?div|"
        "sh[lr]d?|sa[lr]|ro[lr]|bt[src]?|bs[fr])[bwlq]? .*|bswap .*|mov[sz](b|w|l)[wlq]? .*|"
        "movslq .*|(set|cmov)(o|no|b|ae|e|ne|be|a|s|ns|p|np|l|ge|le|g) .*|"
        "mov(aps|apd|ups|upd|dqa|dqu|ss|sd|d|q|hps|hpd|lps|lpd|hlps|lhps|mskps|mskpd) .*%xmm.*|"
        "(add|sub|mul|div|sqrt)(ss|sd|ps|pd) .*|(min|max)s[sd] .*|(and|andn|or|xor)p[sd] .*|"
        "u?comis[sd] .*|cmp[a-z]*(ss|sd|ps|pd) .*%xmm.*|cvt[a-z0-9]+ .*%xmm.*|cvtt?s[sd]2si .*|"
        "(shuf|unpckl|unpckh)p[sd] .*|p[a-z]+ .*%xmm.*");
    static const std::regex bad(
        ".*(%[yz]mm|%k[0-7]|%mm[0-7]|%st|%[cdefgs]s([,)].*|$)|%[cdes]s:|%[er]ip.*%[fg]s:|addr32|"
        "data16|"
        "rex|lock|bnd|notrack|cs "
        ").*|(?!cmp|test).*,%[fg]s:.*|(not|neg|inc|dec|set[a-z]+|pop)[bwlq]? "
        "*%[fg]s:.*|"
        "cvt.*%mm.*");
    return std::regex_match(text, known) && !std::regex_match(text, bad);
}

// Of all functions of all libraries and programs of this host: the distinct instructions of their
// sites, each in 16 bytes, are given to objdump at once.
TEST(PlacementReal, EverySiteIsOfAKnownForm) {
    std::set<std::basic_string<unsigned char>> sites;
    std::set<std::filesystem::path> files;
    size_t functions = 0, refused = 0, looked_at = 0;
    for (const char* folder : {"/usr/lib/x86_64-linux-gnu", "/usr/bin", "/usr/sbin"})
        for (const auto& file : std::filesystem::directory_iterator(folder))
            if (std::error_code error; std::filesystem::is_regular_file(file, error))
                files.insert(std::filesystem::canonical(file));
    PlacementOptions options;
    options.kernel_optimizes_nop5 = true;
    options.nop5_is_safe = true;
    options.no_shadow_stacks = true;
    for (const std::filesystem::path& path : files) {
        Fd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
        if (!fd.valid()) continue;
        const auto file = ElfFile::open(fd.get(), path);
        if (!file) continue; // a script, an archive
        ++looked_at;
        std::vector<uint64_t> entries;
        for (const Function& function : (*file)->functions())
            entries.push_back(function.file_offset);
        functions += entries.size();
        for (const auto& site : place_probes(**file, entries, options)) {
            refused += !site;
            if (!site) continue;
            auto code = (*file)->code_at(site->file_offset, 16);
            const SiteVerdict verdict = judge_site(code, 0, options, SitePosition::kEntry);
            sites.emplace(code.substr(0, verdict.length));
        }
    }
    Workshop shop;
    std::string image;
    for (const auto& site : sites) {
        image.append(reinterpret_cast<const char*>(site.data()), site.size());
        image.append(16 - site.size(), '\x90');
    }
    shop.write("sites.bin", image);
    shop.run("objdump -D -b binary -m i386:x86-64 -w --no-show-raw-insn sites.bin >sites.txt");
    std::ifstream listing(shop.path("sites.txt"));
    size_t seen = 0;
    for (std::string line; std::getline(listing, line);) {
        unsigned long long address = 0;
        int start = 0;
        if (line.find('\t') == std::string::npos ||
            std::sscanf(line.c_str(), " %llx:\t%n", &address, &start) != 1 || address % 16 != 0)
            continue;
        std::string text = line.substr(static_cast<size_t>(start));
        text.erase(text.find_last_not_of(' ') + 1);
        ++seen;
        EXPECT_TRUE(is_known_text(text)) << text;
    }
    EXPECT_EQ(seen, sites.size());
    std::printf("%zu files, %zu functions, %zu refused, %zu distinct instructions\n", looked_at,
                functions, refused, sites.size());
    EXPECT_GT(sites.size(), 1000u);
}

// Every function that was entered must have passed its site exactly as often.
void compare_with_execution(const std::vector<std::string>& arguments) {
    SCOPED_TRACE(arguments[0]);
    const Executed executed = execute_by_steps(arguments);
    size_t functions = 0, calls = 0;
    std::set<std::string> done;
    for (const process::Mapping& mapping : executed.mappings) {
        if (!mapping.executable || !done.insert(mapping.path).second) continue;
        auto file = Workshop::try_open(mapping.path);
        ASSERT_TRUE(file) << file.error().message;
        Placed placed = place_all(**file);
        for (size_t i = 0; i < placed.sites.size(); ++i) {
            uint64_t offset = placed.sites[i].file_offset;
            if (offset == placed.entries[i] || offset < mapping.file_offset ||
                offset - mapping.file_offset >= mapping.end - mapping.start)
                continue;
            uint64_t entries =
                executed.times(mapping.start + placed.entries[i] - mapping.file_offset);
            uint64_t passes = executed.times(mapping.start + offset - mapping.file_offset);
            EXPECT_EQ(entries, passes) << mapping.path << std::hex << " " << placed.entries[i];
            functions += entries > 0;
            calls += entries;
        }
    }
    EXPECT_GT(functions, 20u);
    std::printf("%s: %zu instructions stepped, %zu calls of %zu functions with a moved probe\n",
                arguments[0].c_str(), static_cast<size_t>(executed.steps), calls, functions);
}

TEST(PlacementReal, AgreesWithExecution) {
    compare_with_execution({"/bin/true"});
    compare_with_execution({"/bin/echo", "1"});
}

// The whole way through the compilers, at every level.
TEST_F(PlacementTest, CompiledCode) {
    shop_.write("c.c", R"(
        extern int other(int);
        __attribute__((noinline)) int small(int a) { return a * 3; }
        __attribute__((noinline)) int loop(int n) { int s = 0; while (n-- > 0) s += other(n); return s; }
        __attribute__((noinline)) int choose(int n) {
            switch (n) {
                case 0: return other(1); case 1: return other(5) + 2; case 2: return other(n) * 3;
                case 3: return small(n) - 4; case 4: return other(7) ^ 5; case 5: return n * 6;
                case 6: return other(9) - 9; default: return -1;
            }
        }
        __attribute__((noinline)) int interpret(const unsigned char *p) {
            static void *const labels[] = {&&stop, &&add, &&sub, &&again};
            int s = other(3);
        again: goto *labels[*p++];
        add: s += other(*p); goto *labels[*p++];
        sub: s -= other(*p); goto *labels[*p++];
        stop: return s;
        }
        __attribute__((noinline)) int deep(int n) { return n < 2 ? n : deep(n - 1) + deep(n - 2); }
        __attribute__((noinline)) int other(int x) { return x ^ 0x55; }
        int main(void) {
            static const unsigned char code[] = {1, 2, 1, 3, 3, 2, 1, 0};
            int s = 0;
            for (int i = 0; i < 8; ++i) s += choose(i) + loop(i) + small(i);
            s += interpret(code) + deep(8);
            return s == 12345;
        })");
    for (const char* compiler : {"gcc", "clang"}) {
        for (const char* level : {"-O0", "-O1", "-O2", "-O3", "-Os"}) {
            for (const char* kind : {"-fPIE -pie", "-fno-pie -no-pie", "-fcf-protection=full"}) {
                SCOPED_TRACE(std::string(compiler) + " " + level + " " + kind);
                shop_.run(std::string(compiler) + " -w " + level + " " + kind + " c.c -o c.out");
                auto file = shop_.open("c.out");
                const Function* choose = find_function(*file, "choose");
                ASSERT_NE(choose, nullptr);
                Placed placed = place_all(*file);
                EXPECT_EQ(placed.sites.size(), file->functions().size())
                    << placed.refused.begin()->first;
            }
        }
        shop_.run(std::string(compiler) + " -w -O2 -fcf-protection=full -static c.c -o c.out");
        compare_with_execution({shop_.path("c.out")});
    }
}

} // namespace
} // namespace speedbump::elf
