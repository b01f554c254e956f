// SPDX-License-Identifier: MIT
#include "elf/exits.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <sstream>
#include <string>
#include <vector>

#include "elf_workshop.h"
#include "exits_test_case.h"

namespace speedbump::elf {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

const SiteOptions kNoGuardedStacks{.no_shadow_stacks = true};

class ExitsAarch64 : public ExitsTest {
  protected:
    ExitsAarch64() : ExitsTest(kNoGuardedStacks, "-Bsymbolic") {}
};

TEST_F(ExitsAarch64, ReturnsAndTailCalls) {
    const auto file = assemble(
        function("two",
                 "cbz x0, 1f\nret\n1: stp x29, x30, [sp, #-16]!\nbl two\n"
                 "ldp x29, x30, [sp], #16\nret") +
        function("tail", "add x0, x0, #1\nb two") + function("pointer", "br x1") +
        function("method", "ldr x1, [x0]\nldr x1, [x1, #16]\nbr x1") +
        function("moved", "mov x16, x2\nbr x16") +
        function("loop", "1: subs x0, x0, #1\nnop\nb.ne 2f\nret\n2: tbz x0, #3, 2b\nb two"));
    EXPECT_THAT(exits_of(*file, "two"), ElementsAre("ret", "ret"));
    EXPECT_THAT(exits_of(*file, "tail"), ElementsAre("b"));
    EXPECT_THAT(exits_of(*file, "pointer"), ElementsAre("br"));
    EXPECT_THAT(exits_of(*file, "method"), ElementsAre("br"));
    EXPECT_THAT(exits_of(*file, "moved"), ElementsAre("br"));
    EXPECT_THAT(exits_of(*file, "loop"), ElementsAre("ret", "b"));
    const auto ways = find(*file, "tail");
    ASSERT_TRUE(ways);
    EXPECT_EQ(ways->exits.front().target, find_function(*file, "two")->address);
    EXPECT_FALSE(ways->exits.front().is_return);
}

TEST_F(ExitsAarch64, ColdPartsWithAndWithoutTheirNames) {
    const std::string code =
        function("with_part", "cbz x0, 1f\nret\n1: b with_part.cold") +
        ".section .text.unlikely,\"ax\",@progbits\n.type with_part.cold, %function\n"
        "with_part.cold:\n.cfi_startproc\nbl with_part\nret\n.cfi_endproc\n"
        ".size with_part.cold, .-with_part.cold\n.text\n";
    const auto file = assemble(code);
    EXPECT_THAT(exits_of(*file, "with_part"), ElementsAre("ret", "ret"));
    workshop_.run("strip --strip-unneeded code.so");
    EXPECT_THAT(exits_of(*workshop_.open("code.so"), "with_part"), ElementsAre("ret", "ret"));
}

TEST_F(ExitsAarch64, CodeBehindACallThatDoesNotReturnIsNotFollowed) {
    const auto file = assemble(function("fails", "cbz x0, 1f\nret\n1: bl next") +
                               ".word 0xd65f03c0\n" + function("next", "ret") +
                               function("traps", "cbz x0, 1f\nret\n1: brk #0\n.word 0xd65f03c0"));
    EXPECT_THAT(exits_of(*file, "fails"), ElementsAre("ret"));
    EXPECT_THAT(exits_of(*file, "traps"), ElementsAre("ret"));
}

// As GCC and Clang write them: distances in instructions, of 1, 2 and 4 bytes, from a place in the
// code; and in bytes, from the table.
TEST_F(ExitsAarch64, Tables) {
    const std::string cases = ".La: ret\n.Lb: mov w0, #1\nret\n.Lc: mov w0, #2\nret";
    const auto with = [&](const std::string& load, const std::string& sum, const std::string& entry,
                          const std::string& base) {
        const std::string place = base == ".Lt" ? "" : "adr x1, " + base + "\n";
        const std::string code =
            function("chooses", "cmp w0, #2\nb.hi .La\nadrp x1, .Lt\nadd x1, x1, #:lo12:.Lt\n" +
                                    load + "\n" + place + sum + "\nbr x0\n" + cases);
        const auto distance = [&](const std::string& label) {
            return base == ".Lt" ? label + " - .Lt" : "(" + label + " - " + base + ") / 4";
        };
        return assemble(code + ".section .rodata\n.Lt: " + entry + " " + distance(".La") + ", " +
                        distance(".Lb") + ", " + distance(".Lc") + "\n" + entry +
                        " 0x70, 0x71\n.text\n");
    };
    const auto all = ElementsAre("ret", "ret", "ret");
    EXPECT_THAT(
        exits_of(*with("ldrb w0, [x1, w0, uxtw]", "add x0, x1, w0, sxtb #2", ".byte", ".Lb"),
                 "chooses"),
        all);
    EXPECT_THAT(
        exits_of(*with("ldrh w0, [x1, w0, uxtw #1]", "add x0, x1, w0, sxth #2", ".2byte", ".Lc"),
                 "chooses"),
        all);
    EXPECT_THAT(
        exits_of(*with("ldr w0, [x1, w0, uxtw #2]", "add x0, x1, w0, sxtw #2", ".4byte", ".Lb"),
                 "chooses"),
        all);
    EXPECT_THAT(
        exits_of(*with("ldrb w0, [x1, x0]", "add x0, x1, x0, lsl #2", ".byte", ".La"), "chooses"),
        all);
    EXPECT_THAT(
        exits_of(*with("ldrsw x0, [x1, x0, lsl #2]", "add x0, x1, x0", ".4byte", ".Lt"), "chooses"),
        all);
}

// "cmp; b.ls" leads to the jump; then its bound holds where nothing else leads there.
TEST_F(ExitsAarch64, TablesBehindABranch) {
    const std::string jump =
        "adrp x1, .Lt\nadd x1, x1, #:lo12:.Lt\nldrb w0, [x1, w0, uxtw]\nadr x1, .La\n"
        "add x0, x1, w0, sxtb #2\nbr x0\n.La: ret\n";
    const std::string table = ".section .rodata\n.Lt: .byte 0, 0, 0\n.text\n";
    const auto alone =
        assemble(function("chooses", "cmp w0, #2\nb.ls 1f\nret\n1: " + jump) + table);
    EXPECT_THAT(exits_of(*alone, "chooses"), ElementsAre("ret", "ret"));
    const auto before =
        assemble(function("chooses", "cmp w0, #2\nb.ls 1f\ncbz x2, 1f\nret\n1: " + jump) + table);
    EXPECT_THAT(refusal_of(*before, "chooses"), HasSubstr("table that was not found"));
    const auto falls =
        assemble(function("chooses", "cmp w0, #2\nb.ls 1f\nnop\n1: " + jump) + table);
    EXPECT_THAT(refusal_of(*falls, "chooses"), HasSubstr("table that was not found"));
}

// A file that somebody made for this costs no more than it may: 5,000 jumps, each through 4,096
// entries.
TEST_F(ExitsAarch64, TooManyTables) {
    const auto file =
        assemble(function("costly",
                          ".rept 5000\ncmp w0, #4095\nb.hi 2f\nadrp x1, .Lt\n"
                          "add x1, x1, #:lo12:.Lt\nldrb w2, [x1, w0, uxtw]\nadr x1, 1f\n"
                          "add x2, x1, w2, sxtb #2\nbr x2\n1: nop\n2: nop\n.endr\nret") +
                 ".section .rodata\n.Lt: .fill 4096, 1, 0\n.text\n");
    EXPECT_THAT(refusal_of(*file, "costly"), HasSubstr("too many tables"));
}

TEST_F(ExitsAarch64, RefusedWithTheReason) {
    const auto file = assemble(
        function("forever", "nop\n1: yield\nb 1b") + function("branches", "cbz x0, forever\nret") +
        function("signed", ".inst 0xd65f0bff") +
        // How many entries the table has is not known.
        function("unbounded",
                 "adrp x1, .Lu\nadd x1, x1, #:lo12:.Lu\nldrb w0, [x1, w0, uxtw]\n"
                 "adr x1, .Ld\nadd x0, x1, w0, sxtb #2\nbr x0\n.Ld: ret") +
        // That comparison is of another register, or decides something else.
        function("another",
                 "cmp w2, #2\nb.hi .Le\nadrp x1, .Lu\nadd x1, x1, #:lo12:.Lu\n"
                 "ldrb w0, [x1, w0, uxtw]\nadr x1, .Le\nadd x0, x1, w0, sxtb #2\n"
                 "br x0\n.Le: ret") +
        function("equal",
                 "cmp w0, #2\nb.eq .Lf\ncmp w2, #1\nb.hi .Lf\nadrp x1, .Lu\n"
                 "add x1, x1, #:lo12:.Lu\nldrb w0, [x1, w0, uxtw]\nadr x1, .Lf\n"
                 "add x0, x1, w0, sxtb #2\nbr x0\n.Lf: ret") +
        function("labels", "adr x1, 1f\nstr x1, [x0]\nldr x2, [x3]\nbr x2\n1: ret") +
        ".section .rodata\n.Lu: .byte 0,0,0,0\n.text\n");
    EXPECT_THAT(refusal_of(*file, "forever"), HasSubstr("never returns"));
    EXPECT_THAT(refusal_of(*file, "branches"), HasSubstr("may jump to another function"));
    EXPECT_THAT(refusal_of(*file, "signed"), HasSubstr("it leaves by"));
    for (const char* name : {"unbounded", "another", "equal"})
        EXPECT_THAT(refusal_of(*file, name), HasSubstr("table that was not found")) << name;
    EXPECT_THAT(refusal_of(*file, "labels"), HasSubstr("takes addresses of its own code"));
    // Where processes may have guarded control stacks, a return can't be probed.
    const auto plain = assemble(function("plain", "ret"));
    const auto careful = find(*plain, "plain", {});
    ASSERT_FALSE(careful);
    EXPECT_THAT(careful.error().message, HasSubstr("guarded control stack"));
}

// Landing pads lead to returns that nothing jumps to; switches, computed gotos, and what compilers
// make of them.
TEST_F(ExitsAarch64, ReturnsAsObjdumpShowsThem) {
    workshop_.write("code.cpp", R"(
int thrower(int);
extern "C" int catches(int n) {
    try { thrower(n); } catch (int code) { return code * 3; }
    for (int i = 0; i < n; ++i) thrower(i);
    return 4;
}
extern "C" int chooses(int n, int* p) {
    switch (n) {
        case 0: return thrower(1); case 1: return *p; case 2: *p = 3; return 5;
        case 3: thrower(n); thrower(4); return 7; case 5: return p[3] * 7; case 7: p[2] = 1; return 1;
        case 8: return p[1] / 3; case 9: thrower(*p); return n; default: return thrower(n) + 1;
    }
}
extern "C" int hops(const unsigned char* code) {
    static void* const places[] = {&&stop, &&more, &&less};
    int sum = 0;
    goto *places[*code];
more: sum += thrower(sum); ++code; goto *places[*code];
less: sum -= 3; ++code; goto *places[*code];
stop: return sum;
}
)");
    for (const std::string flags : {"-O2", "-Os", "-O0", "-O2 -mbranch-protection=standard"}) {
        SCOPED_TRACE(flags);
        workshop_.run("g++ " + flags + " -fPIC -shared -nostdlib -o code.so code.cpp");
        const auto file = workshop_.open("code.so");
        for (const std::string name : {"catches", "chooses", "hops"}) {
            SCOPED_TRACE(name);
            workshop_.run("objdump -d --disassemble=" + name +
                          " code.so | grep -c '[[:space:]]ret' > n");
            const size_t returns = std::stoul(Workshop::read(workshop_.path("n")));
            const auto exits = exits_of(*file, name);
            EXPECT_EQ(std::count(exits.begin(), exits.end(), "ret"), returns);
        }
    }
}

// Of all functions of a library: those that are accepted have no return but the known ones.
TEST_F(ExitsAarch64, NoReturnOfALibraryIsMissing) {
    const std::string folder = "/usr/lib/aarch64-linux-gnu/";
    for (const std::string library : {"libc.so.6", "libstdc++.so.6", "libm.so.6"}) {
        SCOPED_TRACE(library);
        const auto file = workshop_.open(folder + library);
        const ExitFinder finder(file, kNoGuardedStacks);
        size_t accepted = 0, refused = 0, returns = 0;
        std::map<std::string, size_t> reasons;
        std::vector<std::string> missing;
        for (const Function& function : file->functions()) {
            if (function.is_ifunc || function.size == 0) continue;
            const auto ways = finder.find(function.file_offset);
            if (!ways) {
                ++refused;
                ++reasons[ways.error().message.substr(0, ways.error().message.find(" by "))];
                continue;
            }
            ++accepted;
            const auto code = file->code_at(function.file_offset, function.size);
            for (size_t at = 0; at + 4 <= code.size(); at += 4) {
                uint32_t word;
                std::memcpy(&word, code.data() + at, sizeof word);
                if (word != 0xd65f03c0) continue;
                ++returns;
                const uint64_t offset = function.file_offset + at;
                if (std::none_of(ways->exits.begin(), ways->exits.end(),
                                 [offset](const Exit& exit) { return exit.file_offset == offset; }))
                    missing.push_back(std::string(function.names.front()) + "+" +
                                      std::to_string(at));
            }
        }
        std::ostringstream told;
        for (const auto& [reason, count] : reasons) told << "  " << count << " " << reason << "\n";
        std::printf("%s: %zu accepted, %zu returns, %zu refused\n%s", library.c_str(), accepted,
                    returns, refused, told.str().c_str());
        EXPECT_THAT(missing, IsEmpty());
        EXPECT_GT(accepted, 10 * refused);
    }
}

} // namespace
} // namespace speedbump::elf
