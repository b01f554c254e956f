// SPDX-License-Identifier: MIT
#include "elf/marks.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "elf/image.h"

namespace speedbump::elf {

namespace {

constexpr uint64_t kMaxNoteBytes = 64 << 20;
constexpr uint64_t kCodeBytes = 16;
constexpr uint32_t kMarkType = 3;
constexpr char kOwner[] = "stapsdt";

constexpr uint64_t aligned(uint64_t size) {
    return (size + 3) & ~uint64_t{3};
}

// The string at the beginning of `text`, which is cut off after it; empty where none ends.
std::string take_string(std::string_view& text) {
    const size_t end = text.find('\0');
    if (end == std::string_view::npos) {
        text = {};
        return {};
    }
    std::string taken(text.substr(0, end));
    text.remove_prefix(end + 1);
    return taken;
}

// Where the kernel finds a semaphore: an aligned word of the file's writable data.
uint64_t semaphore_offset(uint64_t address, const Image& image) {
    const Segment* segment = image.segment_of_address(address);
    const auto offset = image.offset_of_address(address);
    if (!segment || !offset || !segment->writable || segment->executable) return 0;
    if (image.segment_of_address(address + 1) != segment || *offset % 2 != 0) return 0;
    return *offset;
}

// What a note says: the addresses of the mark, of .stapsdt.base as it was linked, and of the
// semaphore; then provider, name and arguments.
Mark parse(std::string_view description, const Image& image) {
    uint64_t words[3];
    std::memcpy(words, description.data(), sizeof words);
    description.remove_prefix(sizeof words);
    Mark mark;
    mark.address = words[0];
    mark.semaphore_address = words[2];
    // Prelinking moves sections and leaves notes as they were.
    if (const Elf64_Shdr* base = image.section(".stapsdt.base"); base != nullptr && words[1] != 0) {
        mark.address += base->sh_addr - words[1];
        if (words[2] != 0) mark.semaphore_address += base->sh_addr - words[1];
    }
    mark.provider = take_string(description);
    mark.name = take_string(description);
    if (mark.semaphore_address != 0)
        mark.semaphore_offset = semaphore_offset(mark.semaphore_address, image);
    const Segment* segment = image.segment_of_address(mark.address);
    if (segment == nullptr || !segment->executable) return mark;
    mark.file_offset = image.offset_of_address(mark.address).value_or(0);
    if (const auto code = image.read_address(mark.address, kCodeBytes, kCodeBytes, "a mark"))
        mark.code.assign(code->begin(), code->end());
    return mark;
}

} // namespace

Result<std::vector<Mark>> read_marks(int fd, const std::string& path) {
    Fd copy(::dup(fd));
    if (!copy.valid()) return errno_error("read the marks of " + path, errno);
    auto source = make_file_source(std::move(copy), path);
    if (!source) return std::move(source).error();
    const auto image = Image::parse(std::move(*source), path, ImageRole::kProgram);
    if (!image) return image.error();
    std::vector<Mark> marks;
    const Elf64_Shdr* section = image->section(".note.stapsdt");
    if (section == nullptr) return marks;
    const auto notes = image->read(*section, kMaxNoteBytes, "the marks");
    if (!notes) return notes.error();
    std::string_view rest(reinterpret_cast<const char*>(notes->data()), notes->size());
    while (rest.size() >= sizeof(Elf64_Nhdr)) {
        Elf64_Nhdr header;
        std::memcpy(&header, rest.data(), sizeof header);
        rest.remove_prefix(sizeof header);
        const uint64_t name_size = aligned(header.n_namesz), size = header.n_descsz;
        if (rest.size() < name_size || rest.size() - name_size < size) break;
        const bool is_mark =
            header.n_type == kMarkType &&
            rest.substr(0, header.n_namesz) == std::string_view(kOwner, sizeof kOwner) &&
            size >= 3 * sizeof(uint64_t);
        if (is_mark) marks.push_back(parse(rest.substr(name_size, size), *image));
        rest.remove_prefix(std::min<uint64_t>(rest.size(), name_size + aligned(size)));
    }
    return marks;
}

SiteVerdict judge_mark(const Mark& mark, const SiteOptions& options) {
    // A function may keep data below the stack pointer there, which only a call spoils.
    const auto position =
        options.kernel_optimizes_nop5 ? SitePosition::kInside : SitePosition::kEntry;
    return judge_site(mark.code, mark.address, options, position);
}

} // namespace speedbump::elf
