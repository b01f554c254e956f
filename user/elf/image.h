// SPDX-License-Identifier: MIT
#pragma once

#include <elf.h>

#include <cstdint>
#include <cstring>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "util/fd.h"
#include "util/result.h"

namespace speedbump::elf {

// Real files stay far below; a hostile one must not make us allocate what its header asks for.
inline constexpr uint64_t kMaxSections = 1u << 18;

// Of a file, from `begin` to before `end`.
struct Extent {
    uint64_t begin = 0;
    uint64_t end = 0;
};

// Where the bytes of an ELF file come from. Never mapped: a file that is truncated meanwhile must
// be an error here and no SIGBUS.
class Source {
  public:
    virtual ~Source() = default;
    virtual uint64_t size() const = 0;
    // False when not all of the bytes could be read. Safe from several threads.
    virtual bool read(uint64_t offset, void* to, size_t size) const = 0;
    virtual int descriptor() const { return -1; } // of the file; -1: it is none
    // Outside of these extents of the range, ascending, there are holes, which read as zeros. All
    // of a range that is not large, or that nothing is known of, is data.
    virtual std::vector<Extent> data_in(uint64_t offset, uint64_t size) const {
        return {{offset, offset + size}};
    }
};

// A regular file; the Fd is owned. kInvalid for everything else than a regular file.
Result<std::shared_ptr<const Source>> make_file_source(Fd fd, const std::string& name);
std::shared_ptr<const Source> make_memory_source(std::vector<unsigned char> bytes);

// One PT_LOAD.
struct Segment {
    uint64_t address = 0;
    uint64_t offset = 0;
    uint64_t file_size = 0;
    uint64_t memory_size = 0;
    bool executable = false;
    bool writable = false;
};

enum class ImageRole {
    kProgram,   // an executable or shared library: its segments must lie in the file
    kDebugFile, // its segments describe the original and are not read
};

// The headers of one ELF file of this machine (64 bits), checked against the size of the file.
class Image {
  public:
    // kInvalid for what is no such file, or is damaged; the message says in what way.
    static Result<Image> parse(std::shared_ptr<const Source> source, const std::string& name,
                               ImageRole role);

    bool is_position_independent() const { return header_.e_type == ET_DYN; }
    const std::vector<Segment>& segments() const { return segments_; } // by address
    const std::vector<Elf64_Phdr>& program_headers() const { return program_headers_; }
    const std::vector<Elf64_Shdr>& sections() const { return sections_; }
    const Elf64_Shdr* section(const std::string& name) const; // nullptr: there is none
    uint64_t size() const { return source_->size(); }

    // The bytes of a range of the file; kInvalid outside of it or above `limit`.
    Result<std::vector<unsigned char>> read(uint64_t offset, uint64_t size, uint64_t limit,
                                            const std::string& what) const;
    Result<std::vector<unsigned char>> read(const Elf64_Shdr& section, uint64_t limit,
                                            const std::string& what) const;
    // The bytes at a virtual address, clipped to the segment's part of the file.
    Result<std::vector<unsigned char>> read_address(uint64_t address, uint64_t size, uint64_t limit,
                                                    const std::string& what) const;

    const Segment* segment_of_address(uint64_t address) const; // nullptr: in none's file part
    // In a segment, or in the zeros behind what the file has of one.
    bool is_loaded(uint64_t address) const;
    std::optional<uint64_t> offset_of_address(uint64_t address) const;
    // The entries of PT_DYNAMIC up to DT_NULL; empty when there is none or it can't be read.
    std::vector<Elf64_Dyn> dynamic() const;
    // The NT_GNU_BUILD_ID note in lower-case hex, or empty.
    std::string build_id() const;
    // Where unwind information begins and the address of its FDE, ascending by the former, as
    // .eh_frame_hdr has them; empty where there is none of the usual form.
    std::vector<std::pair<uint64_t, uint64_t>> frames() const;
    // The end of the code that an FDE describes, when it begins at `start` indeed.
    std::optional<uint64_t> frame_end(uint64_t fde, uint64_t start) const;
    const Source& source() const { return *source_; }

  private:
    const Segment* last_segment_from(uint64_t address) const; // that begins there or before
    Result<void> parse_sections();
    Result<void> parse_segments(ImageRole role);
    Error damaged(const std::string& what) const;

    std::shared_ptr<const Source> source_;
    std::string name_;
    Elf64_Ehdr header_{};
    std::vector<Elf64_Phdr> program_headers_;
    std::vector<Segment> segments_;
    std::vector<Elf64_Shdr> sections_;
    std::vector<unsigned char> section_names_;
};

// The entries of a table of fixed-size records; a partial one at the end is dropped.
template <typename T>
std::vector<T> as_table(const std::vector<unsigned char>& bytes) {
    std::vector<T> table(bytes.size() / sizeof(T));
    if (!table.empty()) std::memcpy(table.data(), bytes.data(), table.size() * sizeof(T));
    return table;
}

} // namespace speedbump::elf
