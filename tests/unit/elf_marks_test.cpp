// SPDX-License-Identifier: MIT
#include "elf/marks.h"

#include "elf_workshop.h"

namespace speedbump::elf {
namespace {

constexpr const char* kSource = R"(
.macro mark name, bytes:vararg
    990: .byte \bytes
    .pushsection .note.stapsdt, "", "note"
    .balign 4
    .4byte 992f - 991f, 994f - 993f, 3
    991: .asciz "stapsdt"
    992: .balign 4
    993: .8byte 990b, _.stapsdt.base, 0
    .asciz "provider", "\name", ""
    994: .balign 4
    .popsection
    ret
.endm
.section .stapsdt.base, "a", "progbits"
_.stapsdt.base: .space 1
.text
.globl work
.type work, @function
work:
    mark one, 0x90
    mark five, 0x0f, 0x1f, 0x44, 0, 0
    mark both, 0x90, 0x0f, 0x1f, 0x44, 0, 0
    mark vex, 0xc5, 0xf8, 0x77
.section .note.GNU-stack, "", @progbits
)";

#if defined(__x86_64__)
TEST(ElfMarks, AreFoundAndJudgedByTheirInstruction) {
    const Workshop workshop;
    workshop.write("marks.s", kSource);
    workshop.run("cc -shared -o libmarks.so marks.s");
    const Fd fd(::open(workshop.path("libmarks.so").c_str(), O_RDONLY | O_CLOEXEC));
    const auto marks = read_marks(fd.get(), "libmarks.so");
    ASSERT_TRUE(marks) << marks.error().message;
    ASSERT_EQ(marks->size(), 4u);
    constexpr SiteOptions kUnsafe{true, false}, kRewrites{true, true}, kSafe{false, true};
    const struct {
        const char* name;
        bool unsafe, unsafe_behind, rewrites, safe;
    } expected[] = {
        {"one", true, true, true, true},
        {"five", false, false, false, true},
        {"both", true, false, true, true},
        {"vex", false, false, false, false},
    };
    for (size_t i = 0; i < marks->size(); ++i) {
        const Mark& mark = (*marks)[i];
        EXPECT_EQ(mark.provider, "provider");
        EXPECT_EQ(mark.name, expected[i].name);
        EXPECT_EQ(judge_mark(mark, kUnsafe, false).allowed, expected[i].unsafe) << mark.name;
        EXPECT_EQ(judge_mark(mark, kUnsafe, true).allowed, expected[i].unsafe_behind) << mark.name;
        EXPECT_EQ(judge_mark(mark, kRewrites, false).allowed, expected[i].rewrites) << mark.name;
        EXPECT_EQ(judge_mark(mark, kSafe, false).allowed, expected[i].safe) << mark.name;
    }
    EXPECT_NE(std::string(judge_mark((*marks)[1], kUnsafe, false).reason).find("forked children"),
              std::string::npos);
}

// A note that ends too early, or says that it is longer than the section, ends the list.
TEST(ElfMarks, DamagedNotesAreNone) {
    const Workshop workshop;
    for (const char* sizes : {"8, 0xfffffff0, 3", "0xffffffff, 24, 3", "8, 23, 3", "8, 24, 3"}) {
        workshop.write("bad.s", std::string(".section .note.stapsdt, \"\", \"note\"\n.4byte ") +
                                    sizes +
                                    "\n.asciz \"stapsdt\"\n.8byte -1, 0, 0\n"
                                    ".section .note.GNU-stack, \"\", @progbits\n");
        workshop.run("cc -shared -o libbad.so bad.s");
        const Fd fd(::open(workshop.path("libbad.so").c_str(), O_RDONLY | O_CLOEXEC));
        const auto marks = read_marks(fd.get(), "libbad.so");
        ASSERT_TRUE(marks) << marks.error().message;
        for (const Mark& mark : *marks) {
            EXPECT_TRUE(mark.name.empty());
            EXPECT_FALSE(judge_mark(mark, {}, false).allowed);
        }
    }
}
#endif

} // namespace
} // namespace speedbump::elf
