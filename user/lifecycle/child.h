// SPDX-License-Identifier: MIT
#pragma once

#include <sys/types.h>

#include <optional>
#include <string>
#include <vector>

#include "util/fd.h"
#include "util/result.h"

namespace speedbump::lifecycle {

// Exit statuses as shells give them.
inline constexpr int kProgramNotRunnable = 126;
inline constexpr int kProgramNotThere = 127;
inline constexpr int kEndedBySignal = 128; // and its number

// The file that a shell would run for `name`: itself when it holds a slash, else the first
// executable of that name in $PATH. The error's errno is the one execvp would give.
Result<std::string> find_program(const std::string& name);
// 127 for a program that is not there, 126 for one that can't be run.
int exit_status_of_exec_error(int error_number);

// A child process that is held before exec until everything is attached. When this program dies
// before release(), so does the child, without having run anything.
class HeldChild {
  public:
    // Forks. Only while this program has a single thread.
    static Result<HeldChild> start(const std::vector<std::string>& command);
    HeldChild(HeldChild&& other) noexcept = default;
    // A child that was never released ends and is reaped; one that runs is left alone.
    ~HeldChild();

    pid_t pid() const { return pid_; }
    // Lets the child run its program, with `python_path_entry`, if not "", in front of its
    // PYTHONPATH; the error is exec's.
    Result<void> release(const std::string& python_path_entry);
    // The exit status as a shell tells it (128 + N for a signal), or nothing while it runs.
    std::optional<int> poll();
    // The same, after the end of the child.
    int wait();

  private:
    HeldChild() = default;
    pid_t pid_ = -1;
    Fd channel_; // none once it is released
    std::optional<int> status_;
};

} // namespace speedbump::lifecycle
