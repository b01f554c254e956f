// SPDX-License-Identifier: MIT
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "util/result.h"

namespace speedbump::elf {

struct Extent;
struct Segment;

// One function of an ELF file: all symbols of one address folded into one.
struct Function {
    uint64_t address = 0;     // st_value, before relocation
    uint64_t file_offset = 0; // of the first instruction
    uint64_t size = 0;        // st_size, the largest of the aliases'; 0 if unknown
    bool is_ifunc = false;    // STT_GNU_IFUNC: address is the resolver's
    bool is_typed = false;    // FUNC or GNU_IFUNC: said to be code; false: a name in a code section
    // Mangled, without @VERSION, never empty; the default version's first, then global before
    // weak before local, then names without a leading underscore. They live as long as the ElfFile.
    std::span<const std::string_view> names;
};

// Where to look for a separate debug file: a path as the target sees it (/usr/lib/debug/...) is
// opened below `root` ("" or "/proc/PID/root").
struct DebugSearch {
    std::string root;
    std::vector<std::string> directories = {"/usr/lib/debug"};
};

// One dynamic relocation, as far as code addresses are concerned.
struct Relocation {
    uint64_t address = 0; // of the word that is relocated, before relocation
    uint64_t addend = 0;  // for R_*_RELATIVE and R_*_IRELATIVE the address it makes
    uint32_t type = 0;    // R_X86_64_..., R_AARCH64_...
};

// The symbols and layout of one ELF file. Immutable after open; safe to use from several threads.
//
// What counts as a function: defined FUNC and GNU_IFUNC symbols, and global or weak symbols
// without a type in a section of code that lie inside no typed function (hand-written assembly).
// All of them only where they point into an executable PT_LOAD. The part of a function that a
// compiler moved away (f.cold) is none: nothing calls it.
class ElfFile {
  public:
    // Reads the ELF file behind `fd`, which stays the caller's: a duplicate is kept, for code and
    // relocations, which are read when first asked for. `display_path` is used in messages and
    // for the debug link's directory. kInvalid for everything that is no ELF file of this
    // machine, or is damaged.
    static Result<std::shared_ptr<const ElfFile>> open(int fd, std::string display_path,
                                                       const DebugSearch& debug = {});
    ~ElfFile();

    const std::string& path() const;
    const std::string& soname() const;   // DT_SONAME or empty
    const std::string& build_id() const; // lower-case hex or empty
    bool is_position_independent() const;
    // Which of .symtab .dynsym .gnu_debugdata debug-file the symbols came from, for messages.
    const std::vector<std::string>& symbol_sources() const;
    // What was found but not used, and why: a debug file of another build, a damaged section.
    const std::vector<std::string>& warnings() const;
    const std::vector<Function>& functions() const; // by address
    // The end of the code whose unwind information (.eh_frame) begins at just this address, which
    // proves it to be code; nullopt: there is none.
    std::optional<uint64_t> frame_end(uint64_t address) const;
    bool has_section(const std::string& name) const;
    // Addresses of code symbols that are no functions (local labels), ascending.
    const std::vector<uint64_t>& labels() const;

    // File offset of a virtual address and back; nullopt outside every PT_LOAD.
    std::optional<uint64_t> offset_of_address(uint64_t address) const;
    std::optional<uint64_t> address_of_offset(uint64_t offset) const;
    // The bytes of the file at `offset`, at most `size`, clipped to the file and to its segment;
    // empty unless the offset lies in an executable PT_LOAD, or when it can't be read any more.
    // They live as long as this object.
    std::basic_string_view<unsigned char> code_at(uint64_t offset, size_t size) const;
    // Why code_at() is empty there, as a sentence without its end.
    const char* why_no_code(uint64_t offset) const;
    // The function that holds (size > 0) or starts at this file offset, or nullptr.
    const Function* function_at_offset(uint64_t offset) const;

    const std::vector<Segment>& segments() const; // elf/image.h; by address
    // The parts of one of them, as offsets within it, that hold all that is not zero: the rest are
    // holes of the file. Ascending; they begin at multiples of 64, and end there or with it.
    std::vector<Extent> data_in(const Segment& segment) const;
    // Bytes of the file; kInvalid outside of it, kIo when it was cut short meanwhile.
    Result<std::vector<unsigned char>> read(uint64_t offset, size_t size) const;
    // Every entry of the RELA and RELR tables that sections or PT_DYNAMIC name.
    Result<std::vector<Relocation>> relocations() const;

  private:
    struct Impl;
    explicit ElfFile(std::unique_ptr<Impl> impl);
    std::unique_ptr<Impl> impl_;
};

} // namespace speedbump::elf
