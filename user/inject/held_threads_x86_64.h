// SPDX-License-Identifier: MIT
#pragma once

#include <sys/types.h>
#include <sys/user.h>

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "inject/address_space.h"
#include "inject/stop_all.h"
#include "process/memory.h"

// Where the threads of a process stand while all of them are held.
namespace speedbump::inject {

struct HeldThread {
    pid_t tid = 0;
    user_regs_struct regs{};
    // Registers with which an interrupted call goes on; nothing: the kernel sees to it.
    std::optional<user_regs_struct> released;
};

// What lies on the stacks that a thread stands on: the one of its stack pointer, and where signal
// frames are found, those of the code that was interrupted.
class Stacks {
  public:
    explicit Stacks(pid_t pid) : memory_(pid), space_(pid) {}

    // `visit_words` is called with where each stack lies, and its words; false ends it, as do too
    // many stacks.
    using Visit = std::function<bool(uint64_t start, const std::vector<uint64_t>& words)>;
    bool visit(uint64_t stack_pointer, const Visit& visit_words) const;

  private:
    process::RemoteMemory memory_;
    AddressSpace space_;
};

// Moves program counters that lie in ranges which change: all of them, or, where one can't be
// moved, none.
class Mover {
  public:
    Mover(pid_t pid, std::span<CodeChange* const> changes, int memory_file);

    // Takes down what is to be moved of a thread; false: one can't be.
    bool look_at(HeldThread& thread);
    // All that was taken down; false: one could not be.
    bool move() const;

  private:
    struct Place {
        bool is_inside = false;
        uint64_t moved = 0;
    };
    Place place_of(uint64_t counter) const;
    bool look_at_frames(uint64_t start, const std::vector<uint64_t>& words);

    Stacks stacks_;
    int memory_file_;
    std::map<uint64_t, const CodeChange*> by_address_;
    std::vector<std::pair<HeldThread*, uint64_t>> threads_;
    std::vector<std::pair<uint64_t, uint64_t>> frames_; // where their program counters are
};

// Whether a thread neither is in the range nor comes back to it.
bool is_quiet(const Stacks& stacks, const Quiet& range, const HeldThread& thread);

} // namespace speedbump::inject
