// SPDX-License-Identifier: MIT
// Files that state more than they hold: code that is mostly holes must not cost memory.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "elf/code.h"
#include "elf/image.h"
#include "util/fd.h"

namespace speedbump::elf {
namespace {

TEST(Widened, TakesInWhatCrossesAnEdge) {
    const Segment segment{0x400000, 0x1000, 0x10000 + 5, 0x10000 + 5, true, false};
    const auto wide = widened({{0x1000, 0x1001},    // up to 17 bytes after it
                               {0x3000, 0x4000},    // and before it
                               {0x4010, 0x4020},    // touches the one before
                               {0x11000, 0x11005}}, // ends with the segment
                              segment);
    ASSERT_EQ(wide.size(), 3u);
    const uint64_t expected[][2] = {{0, 0x40}, {0x1fc0, 0x3040}, {0xffc0, 0x10005}};
    for (size_t i = 0; i < wide.size(); ++i) {
        EXPECT_EQ(wide[i].begin, expected[i][0]) << i;
        EXPECT_EQ(wide[i].end, expected[i][1]) << i;
    }
}

// A file of 2 GiB that begins as the given bytes do, and that says what of it is data.
class StatedSource : public Source {
  public:
    StatedSource(std::string head, std::vector<Extent> data)
        : head_(std::move(head)), data_(std::move(data)) {}
    uint64_t size() const override { return uint64_t{2} << 30; }
    bool read(uint64_t offset, void* to, size_t size) const override {
        std::memset(to, 0, size);
        if (offset < head_.size())
            std::memcpy(to, head_.data() + offset, std::min<size_t>(size, head_.size() - offset));
        bytes_read += size;
        return true;
    }
    std::vector<Extent> data_in(uint64_t, uint64_t) const override { return data_; }
    mutable uint64_t bytes_read = 0;

  private:
    std::string head_;
    std::vector<Extent> data_;
};

// Without a section header, so that the head is all there is to parse.
std::string head_with_code(uint64_t code_bytes) {
    struct {
        Elf64_Ehdr header;
        Elf64_Phdr code;
    } head{};
    Elf64_Ehdr own;
    const Fd self(::open("/proc/self/exe", O_RDONLY | O_CLOEXEC));
    EXPECT_EQ(::read(self.get(), &own, sizeof own), static_cast<ssize_t>(sizeof own));
    head.header = own; // of this machine
    head.header.e_shoff = head.header.e_shnum = head.header.e_shstrndx = 0;
    head.header.e_phoff = sizeof own;
    head.header.e_phnum = 1;
    head.code = {PT_LOAD, PF_R | PF_X, 0, 0, 0, code_bytes, code_bytes, 4096};
    return {reinterpret_cast<const char*>(&head), sizeof head};
}

TEST(Code, OfMoreDataThanAGibibyteIsNotRead) {
    const uint64_t size = uint64_t{2} << 30;
    for (const auto& [data, refused] : std::vector<std::pair<std::vector<Extent>, bool>>{
             {{{0, size / 2}, {size / 2 + 4096, size / 2 + 4097}}, true},
             {{{0, 4096}, {size - 4096, size}}, false}}) {
        auto source = std::make_shared<StatedSource>(head_with_code(size), data);
        auto image = Image::parse(source, "stated", ImageRole::kProgram);
        ASSERT_TRUE(image) << image.error().message;
        source->bytes_read = 0;
        const Code code(*image);
        EXPECT_EQ(code.is_too_large(), refused);
        EXPECT_EQ(code.at(0, 16).size(), refused ? 0u : 16u);
        EXPECT_LE(source->bytes_read, 8193u) << "holes are not read";
    }
}

// Each header may name as many notes as are read of one.
TEST(BuildId, IsNotLookedForInAnyNumberOfNotes) {
    constexpr uint16_t kHeaders = 1000;
    std::string head = head_with_code(4096);
    auto* const header = reinterpret_cast<Elf64_Ehdr*>(head.data());
    header->e_phnum = kHeaders;
    const Elf64_Phdr note{PT_NOTE, PF_R, 1u << 20, 0, 0, 1u << 20, 1u << 20, 4};
    for (int i = 1; i < kHeaders; ++i)
        head.append(reinterpret_cast<const char*>(&note), sizeof note);
    auto source = std::make_shared<StatedSource>(head, std::vector<Extent>());
    auto image = Image::parse(source, "stated", ImageRole::kProgram);
    ASSERT_TRUE(image) << image.error().message;
    source->bytes_read = 0;
    EXPECT_EQ(image->build_id(), "");
    EXPECT_LE(source->bytes_read, 16u << 20);
}

} // namespace
} // namespace speedbump::elf
