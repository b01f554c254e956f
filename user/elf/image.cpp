// SPDX-License-Identifier: MIT
#include "elf/image.h"

#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cstring>

#include "elf/machine.h"

namespace speedbump::elf {
namespace {

constexpr unsigned char kByteOrder =
    std::endian::native == std::endian::little ? ELFDATA2LSB : ELFDATA2MSB;

// Real files stay far below; a hostile one must not make us allocate what its header asks for.
constexpr uint64_t kMaxProgramHeaders = 1u << 14;
constexpr uint64_t kMaxSectionNames = 64u << 20;
constexpr uint64_t kMaxDynamic = 1u << 20;
constexpr uint64_t kMaxNotes = 1u << 20;
constexpr uint64_t kMaxAllNotes = 16u << 20;
// Ordinary files are read as they are: to ask for holes pays in none of them, and some file systems
// have told of holes where data was on its way to the disk (OpenZFS issue 15526).
constexpr uint64_t kLargeRange = 64u << 20;
constexpr size_t kMaxExtents = 1u << 19; // each second page of 4 GiB

class FileSource : public Source {
  public:
    FileSource(Fd fd, uint64_t size) : fd_(std::move(fd)), size_(size) {}
    int descriptor() const override { return fd_.get(); }
    uint64_t size() const override { return size_; }
    bool read(uint64_t offset, void* to, size_t size) const override {
        auto* at = static_cast<unsigned char*>(to);
        while (size > 0) {
            ssize_t got = ::pread(fd_.get(), at, size, static_cast<off_t>(offset));
            if (got < 0 && errno == EINTR) continue;
            if (got <= 0) return false;
            at += got;
            offset += static_cast<uint64_t>(got);
            size -= static_cast<size_t>(got);
        }
        return true;
    }

    // Moves the position of the descriptor, which nobody reads by.
    std::vector<Extent> data_in(uint64_t offset, uint64_t size) const override {
        std::vector<Extent> all{{offset, offset + size}};
        if (size < kLargeRange) return all;
        std::vector<Extent> found;
        for (uint64_t at = offset; at < offset + size;) {
            const off_t begin = ::lseek(fd_.get(), static_cast<off_t>(at), SEEK_DATA);
            if (begin < 0 && errno == ENXIO) break; // a hole up to the end
            const off_t end = begin < 0 ? -1 : ::lseek(fd_.get(), begin, SEEK_HOLE);
            const Extent next{static_cast<uint64_t>(begin), static_cast<uint64_t>(end)};
            if (end <= begin || next.begin < at || found.size() == kMaxExtents) return all;
            if (next.begin >= offset + size) break;
            found.push_back({next.begin, std::min(next.end, offset + size)});
            at = next.end;
        }
        return found;
    }

  private:
    Fd fd_;
    uint64_t size_;
};

class MemorySource : public Source {
  public:
    explicit MemorySource(std::vector<unsigned char> bytes) : bytes_(std::move(bytes)) {}
    uint64_t size() const override { return bytes_.size(); }
    bool read(uint64_t offset, void* to, size_t size) const override {
        if (offset > bytes_.size() || size > bytes_.size() - offset) return false;
        if (size > 0) std::memcpy(to, bytes_.data() + offset, size);
        return true;
    }

