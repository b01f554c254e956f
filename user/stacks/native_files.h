// SPDX-License-Identifier: MIT
#pragma once

#include <sys/stat.h>
#include <sys/types.h>

#include <chrono>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include "elf/image.h"
#include "elf/symbols.h"
#include "process/maps.h"
#include "util/clock.h"
#include "util/fd.h"
#include "util/result.h"

namespace speedbump::stacks {

class AddressSpace;
struct MappedCode;

// A native function as people know it.
struct NativeFunction {
    std::string path;            // of the file, as the process sees it; "[vdso]"; empty: no file
    std::string name;            // as in the symbol table, demangled; empty: no symbol there
    uint64_t entry_offset = 0;   // of the function in the file
    bool in_interpreter = false; // in a file that has the interpreter's loop
    bool runs_python = false;    // part of the interpreter's loop: Python frames stand for it
};

// A file that a process maps, as far as its stacks need it.
class NativeFile {
  public:
    // `is_copy`: nobody else can change or shorten the file. `kept`: bytes of the tables of all
    // files, which are bounded.
    NativeFile(std::string path, Fd fd, bool is_copy, std::shared_ptr<uint64_t> kept);
    ~NativeFile();
    NativeFile(const NativeFile&) = delete;
    NativeFile& operator=(const NativeFile&) = delete;

    const std::string& path() const { return path_; }
    const Fd& fd() const { return fd_; } // invalid: it could not be opened
    // The function at that place of the file, by its symbols, which are read when first asked for:
    // where `pid`, which maps it, finds its debug file. Never nullptr; lives as long as the file.
    const NativeFunction* function_at(uint64_t file_offset, pid_t pid);
    // Another descriptor of a copy of what libdwfl reads to unwind, at the same places of a file of
    // our own with holes; invalid: there is none.
    Fd unwind_tables();
    // What is added to addresses of the file for code that is mapped at `start` from that offset
    // on; nothing: no code lies there.
    std::optional<uint64_t> bias_of(uint64_t start, uint64_t file_offset);
    bool is_as_opened() const; // and could be

  private:
    void copy_tables();

    std::string path_;
    Fd fd_;
    bool is_copy_;
    std::shared_ptr<uint64_t> kept_;
    uint64_t own_kept_ = 0;
    struct stat status_ {};
    std::shared_ptr<const elf::ElfFile> symbols_;
    bool was_opened_ = false;
    Fd tables_;
    std::vector<elf::Segment> segments_;
    bool were_copied_ = false;
    bool has_loop_ = false;                   // of an interpreter
    const NativeFunction* unnamed_ = nullptr; // for places without a symbol
    std::map<const elf::Function*, const NativeFunction*> by_symbol_;
    std::deque<NativeFunction> functions_;
};

inline constexpr const char* kVdso = "[vdso]";

struct VdsoPlace {
    uint64_t start = 0;
    uint64_t end = 0;
};
// Both 0: the process has none, or is gone.
VdsoPlace find_vdso(pid_t pid);

// The files of all processes whose stacks are read: each is read once for all that map it at the
// same time. Not thread-safe.
class NativeFiles {
  public:
    // Kept as long as one of those that asked for it keeps it.
    std::shared_ptr<NativeFile> file_of(pid_t pid, const process::Mapping& mapping);
    // The code that the kernel maps into each process; ours serves for all where `size` is its
    // size.
    std::shared_ptr<NativeFile> vdso(uint64_t size);

    // What is known of the code that `pid` maps: shared by all that have the same.
    Result<std::shared_ptr<AddressSpace>> space_of(pid_t pid, const MappedCode& code);

    // Looks at mappings must not add up to more than some of a CPU, for however many processes:
    // those in passing to less than those for a stack that leads nowhere.
    bool may_look(bool is_lost) const;
    void looked(std::chrono::nanoseconds cpu) { looking_ += cpu; }

  private:
    // Device, inode, by what name the process knows it (in two containers it may have two), and, as
    // a file may be written to in its place, its size and when it was changed.
    using Key = std::tuple<uint64_t, uint64_t, std::string, int64_t, int64_t, int64_t>;
    std::shared_ptr<uint64_t> kept_ = std::make_shared<uint64_t>(0);
    std::map<Key, std::weak_ptr<NativeFile>> files_; // each open, so that no inode is used again
    size_t clean_at_ = 64;                           // files, some of which may have gone
    std::map<std::string, std::weak_ptr<AddressSpace>> spaces_;
    std::map<uint64_t, std::shared_ptr<NativeFile>> vdso_;
    Clock::time_point start_ = Clock::now();
    std::chrono::nanoseconds looking_{0};
};

} // namespace speedbump::stacks
