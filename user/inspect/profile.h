// SPDX-License-Identifier: MIT
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <map>
#include <string>
#include <tuple>

#include "inspect/stack_reader.h"

namespace speedbump::inspect {

// What samples of one Python function add up to.
struct FunctionUse {
    uint64_t self = 0;                       // stacks that it was the innermost function of
    uint64_t total = 0;                      // stacks that it was in; recursion counts once
    uint64_t active = 0;                     // of `self`: the thread was not asleep
    uint64_t gil = 0;                        // of `self`: the thread held the interpreter lock
    std::map<std::string, uint64_t> threads; // `total` by the thread's name
};

// Sums up the samples of any number of processes.
class Profile {
  public:
    struct Key {
        std::string name;
        std::string file;
        int first_line = 0;
        bool is_qualified = true; // false: CPython 3.10 knows the bare name only
        auto operator<=>(const Key&) const = default;
    };

    // Adds the last sample of a reader of this process.
    void add(pid_t pid, const StackReader& reader);

    uint64_t stacks() const { return stacks_; } // with frames in them
    uint64_t active_stacks() const { return active_stacks_; }
    uint64_t failed() const { return failed_; }
    const std::map<Key, FunctionUse>& functions() const { return functions_; }
    // Stacks as flame graph tools take them, outermost first, with their counts:
    // "python3 (12);main (app.py:3);render (views.py:40)".
    const std::map<std::string, uint64_t>& collapsed() const { return collapsed_; }

  private:
    const std::string& thread_name(pid_t pid, pid_t tid);

    uint64_t stacks_ = 0;
    uint64_t active_stacks_ = 0;
    uint64_t failed_ = 0;
    std::map<Key, FunctionUse> functions_;
    std::map<std::string, uint64_t> collapsed_;
    std::map<std::pair<pid_t, pid_t>, std::string> thread_names_;
};

} // namespace speedbump::inspect