  private:
    std::vector<unsigned char> bytes_;
};

// The build id in a block of notes, or empty.
std::string build_id_in(const std::vector<unsigned char>& notes) {
    size_t at = 0;
    while (notes.size() - at >= sizeof(Elf64_Nhdr)) {
        Elf64_Nhdr note;
        std::memcpy(&note, notes.data() + at, sizeof note);
        at += sizeof note;
        uint64_t name_size = (uint64_t{note.n_namesz} + 3) & ~uint64_t{3};
        uint64_t size = (uint64_t{note.n_descsz} + 3) & ~uint64_t{3};
        if (name_size > notes.size() - at || note.n_descsz > notes.size() - at - name_size) break;
        const unsigned char* description = notes.data() + at + name_size;
        if (note.n_type == NT_GNU_BUILD_ID && note.n_namesz == 4 &&
            std::memcmp(notes.data() + at, "GNU", 4) == 0 && note.n_descsz >= 2 &&
            note.n_descsz <= 64) {
            std::string hex;
            for (uint32_t i = 0; i < note.n_descsz; ++i)
                hex += fmt::format("{:02x}", description[i]);
            return hex;
        }
        if (size > notes.size() - at - name_size) break;
        at += name_size + size;
    }
    return {};
}

} // namespace

Result<std::shared_ptr<const Source>> make_file_source(Fd fd, const std::string& name) {
    struct stat status {};
    if (::fstat(fd.get(), &status) != 0) return errno_error(fmt::format("stat {}", name), errno);
    if (!S_ISREG(status.st_mode))
        return make_error(ErrorKind::kInvalid, fmt::format("{}: no regular file", name));
    return std::shared_ptr<const Source>(
        std::make_shared<FileSource>(std::move(fd), static_cast<uint64_t>(status.st_size)));
}

std::shared_ptr<const Source> make_memory_source(std::vector<unsigned char> bytes) {
    return std::make_shared<MemorySource>(std::move(bytes));
}

Error Image::damaged(const std::string& what) const {
    return make_error(ErrorKind::kInvalid, fmt::format("{}: damaged ELF file: {}", name_, what));
}

Result<Image> Image::parse(std::shared_ptr<const Source> source, const std::string& name,
                           ImageRole role) {
    Image image;
    image.source_ = std::move(source);
    image.name_ = name;
    auto invalid = [&](const std::string& what) {
        return make_error(ErrorKind::kInvalid, fmt::format("{}: {}", name, what));
    };
    unsigned char identity[EI_NIDENT];
    if (image.size() < sizeof identity || !image.source_->read(0, identity, sizeof identity) ||
        std::memcmp(identity, ELFMAG, SELFMAG) != 0)
        return invalid("not an ELF file");
    if (identity[EI_CLASS] == ELFCLASS32) return invalid("a 32-bit ELF file");
    if (identity[EI_CLASS] != ELFCLASS64) return invalid("an ELF file of unknown class");
    if (identity[EI_DATA] != kByteOrder) return invalid("an ELF file of the other byte order");
    if (identity[EI_VERSION] != EV_CURRENT) return invalid("an ELF file of unknown version");
    if (image.size() < sizeof image.header_ ||
        !image.source_->read(0, &image.header_, sizeof image.header_))
        return image.damaged("the header is cut short");
    if (image.header_.e_machine != kMachine)
        return invalid(
            fmt::format("an ELF file of another machine (e_machine {})", image.header_.e_machine));
    if (image.header_.e_type != ET_EXEC && image.header_.e_type != ET_DYN)
        return invalid(fmt::format("neither an executable nor a shared library (e_type {})",
                                   image.header_.e_type));
    if (auto done = image.parse_sections(); !done) return done.error();
    if (auto done = image.parse_segments(role); !done) return done.error();
    return image;
}

Result<void> Image::parse_sections() {
    if (header_.e_shoff == 0) return {};
    if (header_.e_shentsize != sizeof(Elf64_Shdr))
        return damaged(fmt::format("section headers of {} bytes", header_.e_shentsize));
    Elf64_Shdr first;
    if (header_.e_shoff > size() || size() - header_.e_shoff < sizeof first ||
        !source_->read(header_.e_shoff, &first, sizeof first))
        return damaged("the section headers lie past the end of the file");
    // With 0xff00 sections and more the true numbers are in the first, unused, section header.
    uint64_t count = header_.e_shnum != 0 ? header_.e_shnum : first.sh_size;
    uint64_t names = header_.e_shstrndx != SHN_XINDEX ? header_.e_shstrndx : first.sh_link;
    if (count == 0) return {};
    if (count > kMaxSections) return damaged(fmt::format("{} sections", count));
    auto bytes = read(header_.e_shoff, count * sizeof first, kMaxSections * sizeof first,
                      "the section headers");
    if (!bytes) return bytes.error();
    sections_ = as_table<Elf64_Shdr>(*bytes);
    if (names == SHN_UNDEF) return {};
    if (names >= count) return damaged(fmt::format("e_shstrndx {} of {} sections", names, count));
    if (sections_[names].sh_type == SHT_NOBITS) return {};
    auto text = read(sections_[names], kMaxSectionNames, "the section names");
    if (!text) return text.error();
    section_names_ = std::move(*text);
    section_names_.push_back(0);
    return {};
}

Result<void> Image::parse_segments(ImageRole role) {
    uint64_t count = header_.e_phnum;
    if (count == PN_XNUM) count = sections_.empty() ? 0 : sections_[0].sh_info;
    if (role == ImageRole::kDebugFile) return {};
    if (count == 0) return damaged("no program headers");
    if (count > kMaxProgramHeaders) return damaged(fmt::format("{} program headers", count));
    if (header_.e_phentsize != sizeof(Elf64_Phdr))
        return damaged(fmt::format("program headers of {} bytes", header_.e_phentsize));
    auto bytes = read(header_.e_phoff, count * sizeof(Elf64_Phdr),
                      kMaxProgramHeaders * sizeof(Elf64_Phdr), "the program headers");
    if (!bytes) return bytes.error();
    program_headers_ = as_table<Elf64_Phdr>(*bytes);
    for (const Elf64_Phdr& program : program_headers_) {
        if (program.p_type != PT_LOAD) continue;
        if (program.p_offset > size() || program.p_filesz > size() - program.p_offset)
            return damaged(
                fmt::format("a segment at offset {:#x} with {:#x} bytes, but the file has {:#x}",
                            program.p_offset, program.p_filesz, size()));
        if (program.p_memsz < program.p_filesz ||
            program.p_vaddr + program.p_memsz < program.p_vaddr)
            return damaged(
                fmt::format("a segment at address {:#x} of impossible size", program.p_vaddr));
        segments_.push_back({program.p_vaddr, program.p_offset, program.p_filesz, program.p_memsz,
                             (program.p_flags & PF_X) != 0, (program.p_flags & PF_W) != 0});
    }
    std::stable_sort(segments_.begin(), segments_.end(),
                     [](const Segment& a, const Segment& b) { return a.address < b.address; });
    for (size_t i = 1; i < segments_.size(); ++i) {
        if (segments_[i].address < segments_[i - 1].address + segments_[i - 1].memory_size)
            return damaged(fmt::format("segments overlap at address {:#x}", segments_[i].address));
    }
    return {};
}

const Elf64_Shdr* Image::section(const std::string& name) const {
    for (const Elf64_Shdr& section : sections_) {
        if (section.sh_name >= section_names_.size()) continue;
        if (name == reinterpret_cast<const char*>(section_names_.data() + section.sh_name))
            return &section;
    }
    return nullptr;
}

Result<std::vector<unsigned char>> Image::read(uint64_t offset, uint64_t count, uint64_t limit,
                                               const std::string& what) const {
    if (offset > size() || count > size() - offset)
        return damaged(fmt::format("{} at offset {:#x} with {:#x} bytes, but the file has {:#x}",
                                   what, offset, count, size()));
    if (count > limit)
        return damaged(
            fmt::format("{} with {} bytes, more than the {} that are read", what, count, limit));
    std::vector<unsigned char> bytes(count);
    if (!source_->read(offset, bytes.data(), bytes.size()))
        return damaged(fmt::format("{} could not be read", what));
    return bytes;
}

Result<std::vector<unsigned char>> Image::read(const Elf64_Shdr& section, uint64_t limit,
                                               const std::string& what) const {
    if (section.sh_type == SHT_NOBITS) return std::vector<unsigned char>{};
    return read(section.sh_offset, section.sh_size, limit, what);
}

Result<std::vector<unsigned char>> Image::read_address(uint64_t address, uint64_t count,
                                                       uint64_t limit,
                                                       const std::string& what) const {
    const Segment* segment = segment_of_address(address);
    if (segment == nullptr)
        return damaged(fmt::format("{} at address {:#x}, outside of every segment", what, address));
    uint64_t within = address - segment->address;
    return read(segment->offset + within, std::min(count, segment->file_size - within), limit,
                what);
}

const Segment* Image::last_segment_from(uint64_t address) const {
    auto after = std::upper_bound(
        segments_.begin(), segments_.end(), address,
        [](uint64_t value, const Segment& segment) { return value < segment.address; });
    return after == segments_.begin() ? nullptr : &*std::prev(after);
}

const Segment* Image::segment_of_address(uint64_t address) const {
    const Segment* last = last_segment_from(address);
    return last != nullptr && address - last->address < last->file_size ? last : nullptr;
}

bool Image::is_loaded(uint64_t address) const {
    const Segment* last = last_segment_from(address);
    return last != nullptr && address - last->address < last->memory_size;
}

std::optional<uint64_t> Image::offset_of_address(uint64_t address) const {
    const Segment* segment = segment_of_address(address);
    if (segment == nullptr) return std::nullopt;
    return segment->offset + (address - segment->address);
}

std::vector<Elf64_Dyn> Image::dynamic() const {
    for (const Elf64_Phdr& program : program_headers_) {
        if (program.p_type != PT_DYNAMIC) continue;
        auto bytes = read(program.p_offset, program.p_filesz, kMaxDynamic, "PT_DYNAMIC");
        if (!bytes) return {};
        std::vector<Elf64_Dyn> entries = as_table<Elf64_Dyn>(*bytes);
        auto end = std::find_if(entries.begin(), entries.end(),
                                [](const Elf64_Dyn& entry) { return entry.d_tag == DT_NULL; });
        entries.erase(end, entries.end());
        return entries;
    }
    return {};
}

std::string Image::build_id() const {
    uint64_t room = kMaxAllNotes;
    const auto id_at = [&](uint64_t offset, uint64_t size) -> std::string {
        if (size > std::min(room, kMaxNotes)) return {};
        room -= size;
        const auto notes = read(offset, size, kMaxNotes, "notes");
        return notes ? build_id_in(*notes) : std::string();
    };
    for (const Elf64_Phdr& program : program_headers_) {
        if (program.p_type != PT_NOTE) continue;
        if (std::string id = id_at(program.p_offset, program.p_filesz); !id.empty()) return id;
    }
    for (const Elf64_Shdr& section : sections_) {
        if (section.sh_type != SHT_NOTE) continue;
        if (std::string id = id_at(section.sh_offset, section.sh_size); !id.empty()) return id;
    }
    return {};
}

namespace {

// DW_EH_PE_ encodings, as every linker writes the table: counts of 4 bytes, distances of 4 bytes
// from the table's own start; in the FDE itself distances from the field.
constexpr unsigned char kUdata4 = 0x03;
constexpr unsigned char kDatarelSdata4 = 0x3b;
constexpr uint64_t kMaxFrameBytes = 64u << 20;

template <typename T>
T value_at(const std::vector<unsigned char>& bytes, size_t at) {
    T value;
    std::memcpy(&value, bytes.data() + at, sizeof value);
    return value;
}

} // namespace

std::vector<std::pair<uint64_t, uint64_t>> Image::frames() const {
    constexpr size_t kHeader = 12; // version, three encodings, .eh_frame, count
    std::vector<std::pair<uint64_t, uint64_t>> frames;
    for (const Elf64_Phdr& header : program_headers_) {
        if (header.p_type != PT_GNU_EH_FRAME) continue;
        auto bytes = read_address(header.p_vaddr, header.p_filesz, kMaxFrameBytes, ".eh_frame_hdr");
        if (!bytes || bytes->size() < kHeader || (*bytes)[0] != 1 || (*bytes)[2] != kUdata4 ||
            (*bytes)[3] != kDatarelSdata4)
            return {};
        const size_t count =
            std::min<size_t>(value_at<uint32_t>(*bytes, 8), (bytes->size() - kHeader) / 8);
        frames.reserve(count);
        for (size_t i = 0; i < count; ++i)
            frames.emplace_back(header.p_vaddr + value_at<int32_t>(*bytes, kHeader + i * 8),
                                header.p_vaddr + value_at<int32_t>(*bytes, kHeader + i * 8 + 4));
        break;
    }
    std::sort(frames.begin(), frames.end());
    return frames;
}

std::optional<uint64_t> Image::frame_end(uint64_t fde, uint64_t start) const {
    constexpr size_t kBegin = 8; // after the length and the distance to the CIE
    auto bytes = read_address(fde, kBegin + 8, kBegin + 8, ".eh_frame");
    if (!bytes || bytes->size() != kBegin + 8) return std::nullopt;
    if (fde + kBegin + value_at<int32_t>(*bytes, kBegin) != start) return std::nullopt;
    return start + value_at<uint32_t>(*bytes, kBegin + 4);
}

} // namespace speedbump::elf
