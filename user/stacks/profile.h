// SPDX-License-Identifier: MIT
#pragma once

#include <sys/types.h>

#include <array>
#include <cstdint>
#include <map>
#include <numeric>
#include <string>
#include <tuple>
#include <vector>

#include "stacks/call_tree.h"
#include "stacks/stack_reader.h"
#include "stacks/whole_stack.h"

namespace speedbump::stacks {

// What samples of one function add up to.
struct FunctionUse {
    uint32_t frame = 0; // its number in the tree
    // Stacks that it was the innermost function of; of a Python function: the innermost Python
    // function, whatever native code it had called.
    uint64_t self = 0;
    uint64_t total = 0;                      // stacks that it was in; recursion counts once
    uint64_t active = 0;                     // of `self`: the thread was not asleep
    uint64_t gil = 0;                        // of `self`: the thread held the interpreter lock
    std::map<std::string, uint64_t> threads; // `total` by the thread's name
};

// A thread at the moment of a sample.
struct Sampled {
    pid_t pid = 0;
    pid_t tid = 0;
    bool active = false; // on a CPU or waiting for one
    bool holds_gil = false;
    bool knows_qualified_names = true; // of its Python: false for 3.10
    uint64_t times = 1;                // periods that it stands for
    std::array<char, 16> name{};       // empty: to be asked for in /proc
};

// Why a thread's time at a tick is in no stack.
enum class Unread {
    kRanMeanwhile, // it was asleep, and ran on before its stack was copied
    kUncertain,    // its Python frames were seen too seldom to be certain
    kUnreadable,   // its stacks point to nothing that they should
    kNoRoom,       // it was not taken out of the kernel's memory in time
};
inline constexpr size_t kUnreadKinds = 4;

// Sums up the samples of any number of processes. A count is a period of one thread's time.
class Profile {
  public:
    struct Key {
        std::string name;
        std::string file;
        int first_line = 0;
        bool is_qualified = true; // false: CPython 3.10 knows the bare name only
        auto operator<=>(const Key&) const = default;
    };
    struct NativeKey {
        std::string path;
        std::string name;
        uint64_t entry_offset = 0; // in the file
        auto operator<=>(const NativeKey&) const = default;
    };

    // `frames`: innermost first; without any the thread counts for nothing.
    void add(const Sampled& thread, const std::vector<WholeFrame>& frames);
    // Adds the last sample of a reader of this process: Python frames only.
    void add(pid_t pid, const StackReader& reader);
    void add_failed(Unread why, uint64_t times) { failed_[static_cast<size_t>(why)] += times; }
    void add_unmerged(uint64_t times) { unmerged_ += times; }

    uint64_t stacks() const { return stacks_; } // with frames in them
    uint64_t active_stacks() const { return active_stacks_; }
    uint64_t python_stacks() const { return python_stacks_; }
    uint64_t native_stacks() const { return native_stacks_; }
    uint64_t failed() const { return std::accumulate(failed_.begin(), failed_.end(), uint64_t{0}); }
    uint64_t failed(Unread why) const { return failed_[static_cast<size_t>(why)]; }
    // Stacks of which only one runtime, or not all of the native callers, could be told.
    uint64_t unmerged() const { return unmerged_; }
    const std::map<Key, FunctionUse>& functions() const { return functions_; }
    // Of each process with an active stack, how many of these it had.
    const std::map<pid_t, uint64_t>& active_by_process() const { return active_by_process_; }
    // Those that the symbol tables name.
    const std::map<NativeKey, FunctionUse>& native_functions() const { return native_functions_; }
    // The same, innermost in most stacks first: of threads that were active, then of all.
    std::vector<const NativeKey*> busiest_native() const;
    // All of them whole.
    const CallTree& tree() const { return tree_; }

  private:
    FunctionUse& use_of(const WholeFrame& frame, bool knows_qualified_names);

    uint64_t stacks_ = 0;
    uint64_t active_stacks_ = 0;
    std::map<pid_t, uint64_t> active_by_process_;
    uint64_t python_stacks_ = 0;
    uint64_t native_stacks_ = 0;
    std::array<uint64_t, kUnreadKinds> failed_{};
    uint64_t unmerged_ = 0;
    std::map<Key, FunctionUse> functions_;
    std::map<NativeKey, FunctionUse> native_functions_;
    CallTree tree_;
};

} // namespace speedbump::stacks
