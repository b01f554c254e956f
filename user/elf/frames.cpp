// SPDX-License-Identifier: MIT
#include "elf/frames.h"

#include <algorithm>
#include <cstring>
#include <map>
#include <string>

#include "elf/image.h"

namespace speedbump::elf {

namespace {

constexpr uint64_t kMaxFrames = 256u << 20;
constexpr uint64_t kMaxHandlers = 1u << 20;
constexpr uint64_t kMaxNames = 1u << 20;
constexpr uint8_t kOmitted = 0xff; // DW_EH_PE_omit
constexpr uint8_t kIndirect = 0x80;
constexpr uint8_t kRelative = 0x10; // to its own address (DW_EH_PE_pcrel)

// Reads DWARF's little numbers. After a read beyond the end everything is 0 and failed().
class Cursor {
  public:
    Cursor(const std::vector<unsigned char>& bytes, uint64_t address)
        : bytes_(bytes), address_(address), end_(bytes.size()) {}

    bool failed() const { return failed_; }
    size_t at() const { return at_; }
    void go_to(size_t at) {
        if (at > end_) failed_ = true;
        at_ = std::min(at, end_);
    }
    void stop_at(size_t end) { end_ = std::min(end, bytes_.size()); }

    template <typename T>
    T number() {
        T value{};
        if (end_ - at_ < sizeof value) {
            failed_ = true;
            at_ = end_;
            return value;
        }
        std::memcpy(&value, bytes_.data() + at_, sizeof value);
        at_ += sizeof value;
        return value;
    }
    uint64_t uleb() {
        uint64_t value = 0;
        for (unsigned shift = 0; shift < 64; shift += 7) {
            const auto byte = number<uint8_t>();
            value |= static_cast<uint64_t>(byte & 0x7f) << shift;
            if ((byte & 0x80) == 0) break;
        }
        return value;
    }
    std::string text() {
        std::string text;
        while (const char one = number<char>()) text += one;
        return text;
    }
    // A pointer in one of the encodings DW_EH_PE_*; one that is 0 stays 0. What can't be followed
    // from the file alone counts as failed.
    uint64_t pointer(uint8_t encoding) {
        const uint64_t place = address_ + at_;
        const uint64_t value = raw(encoding);
        if (value == 0) return 0;
        if ((encoding & 0x70) == kRelative) return value + place;
        if ((encoding & 0xf0) != 0) failed_ = true;
        return value;
    }
    uint64_t raw(uint8_t encoding) {
        switch (encoding & 0x0f) {
            case 0x00:
            case 0x04:
            case 0x0c:
                return number<uint64_t>();
            case 0x01:
                return uleb();
            case 0x02:
                return number<uint16_t>();
            case 0x03:
                return number<uint32_t>();
            case 0x0a:
                return static_cast<uint64_t>(int64_t{number<int16_t>()});
            case 0x0b:
                return static_cast<uint64_t>(int64_t{number<int32_t>()});
            default:
                failed_ = true;
                return 0;
        }
    }

