// SPDX-License-Identifier: MIT
#include "elf/exits.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <ctime>
#include <string>
#include <vector>

#include "elf_workshop.h"
#include "exits_test_case.h"

namespace speedbump::elf {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

class Exits : public ExitsTest {};

TEST_F(Exits, ReturnsAndTailCalls) {
    const auto file = assemble(
        function("two", "test %edi,%edi\njs 1f\nret\n1: push %rbx\npop %rbx\nrepz ret") +
        function("tail", "push %rbx\npop %rbx\njmp two") +
        function("some", "test %edi,%edi\njne two\nret") + function("pointer", "jmp *%rax") +
        function("method", "jmp *16(%rdi)") + function("loop", "1: dec %edi\njne 1b\nret"));
    EXPECT_THAT(exits_of(*file, "two"), ElementsAre("ret", "ret"));
    EXPECT_THAT(exits_of(*file, "tail"), ElementsAre("jmp"));
    EXPECT_THAT(exits_of(*file, "some"), ElementsAre("jnz if taken", "ret"));
    EXPECT_THAT(exits_of(*file, "pointer"), ElementsAre("jmp"));
    EXPECT_THAT(exits_of(*file, "method"), ElementsAre("jmp"));
    // Its head is its entry: each turn is a call.
    EXPECT_THAT(exits_of(*file, "loop"), ElementsAre("jnz if taken", "ret"));
}

TEST_F(Exits, ColdPartsWithAndWithoutTheirNames) {
    const std::string code =
        function("with_part", "test %edi,%edi\njs with_part.cold\n1: ret") +
        ".section .text.unlikely,\"ax\",@progbits\n.type with_part.cold, @function\n"
        "with_part.cold:\n.cfi_startproc\npush %rbx\ncall *%rax\npop %rbx\nret\n.cfi_endproc\n"
        ".size with_part.cold, .-with_part.cold\n.text\n";
    const auto file = assemble(code);
    EXPECT_THAT(exits_of(*file, "with_part"), ElementsAre("ret", "ret"));
    workshop_.run("strip --strip-unneeded code.so");
    EXPECT_THAT(exits_of(*workshop_.open("code.so"), "with_part"), ElementsAre("ret", "ret"));
}

TEST_F(Exits, CodeBehindACallThatDoesNotReturnIsNotFollowed) {
    const auto file = assemble(function("fails", "test %edi,%edi\njs 1f\nret\n1: call *%rax") +
                               ".byte 0x06, 0x07\n" + function("next", "ret"));
    EXPECT_THAT(exits_of(*file, "fails"), ElementsAre("ret"));
}

TEST_F(Exits, Tables) {
    const std::string table =
        ".section .rodata\n.Lt: .long .La-.Lt, .Lb-.Lt, .Lc-.Lt\n.long 0x70000000\n.text\n";
    const std::string code =
        "cmp $2,%edi\nja .La\nlea .Lt(%rip),%rdx\nmov %edi,%edi\nmovslq (%rdx,%rdi,4),%rax\n"
        "add %rdx,%rax\njmp *%rax\n.La: ret\n.Lb: mov $1,%eax\nret\n.Lc: jmp *%rsi";
    const auto file = assemble(function("other", "ret") + function("chooses", code) + table);
    // The last one is a tail call, or goes on in the function: that is seen when it happens.
    EXPECT_THAT(exits_of(*file, "chooses"), ElementsAre("ret", "ret", "jmp if it leads out"));
}

// The rest of a table is read although an entry leads to a part that nothing else leads to.
TEST_F(Exits, TablesThatLeadToColdParts) {
    const std::string cold =
        ".section .text.unlikely,\"ax\",@progbits\n.type chooses.cold, @function\n"
        "chooses.cold:\n.cfi_startproc\ncall *%rax\nret\n.cfi_endproc\n"
        ".size chooses.cold, .-chooses.cold\n.text\n";
    const std::string near =
        "lea .Lt(%rip),%rdx\nmovslq (%rdx,%rdi,4),%rax\nadd %rdx,%rax\njmp *%rax\n"
        ".La: ret\n.Lc: mov $1,%eax\nret";
    const std::string table =
        ".section .rodata\n.Lt: .long .La-.Lt, chooses.cold-.Lt, .Lc-.Lt\n.long "
        "0x70000000\n.text\n";
    for (const std::string check : {"cmp $2,%edi\nja .La\n", ""}) {
        const auto file = assemble(function("chooses", check + near) + cold + table);
        EXPECT_THAT(exits_of(*file, "chooses"), ElementsAre("ret", "ret", "ret")) << check;
    }
    const std::string fixed =
        "cmp $2,%rdi\nja .La\njmp *.Lt(,%rdi,8)\n.La: ret\n.Lc: mov $1,%eax\nret";
    workshop_.write("fixed.s", ".text\n" + function("chooses", fixed) + cold +
                                   ".section .rodata\n.Lt: .quad .La, chooses.cold, .Lc, 0\n");
    workshop_.run("as -o fixed.o fixed.s && ld -o fixed fixed.o -e chooses");
    EXPECT_THAT(exits_of(*workshop_.open("fixed"), "chooses"),
                ElementsAre("ret", "jmp if it leads out", "ret", "ret"));
}

// Each place is known only when the one before it has been followed.
TEST_F(Exits, PlacesThatLeadToEachOtherOneByOne) {
    std::string code;
    for (int i = 0; i < 28'000; ++i)
        code += ".Lb" + std::to_string(i) + ": lea .Lb" + std::to_string(i + 1) +
                "(%rip),%rax\njmp *%rax\n";
    const auto file = assemble(function("chain", code + ".Lb28000: ret"));
    const std::clock_t start = std::clock(); // of this process: the machine may be busy
    const auto ways = find(*file, "chain");
    EXPECT_LT(static_cast<double>(std::clock() - start) / CLOCKS_PER_SEC, 5);
}

TEST_F(Exits, RefusedWithTheReason) {
    const auto file =
        assemble(function("forever", "nop\n1: pause\njmp 1b") +
                 function("overlaps", "test %edi,%edi\njs 1f+1\n1: .byte 0xb8,0xc3,0,0,0\nret") +
                 function("leaves", "jmp nobody", false) + "nop\nnobody: ret\n" +
                 function("notable", "notrack jmp *%rax"));
    EXPECT_THAT(refusal_of(*file, "forever"), HasSubstr("never returns"));
    EXPECT_THAT(refusal_of(*file, "overlaps"), HasSubstr("data"));
    EXPECT_THAT(refusal_of(*file, "leaves"), HasSubstr("extent"));
    EXPECT_THAT(refusal_of(*file, "notable"), HasSubstr("table"));
}

// Landing pads lead to returns that nothing jumps to.
TEST_F(Exits, ReturnsBehindExceptionHandlers) {
    workshop_.write("catch.cpp",
                    "int thrower(int);\nextern \"C\" int catches(int n) {\n"
                    "  try { thrower(n); } catch (int code) { return code * 3; }\n"
                    "  for (int i = 0; i < n; ++i) thrower(i);\n  return 4;\n}\n");
    for (const std::string compiler : {"g++", "clang++"}) {
        SCOPED_TRACE(compiler);
        workshop_.run(compiler + " -O2 -fPIC -shared -o catch.so catch.cpp");
        workshop_.run("objdump -d --disassemble=catches catch.so | grep -c '[[:space:]]ret' > n");
        const auto file = workshop_.open("catch.so");
        const size_t returns = std::stoul(Workshop::read(workshop_.path("n")));
        EXPECT_EQ(exits_of(*file, "catches").size(), returns);
    }
}

TEST_F(Exits, StackBetweenEntryAndProbe) {
    const auto file =
        assemble(function("deep", "push %rbp\nmov %rsp,%rbp\nsub $24,%rsp\nnop\nleave\nret"));
    const ExitFinder finder(file, {});
    const uint64_t entry = find_function(*file, "deep")->file_offset;
    EXPECT_EQ(finder.stack_used(entry, entry), 0u);
    EXPECT_EQ(finder.stack_used(entry, entry + 1), 8u);
    EXPECT_EQ(finder.stack_used(entry, entry + 8), 32u);
    EXPECT_EQ(finder.stack_used(entry, entry + 10), std::nullopt); // after leave
    EXPECT_EQ(finder.stack_used(entry, entry + 2), std::nullopt);  // within an instruction
}

} // namespace
} // namespace speedbump::elf
