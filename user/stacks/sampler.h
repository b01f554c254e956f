// SPDX-License-Identifier: MIT
#pragma once

#include <sys/types.h>

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "abi.h"
#include "util/result.h"

namespace speedbump::stacks {

// A thread as the clock's interrupt found it on a CPU, or as it lies off the CPUs. Lives as long as
// the callback.
struct ThreadSample {
    const sb_stack_sample& head;
    std::span<const char> stack; // from the stack pointer on
    std::span<const sb_python_frame> frames;
};

// Takes stacks by BPF (bpf/stacks.bpf.c): of the threads on a CPU at each tick of that CPU's
// clock, as they are at that moment; and of the others when it is asked to. Stops nothing, writes
// nothing. Not thread-safe.
class StackSampler {
  public:
    // `period`: between two ticks of a CPU. kPermission, kUnsupported.
    static Result<std::unique_ptr<StackSampler>> open(std::chrono::nanoseconds period);
    ~StackSampler();

    // From now on the process is sampled; nullptr: it runs no Python. To be called again for a
    // process that has become another program.
    Result<void> add_process(pid_t pid, const sb_python_layout* python);
    void remove_process(pid_t pid);
    // The threads of the process that run Python, all of them.
    void set_thread_states(pid_t pid, const std::vector<std::pair<pid_t, sb_thread_state>>& states);
    // Hands over what was sampled since the last time, for no longer than `limit` on a CPU: the
    // rest waits. Not by the clock: what has been copied would be missing from the next look.
    void drain(const std::function<void(const ThreadSample&)>& take,
               std::chrono::nanoseconds limit);
    // Samples of the process' threads on a CPU for which there was no room, so far.
    uint64_t lost(pid_t pid) const;
    // How often a CPU was sampled again, or for the first time, after it had been offline: nobody
    // knows how many samples that cost. drain() looks for such CPUs every second.
    uint64_t gaps() const;

    // The threads of a process, each as it is at its turn; none: it has ended. Of one that was
    // added samples of those off the CPUs are handed over by drain(): of each that stayed off while
    // its stack was copied, and is not known. kNotFound.
    Result<std::vector<sb_thread>> threads(pid_t pid);
    // The caller has this thread's stack, which stays what it is as long as the thread is still.
    void set_known(pid_t pid, pid_t tid, const sb_still& still);
    void forget(pid_t pid, pid_t tid);

  private:
    struct Impl;
    explicit StackSampler(std::unique_ptr<Impl> impl);
    std::unique_ptr<Impl> impl_;
};

} // namespace speedbump::stacks