  private:
    const std::vector<unsigned char>& bytes_;
    uint64_t address_;
    size_t at_ = 0;
    size_t end_;
    bool failed_ = false;
};

// What a CIE says of its FDEs.
struct Common {
    bool usable = false;
    bool has_data = false; // 'z'
    uint8_t pointers = 0;
    uint8_t handlers = kOmitted;
};

Common read_common(Cursor& cursor) {
    Common common;
    const auto version = cursor.number<uint8_t>();
    const std::string augmentation = cursor.text();
    cursor.uleb(); // code alignment
    cursor.uleb(); // data alignment: signed, of the same length
    if (version == 1)
        cursor.number<uint8_t>();
    else
        cursor.uleb();
    if (!augmentation.empty() && augmentation[0] != 'z') return common;
    common.has_data = !augmentation.empty();
    if (common.has_data) cursor.uleb();
    for (const char letter : augmentation) {
        if (letter == 'R') common.pointers = cursor.number<uint8_t>();
        if (letter == 'L') common.handlers = cursor.number<uint8_t>();
        if (letter == 'P') cursor.raw(cursor.number<uint8_t>() & ~kIndirect);
    }
    common.usable = !cursor.failed() && (version == 1 || version == 3);
    return common;
}

// Nothing where it can't be read.
std::optional<FramePart> read_part(Cursor& cursor, const Common& common) {
    FramePart part;
    part.begin = cursor.pointer(common.pointers);
    part.end = part.begin + cursor.raw(common.pointers);
    if (cursor.failed() || part.end < part.begin) return std::nullopt;
    if (common.has_data) cursor.uleb();
    if (common.handlers != kOmitted) part.handlers = cursor.pointer(common.handlers);
    part.handlers_known = !cursor.failed();
    return part;
}

} // namespace

namespace {

template <typename T>
std::optional<std::vector<T>> read_table(const ElfFile& file, uint64_t offset, size_t count) {
    const auto bytes = file.read(offset, count * sizeof(T));
    if (!bytes) return std::nullopt;
    return as_table<T>(*bytes);
}

// Whether the unwinder finds something, which goes by a segment: a file without section headers has
// it, too.
bool has_frame_segment(const ElfFile& file) {
    const auto header = read_table<Elf64_Ehdr>(file, 0, 1);
    const auto segments =
        header ? read_table<Elf64_Phdr>(file, header->front().e_phoff, header->front().e_phnum)
               : std::nullopt;
    return !segments || std::ranges::any_of(*segments, [](const Elf64_Phdr& one) {
        return one.p_type == PT_GNU_EH_FRAME;
    });
}

} // namespace

std::optional<FileRange> find_section(const ElfFile& file, std::string_view name) {
    const auto headers = read_table<Elf64_Ehdr>(file, 0, 1);
    if (!headers) return std::nullopt;
    const Elf64_Ehdr& header = headers->front();
    if (header.e_shoff == 0 || header.e_shentsize != sizeof(Elf64_Shdr)) return std::nullopt;
    // With 0xff00 sections and more the true numbers are in the first one.
    const auto first = read_table<Elf64_Shdr>(file, header.e_shoff, 1);
    if (!first) return std::nullopt;
    const uint64_t count = header.e_shnum != 0 ? header.e_shnum : first->front().sh_size;
    const uint64_t named =
        header.e_shstrndx != SHN_XINDEX ? header.e_shstrndx : first->front().sh_link;
    if (count > kMaxSections || named >= count) return std::nullopt;
    const auto sections = read_table<Elf64_Shdr>(file, header.e_shoff, count);
    if (!sections) return std::nullopt;
    const Elf64_Shdr& names = (*sections)[named];
    const auto text = file.read(names.sh_offset, std::min(names.sh_size, kMaxNames));
    if (!text) return std::nullopt;
    for (const Elf64_Shdr& one : *sections) {
        const auto at = std::min<size_t>(one.sh_name, text->size());
        const auto end = std::find(text->begin() + static_cast<ptrdiff_t>(at), text->end(), 0);
        if (std::equal(text->begin() + static_cast<ptrdiff_t>(at), end, name.begin(), name.end()))
            return FileRange{one.sh_addr, one.sh_offset, one.sh_size};
    }
    return std::nullopt;
}

std::optional<std::vector<unsigned char>> read_address(const ElfFile& file, uint64_t address,
                                                       uint64_t size) {
    for (const Segment& segment : file.segments()) {
        if (address - segment.address >= segment.file_size) continue;
        const uint64_t within = address - segment.address;
        auto bytes = file.read(segment.offset + within, std::min(size, segment.file_size - within));
        if (bytes) return std::move(*bytes);
    }
    return std::nullopt;
}

FrameTable::FrameTable(const ElfFile& file) : file_(file) {
    const auto section = find_section(file, ".eh_frame");
    is_whole_ = !section && !has_frame_segment(file);
    if (!section || section->size > kMaxFrames) return;
    const auto bytes = file.read(section->offset, section->size);
    if (!bytes) return;
    is_whole_ = read(*bytes, section->address);
    std::sort(parts_.begin(), parts_.end(),
              [](const FramePart& a, const FramePart& b) { return a.begin < b.begin; });
}

bool FrameTable::read(const std::vector<unsigned char>& bytes, uint64_t address) {
    bool is_whole = true;
    std::map<size_t, Common> commons; // by place
    for (size_t at = 0; at + 4 <= bytes.size();) {
        Cursor cursor(bytes, address);
        cursor.go_to(at);
        const auto length = cursor.number<uint32_t>();
        at += 4;
        // An end: of what one object file has, others' may follow.
        if (length == 0) continue;
        if (length < 4 || length > bytes.size() - at) return false; // or 64-bit DWARF
        const size_t here = at;
        at += length;
        cursor.stop_at(at);
        const auto distance = cursor.number<uint32_t>();
        if (distance == 0) {
            commons[here - 4] = read_common(cursor);
            continue;
        }
        const auto common = commons.find(here - distance);
        if (common == commons.end() || !common->second.usable) {
            is_whole = false;
            continue;
        }
        const auto part = read_part(cursor, common->second);
        is_whole = is_whole && part;
        // One of nothing is of code that the linker has left out.
        if (part && part->begin != 0 && part->end > part->begin) parts_.push_back(*part);
    }
    return is_whole;
}

const FramePart* FrameTable::find(uint64_t address) const {
    const auto after =
        std::upper_bound(parts_.begin(), parts_.end(), address,
                         [](uint64_t value, const FramePart& part) { return value < part.begin; });
    if (after == parts_.begin()) return nullptr;
    const FramePart& part = *std::prev(after);
    return address < part.end ? &part : nullptr;
}

std::optional<std::vector<uint64_t>> FrameTable::landing_pads(const FramePart& part) const {
    std::vector<uint64_t> pads;
    if (!part.handlers_known) return std::nullopt;
    if (part.handlers == 0) return pads;
    const auto bytes = read_address(file_, part.handlers, kMaxHandlers);
    if (!bytes) return std::nullopt;
    Cursor cursor(*bytes, part.handlers);
    uint64_t base = part.begin;
    if (const auto encoding = cursor.number<uint8_t>(); encoding != kOmitted)
        base = cursor.pointer(encoding);
    if (cursor.number<uint8_t>() != kOmitted) cursor.uleb(); // the table of types
    const auto encoding = cursor.number<uint8_t>();
    const uint64_t length = cursor.uleb();
    if (cursor.failed() || length > bytes->size() - cursor.at()) return std::nullopt;
    const size_t end = cursor.at() + length;
    while (cursor.at() < end) {
        cursor.raw(encoding); // where the range begins
        cursor.raw(encoding); // its length
        const uint64_t pad = cursor.raw(encoding);
        cursor.uleb(); // what is done there
        if (cursor.failed()) return std::nullopt;
        if (pad != 0) pads.push_back(base + pad);
    }
    return pads;
}

} // namespace speedbump::elf
