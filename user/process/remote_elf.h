// SPDX-License-Identifier: MIT
#pragma once

#include <elf.h>
#include <sys/types.h>

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "process/maps.h"
#include "process/memory.h"
#include "util/result.h"

namespace speedbump::process {

// One ELF file as it lies in the memory of a process: executable or shared library. Everything is
// read from memory, so files that are stripped, deleted, replaced or of another mount namespace
// are no different.
class RemoteModule {
  public:
    struct Range {
        uint64_t start = 0;
        uint64_t end = 0;
        bool contains(uint64_t address) const { return address >= start && address < end; }
    };

    const std::string& path() const { return path_; }
    const std::string& soname() const { return soname_; }
    bool is_executable() const { return is_executable_; }    // an ET_EXEC, or has an interpreter
    uint64_t bias() const { return bias_; }                  // address minus p_vaddr
    const std::vector<Range>& code() const { return code_; } // executable mappings
    // The bytes from the end of each executable segment to the end of its last page.
    const std::vector<Range>& code_padding() const { return padding_; }
    bool contains_code(uint64_t address) const;

    // The address of a defined symbol of .dynsym.
    std::optional<uint64_t> find(std::string_view name) const;
    // The symbol that the dynamic linker writes into the word at `slot`, or nothing.
    std::optional<std::string> symbol_of_slot(uint64_t slot) const;

  private:
    // The table of DT_GNU_HASH. Most modules do not define most names: a filter that is short is
    // kept, and says so without another look at the process.
    struct GnuHash {
        uint32_t bucket_count = 0;
        uint32_t first_symbol = 0;
        uint32_t filter_words = 0;
        uint32_t filter_shift = 0;
        std::vector<uint64_t> kept_filter; // empty: too long
        uint64_t filter = 0;
        uint64_t buckets = 0;
        uint64_t chains = 0;
    };

    friend Result<std::vector<RemoteModule>> load_modules(pid_t pid);
    explicit RemoteModule(RemoteMemory memory) : memory_(memory) {}
    bool load(const std::vector<Mapping>& mappings, size_t first, size_t last);
    bool read_segments(std::vector<Elf64_Phdr>& segments);
    void load_dynamic(uint64_t address, uint64_t size);
    uint64_t pointer(uint64_t value) const;
    std::optional<GnuHash> read_gnu_hash(uint64_t address) const;
    bool may_define(const GnuHash& table, uint32_t hash) const;
    std::optional<uint64_t> find_gnu(const GnuHash& table, std::string_view name) const;
    std::optional<uint64_t> find_sysv(std::string_view name) const;
    bool is_named(uint64_t symbol_index, std::string_view name, uint64_t* address) const;
    std::optional<std::string> symbol_at(const Elf64_Rela& entry) const;

    RemoteMemory memory_;
    std::string path_;
    std::string soname_;
    bool is_executable_ = false;
    uint64_t start_ = 0;
    uint64_t bias_ = 0;
    std::vector<Range> code_;
    std::vector<Range> padding_;
    uint64_t symbols_ = 0;
    uint64_t strings_ = 0;
    std::optional<GnuHash> gnu_hash_;
    uint64_t sysv_hash_ = 0;
    std::vector<Range> relocations_; // DT_RELA and DT_JMPREL
};

// The 64-bit ELF files that a process has mapped with executable code, by address. kNotFound when
// it is gone, kPermission when it may not be read.
Result<std::vector<RemoteModule>> load_modules(pid_t pid);

} // namespace speedbump::process
