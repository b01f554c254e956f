// SPDX-License-Identifier: MIT
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "abi.h"
#include "stacks/native_stack.h"
#include "stacks/running_account.h"
#include "stacks/sampler.h"
#include "stacks/stack_reader.h"
#include "stacks/thread_account.h"
#include "util/result.h"

namespace speedbump::discover {

// A thread that is off the CPUs, until it runs again.
struct Still {
    sb_still since{};
    stacks::Pending seen;
};

// A process whose stacks are sampled, as long as it runs the same program, and what its samples
// have brought so far.
struct SampledProcess {
    pid_t pid = 0;
    std::optional<uint32_t> execs;             // of the program that it runs (bpf/abi.h)
    std::optional<stacks::StackReader> reader; // of a Python
    std::string why_no_python;                 // where it runs one, but that can't be read
    bool may_start_python = false;             // later: to be asked for again
    uint64_t code_changes = 0;                 // of the unwinder, when it was asked for
    std::optional<stacks::NativeUnwinder> unwinder;
    std::map<pid_t, Still> still;
    std::set<pid_t> unreadable; // of the threads off the CPUs, at this tick
    std::map<pid_t, stacks::ThreadAccount> accounts;
    std::optional<stacks::RunningAccount> running; // since its threads were first looked at
    uint64_t lost = 0; // samples without room, as far as `running` has them
    std::vector<stacks::Pending> pending;
    std::vector<std::pair<pid_t, sb_thread_state>> states; // that the sampler knows

    // Whether a thread or sample with this number of execs is of another program.
    bool has_left(uint32_t number) const { return execs && *execs != number; }
    // What a thread off the CPUs stands with, if it could be read since it left them.
    Still* known_still(const sb_thread& thread);
    // Whether Python frames that were not certain are now; then nothing is left of them.
    bool is_certain(std::vector<stacks::Frame>& python);
    // Looks for a Python where there was none, or had none started. False: the process has ended.
    bool open_python();
    // Whether that may bring something.
    bool is_python_due() const;
    // From now on the sampler samples it, too. False, with the reason: it can't.
    Result<void> add_to(stacks::StackSampler& sampler);
    // Tells the sampler which threads run Python.
    void tell_threads(stacks::StackSampler& sampler);
    // A stack of this thread. `python`: nullptr when it runs none that is known; nothing when it
    // runs some all the same.
    std::optional<stacks::Whole> combine(const stacks::Sampled& thread,
                                         const stacks::NativeStack& native,
                                         const std::vector<stacks::Frame>* python) const;
    stacks::Sampled describe(pid_t tid) const;
};

// How processes are opened.
struct SampledWith {
    stacks::StackSampler* sampler = nullptr; // nullptr: Python stacks alone are read, from outside
    std::shared_ptr<stacks::NativeFiles> files;
    bool python = true;
};
// Opens a process, which is sampled from now on. Nothing: there is nothing of it to sample.
// `notes`: what could not be looked at, and why. `is_new`: it may just have begun to run its
// program.
std::optional<SampledProcess> open_sampled(pid_t pid, const SampledWith& with, bool is_new,
                                           std::vector<std::string>& notes);

} // namespace speedbump::discover
