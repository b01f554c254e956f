// SPDX-License-Identifier: MIT
#include "elf/frames.h"

#include <elf.h>
#include <gtest/gtest.h>

#include <cstring>
#include <string>

#include "elf_workshop.h"

namespace speedbump::elf {
namespace {

// A library with two functions, and what is known of its frames once it has been changed.
class FrameTableTest : public testing::Test {
  protected:
    void SetUp() override {
        shop_.write("f.c", "int f(int a) { return a + 1; }\nint g(int a) { return f(a) * 2; }\n");
        shop_.run(
            "gcc -shared -nostdlib -fPIC -O1 -fasynchronous-unwind-tables -Wl,--eh-frame-hdr f.c "
            "-o f.so");
        bytes_ = Workshop::read(shop_.path("f.so"));
        frames_ = find_section(*shop_.open("f.so"), ".eh_frame")->offset;
    }
    void expect(bool is_whole, bool has_parts) {
        shop_.write("changed.so", bytes_);
        const auto file = shop_.open("changed.so");
        const FrameTable table(*file);
        EXPECT_EQ(table.is_whole(), is_whole);
        for (const char* name : {"f", "g"}) {
            const Function* const function = find_function(*file, name);
            ASSERT_NE(function, nullptr) << name;
            const FramePart* const part = table.find(function->address);
            ASSERT_EQ(part != nullptr, has_parts) << name;
            if (part != nullptr) {
                EXPECT_EQ(part->end, function->address + function->size) << name;
            }
        }
    }
    template <typename T>
    void put(uint64_t at, T value) {
        std::memcpy(bytes_.data() + at, &value, sizeof value);
    }
    uint32_t length_at(uint64_t at) const {
        uint32_t length = 0;
        std::memcpy(&length, bytes_.data() + at, sizeof length);
        return length;
    }

    Workshop shop_;
    std::string bytes_;
    uint64_t frames_ = 0; // where .eh_frame lies; it begins with what all have in common
};

TEST_F(FrameTableTest, KnowsAllParts) {
    expect(true, true);
}

TEST_F(FrameTableTest, IsNotWholeWhereWhatFramesHaveInCommonIsOfAnUnknownKind) {
    put(frames_ + 8, uint8_t{9}); // its version
    expect(false, false);
}

TEST_F(FrameTableTest, IsNotWholeWhereItIsWrittenAnotherWay) {
    put(frames_, UINT32_MAX); // 64-bit DWARF
    expect(false, false);
}

TEST_F(FrameTableTest, IsNotWholeWhereALengthLeadsBeyondTheEnd) {
    put(frames_ + 4 + length_at(frames_), uint32_t{0x7fffff00});
    expect(false, false);
}

TEST_F(FrameTableTest, IsNotWholeWhereTheSectionIsNotKnown) {
    put(offsetof(Elf64_Ehdr, e_shoff), uint64_t{0});
    put(offsetof(Elf64_Ehdr, e_shnum), uint16_t{0});
    put(offsetof(Elf64_Ehdr, e_shstrndx), uint16_t{SHN_UNDEF});
    expect(false, false);
}

// As of more than 65,279 sections: their number, and that of their names, are in the first one.
TEST_F(FrameTableTest, IsFoundHoweverManySectionsThereAre) {
    Elf64_Ehdr header;
    std::memcpy(&header, bytes_.data(), sizeof header);
    put(header.e_shoff + offsetof(Elf64_Shdr, sh_size), uint64_t{header.e_shnum});
    put(header.e_shoff + offsetof(Elf64_Shdr, sh_link), uint32_t{header.e_shstrndx});
    put(offsetof(Elf64_Ehdr, e_shnum), uint16_t{0});
    put(offsetof(Elf64_Ehdr, e_shstrndx), uint16_t{SHN_XINDEX});
    expect(true, true);
}

TEST_F(FrameTableTest, IsWholeOfAFileThatHasNone) {
    shop_.run(
        "gcc -shared -nostdlib -fPIC -O1 -fno-asynchronous-unwind-tables -fno-unwind-tables "
        "-Wl,--no-eh-frame-hdr f.c -o f.so && strip -R .eh_frame f.so -o none.so");
    bytes_ = Workshop::read(shop_.path("none.so"));
    expect(true, false);
}

} // namespace
} // namespace speedbump::elf
