// SPDX-License-Identifier: MIT
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "util/result.h"

namespace speedbump::elf {

// One function of an ELF file: all symbols of one address folded into one.
struct Function {
    uint64_t address = 0;     // st_value, before relocation
    uint64_t file_offset = 0; // of the first instruction
    uint64_t size = 0;        // st_size, 0 if unknown
    bool is_ifunc = false;    // STT_GNU_IFUNC: address is the resolver's
    std::vector<std::string_view> names; // mangled, without @VERSION; the default version's first
};

// Where to look for a separate debug file: a path as the target sees it (/usr/lib/debug/...) is
// opened below `root` ("" or "/proc/PID/root").
struct DebugSearch {
    std::string root;
    std::vector<std::string> directories = {"/usr/lib/debug"};
};

// The symbols and layout of one ELF file. Immutable after open; safe to read from several threads.
class ElfFile {
  public:
    // Reads the ELF file behind `fd` (not closed, not kept; mapped privately for the duration of
    // the object). `display_path` is used in messages and for the debug link's directory.
    // kInvalid for everything that is no ELF file of this machine, or is damaged.
    static Result<std::shared_ptr<const ElfFile>> open(int fd, std::string display_path,
                                                       const DebugSearch& debug = {});
    ~ElfFile();

    const std::string& path() const;
    const std::string& soname() const;   // DT_SONAME or empty
    const std::string& build_id() const; // lower-case hex or empty
    bool is_position_independent() const;
    // Which of .symtab .dynsym .gnu_debugdata debug-file the symbols came from, for messages.
    const std::vector<std::string>& symbol_sources() const;
    const std::vector<Function>& functions() const; // by address

    // File offset of a virtual address and back; nullopt outside every PT_LOAD.
    std::optional<uint64_t> offset_of_address(uint64_t address) const;
    std::optional<uint64_t> address_of_offset(uint64_t offset) const;
    // The bytes of the file at `offset`, at most `size`, clipped to the file and to its segment;
    // empty unless the offset lies in an executable PT_LOAD.
    std::basic_string_view<unsigned char> code_at(uint64_t offset, size_t size) const;
    // The function that holds (size > 0) or starts at this file offset, or nullptr.
    const Function* function_at_offset(uint64_t offset) const;

  private:
    struct Impl;
    explicit ElfFile(std::unique_ptr<Impl> impl);
    std::unique_ptr<Impl> impl_;
    friend class PlacementAnalysis;
};

} // namespace speedbump::elf
