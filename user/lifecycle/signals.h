// SPDX-License-Identifier: MIT
#pragma once

#include <signal.h>
#include <sys/types.h>

#include <cstdint>
#include <span>

#include "util/fd.h"
#include "util/result.h"

namespace speedbump::lifecycle {

// Turns signals into a readable descriptor while it lives; one at a time per program. The first
// SIGINT, SIGTERM or SIGHUP asks to stop; one that comes half a second later, or more, ends the
// program at once with 128 + N (the kernel takes every probe out with its descriptors). An ignored
// SIGHUP stays ignored (nohup).
class Signals {
  public:
    static Result<Signals> install();
    // The same, and hands to `child` what was sent to this program alone: SIGINT, SIGTERM, SIGHUP,
    // SIGQUIT, SIGUSR1, SIGUSR2, SIGCONT. What a terminal sends reaches the child by itself.
    // SIGCHLD makes the descriptor readable.
    static Result<Signals> install_and_forward(pid_t child);
    Signals(Signals&& other) noexcept = default;
    ~Signals();

    // Readable when a signal came.
    int fd() const { return read_end_.get(); }
    // Empties the descriptor.
    void drain();
    // The signal that asked to stop, or 0.
    int stop_signal() const;
    // Has the signal that asks to stop write a 0 to these words, whatever the program is doing
    // then: waiting for the kernel, or for who reads its output. None: as before.
    void zero_on_stop(std::span<uint32_t* const> words);
    // From now on nothing is forwarded: the child is gone and its PID may be another's.
    void stop_forwarding();

  private:
    Signals() = default;

    Fd read_end_;
    Fd write_end_;
};

} // namespace speedbump::lifecycle
