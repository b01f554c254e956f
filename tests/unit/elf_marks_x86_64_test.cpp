// SPDX-License-Identifier: MIT
#include "elf/marks.h"

#include "elf_workshop.h"

namespace speedbump::elf {
namespace {

constexpr const char* kMacros = R"(
.macro note name, semaphore
    .pushsection .note.stapsdt, "", "note"
    .balign 4
    .4byte 992f - 991f, 994f - 993f, 3
    991: .asciz "stapsdt"
    992: .balign 4
    993: .8byte 990b, _.stapsdt.base, \semaphore
    .asciz "provider", "\name", ""
    994: .balign 4
    .popsection
.endm
.macro mark name, bytes:vararg
    990: .byte \bytes
    note \name, 0
    ret
.endm
.macro watched name, semaphore
    990: nop
    note \name, \semaphore
.endm
.section .note.GNU-stack, "", @progbits
.section .stapsdt.base, "a", "progbits"
_.stapsdt.base: .space 1
)";

constexpr const char* kSource = R"(
.text
.globl work
.type work, @function
work:
    mark one, 0x90
    mark five, 0x0f, 0x1f, 0x44, 0, 0
    mark both, 0x90, 0x0f, 0x1f, 0x44, 0, 0
    mark vex, 0xc5, 0xf8, 0x77
)";

TEST(ElfMarks, AreFoundAndJudgedByTheirInstruction) {
    const Workshop workshop;
    workshop.write("marks.s", std::string(kMacros) + kSource);
    workshop.run("cc -shared -o libmarks.so marks.s");
    const Fd fd(::open(workshop.path("libmarks.so").c_str(), O_RDONLY | O_CLOEXEC));
    const auto marks = read_marks(fd.get(), "libmarks.so");
    ASSERT_TRUE(marks) << marks.error().message;
    ASSERT_EQ(marks->size(), 4u);
    constexpr SiteOptions kUnsafe{true, false}, kRewrites{true, true}, kSafe{false, true};
    const struct {
        const char* name;
        bool unsafe, rewrites, safe;
    } expected[] = {
        {"one", true, true, true},
        {"five", false, false, true},
        {"both", true, true, true},
        {"vex", false, false, false},
    };
    for (size_t i = 0; i < marks->size(); ++i) {
        const Mark& mark = (*marks)[i];
        EXPECT_EQ(mark.provider, "provider");
        EXPECT_EQ(mark.name, expected[i].name);
        EXPECT_EQ(mark.semaphore_address, 0u);
        EXPECT_EQ(judge_mark(mark, kUnsafe).allowed, expected[i].unsafe) << mark.name;
        EXPECT_EQ(judge_mark(mark, kRewrites).allowed, expected[i].rewrites) << mark.name;
        EXPECT_EQ(judge_mark(mark, kSafe).allowed, expected[i].safe) << mark.name;
    }
    EXPECT_NE(std::string(judge_mark((*marks)[1], kUnsafe).reason).find("forked children"),
              std::string::npos);
}

// What a note says of places outside of the file's code and data is not believed.
TEST(ElfMarks, LieInCodeAndTheirSemaphoresInData) {
    const Workshop workshop;
    workshop.write("marks.s", std::string(kMacros) + R"(
.section .probes, "aw", @progbits
    .ascii "before"
    .balign 2
semaphore: .2byte 0x1234
.section .rodata
constant: .2byte 0
.bss
    .space 65536
zero: .2byte 0
.data
990: nop
    note in_data, 0
.text
work:
    watched good, semaphore
    watched odd, semaphore+1
    watched in_code, work
    watched constant, constant
    watched not_in_the_file, zero
    watched nowhere, 0x7fffffffffff
    ret
)");
    workshop.run("cc -shared -o libmarks.so marks.s");
    const Fd fd(::open(workshop.path("libmarks.so").c_str(), O_RDONLY | O_CLOEXEC));
    const auto marks = read_marks(fd.get(), "libmarks.so");
    ASSERT_TRUE(marks) << marks.error().message;
    ASSERT_EQ(marks->size(), 7u);
    for (const Mark& mark : *marks) {
        EXPECT_EQ(judge_mark(mark, {}).allowed, mark.name != "in_data") << mark.name;
        EXPECT_EQ(mark.semaphore_address != 0, mark.name != "in_data") << mark.name;
        EXPECT_EQ(mark.semaphore_offset != 0, mark.name == "good") << mark.name;
        unsigned char nop = 0;
        uint16_t semaphore = 0;
        if (mark.name != "in_data") {
            EXPECT_EQ(::pread(fd.get(), &nop, 1, static_cast<off_t>(mark.file_offset)), 1);
            EXPECT_EQ(nop, 0x90) << mark.name;
        }
        if (mark.name != "good") continue;
        EXPECT_EQ(::pread(fd.get(), &semaphore, 2, static_cast<off_t>(mark.semaphore_offset)), 2);
        EXPECT_EQ(semaphore, 0x1234);
    }
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
            EXPECT_FALSE(judge_mark(mark, {}).allowed);
        }
    }
}

} // namespace
} // namespace speedbump::elf
