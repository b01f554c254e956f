// SPDX-License-Identifier: MIT
#pragma once

#include <elf.h>
#include <sys/types.h>

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "elf/symbols.h"
#include "process/maps.h"
#include "process/memory.h"
#include "util/result.h"

namespace speedbump::process {

// Finds out which implementation of an indirect function (IFUNC) a process uses: not by calling
// the resolver, but by reading the addresses that the dynamic linker has already put into the
// process. One object per look at a process; what it reads there it reads once.
class IfuncResolver {
  public:
    // How much is read of all modules, and kept of their names: a process may have any number of
    // them, as large as it likes.
    struct Limits {
        uint64_t read_bytes = uint64_t{1} << 30;
        uint64_t name_bytes = uint64_t{256} << 20;
        uint64_t steps = uint64_t{256} << 20; // mappings gone through, to find an address in them
    };
    // `mappings` are those of the process (read_maps).
    IfuncResolver(pid_t pid, std::vector<Mapping> mappings)
        : IfuncResolver(pid, std::move(mappings), Limits()) {}
    IfuncResolver(pid_t pid, std::vector<Mapping> mappings, const Limits& limits);

    // The file offset, in the same file, of the implementation. `file` is what the mappings with
    // this device and inode show. kNotFound, with the reason in words, when the process has not
    // bound the function yet, binds it to another file, or the name stands for several functions;
    // kPermission when its memory may not be read.
    Result<uint64_t> resolve(const elf::ElfFile& file, uint64_t device, uint64_t inode,
                             const elf::Function& function);

  private:
    bool read(uint64_t address, void* to, size_t size);
    std::optional<std::vector<unsigned char>> read_bytes(uint64_t address, uint64_t size,
                                                         uint64_t limit);
    void read_modules();
    void read_module(const Mapping& first);
    std::vector<Elf64_Phdr> read_programs(const Mapping& first);
    // A word of the process that stands for a symbol, by its number.
    struct Slot {
        uint64_t address;
        uint64_t symbol;
    };
    void add_slots(std::vector<Slot>& slots, uint64_t table, uint64_t size, uint64_t bias);
    void read_slots(const std::vector<Slot>& slots, const std::vector<Elf64_Sym>& names,
                    const std::vector<unsigned char>& text);
    bool may_step(uint64_t count);
    // The file that is asked about, which may lie where another one did.
    struct Asked {
        const elf::ElfFile* file = nullptr;
        uint64_t device = 0;
        uint64_t inode = 0;
        bool operator==(const Asked&) const = default;
    };
    Result<void> read_own_slots(const Asked& asked);
    bool is_ambiguous(const elf::ElfFile& file, std::string_view name);
    bool look_at_own_slots(const elf::ElfFile& file, uint64_t device, uint64_t inode,
                           const elf::Function& function, std::set<uint64_t>& found);
    struct NamedSlots {
        bool elsewhere = false; // bound to another file, or not yet
        bool ambiguous = false; // a name is that of several functions
    };
    NamedSlots look_at_named_slots(const elf::ElfFile& file, uint64_t device, uint64_t inode,
                                   const elf::Function& function, std::set<uint64_t>& found);
    // The offset in the file when the address is that of an implementation.
    std::optional<uint64_t> implementation_at(uint64_t address, const elf::ElfFile& file,
                                              uint64_t device, uint64_t inode) const;

    RemoteMemory memory_;
    std::vector<Mapping> mappings_;
    int read_error_ = 0; // errno of the last read that failed for want of rights
    Limits left_;
    bool is_cut_ = false; // something was left out for want of these
    bool modules_read_ = false;
    std::multimap<std::string, uint64_t> values_; // symbol name to what its slots hold
    Asked asked_;                                 // whose are:
    std::multimap<uint64_t, uint64_t> own_slots_; // resolver's address to slot's address
    // How many functions have each of the indirect functions' names; empty until it is asked for.
    std::unordered_map<std::string_view, uint32_t> times_named_;
};

} // namespace speedbump::process
