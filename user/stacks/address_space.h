// SPDX-License-Identifier: MIT
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "abi.h"
#include "process/maps.h"
#include "stacks/native_files.h"
#include "util/result.h"

struct Dwfl;
struct Dwfl_Frame;
struct Dwfl_Thread;

namespace speedbump::stacks {

// As in the kernel's struct pt_regs.
using Registers = std::span<const __u64>;

struct NativeStack {
    struct Frame {
        const NativeFunction* function = nullptr; // lives as long as the unwinder
        uint64_t low = 0; // its part of the stack: from here up to where its caller's begins
    };
    std::vector<Frame> frames; // innermost first
    bool is_complete = false;  // up to the thread's start
    // Where the thread is, when that is in the interpreter's loop, or may be (no symbol there).
    uint64_t loop_pc = 0;
};

// The code that a process has mapped, as it was when it was read.
struct MappedCode {
    std::vector<process::Mapping> files; // executable, by address
    VdsoPlace vdso;
    // The same for processes with the same files at the same places, as forked ones have.
    std::string key;
};
// kNotFound when the process is gone, kPermission.
Result<MappedCode> read_code(pid_t pid);

// What is known of all code in an address space: what to unwind it by and the functions. All of it
// comes from the files, nothing from the memory of a process, so that processes may share it. For
// one thread at a time.
class AddressSpace {
  public:
    // `pid`: one that maps it now.
    static Result<std::shared_ptr<AddressSpace>> open(pid_t pid, const MappedCode& code,
                                                      NativeFiles& files);
    AddressSpace(const AddressSpace&) = delete;
    AddressSpace& operator=(const AddressSpace&) = delete;
    ~AddressSpace();

    // The callers of a thread of `pid`, which has this address space, by the unwind tables
    // (.eh_frame), with elfutils' libdwfl. `stack`: bytes from the stack pointer on.
    NativeStack unwind(pid_t pid, Registers registers, std::span<const char> stack);
    // Functions live as long as their files.
    const std::set<std::shared_ptr<NativeFile>>& files() const { return files_; }
    // Whether all files could be opened, and none was written to since.
    bool is_unchanged() const;

  private:
    // A piece of a file as it is mapped.
    struct Range {
        uint64_t start = 0;
        uint64_t end = 0;
        uint64_t file_offset = 0;
        NativeFile* file = nullptr;

        uint64_t offset_of(uint64_t address) const { return address - start + file_offset; }
    };
    struct DwflDeleter {
        void operator()(Dwfl* dwfl) const;
    };

    AddressSpace() = default;
    static pid_t next_thread(Dwfl*, void* self, void** thread);
    static bool get_thread(Dwfl*, pid_t, void* self, void** thread);
    static bool read_memory(Dwfl*, uint64_t address, uint64_t* value, void* self);
    static bool set_registers(Dwfl_Thread* thread, void* self);
    static int add_frame(Dwfl_Frame* frame, void* self);

    Result<void> report_modules(pid_t pid);
    void report_module(NativeFile& file, const std::string& path, uint64_t bias);
    void follow();
    bool leave_leaf();
    bool has_table(uint64_t pc);
    std::optional<uint32_t> code_at(uint64_t address) const;
    const Range* range_of(uint64_t address) const;
    const NativeFunction* function_at(uint64_t address);
    void forget_much();

    std::unique_ptr<Dwfl, DwflDeleter> dwfl_;
    std::set<std::shared_ptr<NativeFile>> files_;
    std::vector<Range> ranges_; // executable, by address
    std::unordered_map<uint64_t, const NativeFunction*> by_address_;
    std::unordered_map<uint64_t, bool> has_table_; // of unwinding, by address
    std::unordered_map<uint64_t, bool> is_in_leaf_;

    // Of the stack that is unwound.
    pid_t pid_ = 0;
    Registers registers_;
    uint64_t begin_at_ = 0; // where libdwfl takes over
    std::span<const char> stack_;
    NativeStack result_;
};

} // namespace speedbump::stacks
