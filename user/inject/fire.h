// SPDX-License-Identifier: MIT
#pragma once

#include <sys/types.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string_view>
#include <vector>

#include "inject/seccomp_filter.h"
#include "process/memory.h"
#include "process/remote_elf.h"
#include "util/fd.h"
#include "util/result.h"

namespace speedbump::inject {

using std::chrono::nanoseconds;

// The address of a function of glibc.
std::optional<uint64_t> find_in_libc(const std::vector<process::RemoteModule>& modules,
                                     std::string_view name);

// Where in the padding behind code a stub has room and the bytes that are there fit: the first such
// place.
std::optional<uint64_t> find_stub_place(
    const process::RemoteMemory& memory, const std::vector<process::RemoteModule>& modules,
    const std::function<bool(const std::vector<std::byte>& there)>& fits);
// Whether these bytes are a stub, which a loader that was killed has left.
bool is_stub(const std::vector<std::byte>& there);

// What starting a thread in a target took.
struct FireReport {
    uint64_t region = 0;    // where the new thread's Region lies (see payload.h)
    pid_t borrowed = 0;     // the thread that made it
    nanoseconds stopped{0}; // sum over all looks, from when it did not stand yet to the release
    unsigned looks = 0;     // threads stopped, the borrowed one included
};

// Starts a thread in a running process: one thread is stopped at a safe point, given a few hundred
// instructions of its own to run, and released at once; it calls pthread_create and goes back by
// itself. The tracer may die at any moment: before the release nothing has happened, after it the
// target needs nobody.
class Fire {
  public:
    // What the new thread is to do: where in the payload it begins, and the system calls that it
    // and the borrowed thread make.
    struct Errand {
        uint64_t entry;
        const std::vector<NeededCall>* calls;
    };
    // Looks at the process and writes the stub into the padding of a text segment. The modules
    // must outlive the object.
    static Result<std::unique_ptr<Fire>> prepare(pid_t pid,
                                                 const std::vector<process::RemoteModule>& modules,
                                                 const Errand& errand);
    // Takes the stub out again, if no thread can be in it any more.
    ~Fire();
    Fire(const Fire&) = delete;
    Fire& operator=(const Fire&) = delete;

    // Waits for a safe point until `deadline` and fires. Calls ptrace, and only from a thread of
    // its own, so no other thread's wait() sees the target's stops.
    Result<FireReport> fire(std::chrono::steady_clock::time_point deadline);

    // To be called once the new thread, or the borrowed one's error, has been seen: the borrowed
    // thread is past pthread_create.
    void confirm_answer();
    // The errno that the borrowed thread met, 0 for none so far. Best effort: it is written to
    // stack memory that is the target's own again.
    int borrowed_error() const;
    // A signal that came after the borrowed thread had looked for signals, and before it issued its
    // interrupted call again, was handled, but the call would sleep on, where without us it had
    // failed with EINTR: makes it fail. `restarts`: all of the process's handlers have SA_RESTART.
    // (A frame does not tell its signal's number.) To be called once the stub is empty; waits some
    // ms at most, and longer for a thread that gets no CPU.
    void heed_late_signal(bool restarts);
    // Puts the zeros back. True when the stub is gone; false while a thread may be in it.
    bool restore();

  private:
    struct Plan;
    bool is_empty() const;
    explicit Fire(std::unique_ptr<Plan> plan);
    std::unique_ptr<Plan> plan_;
};

} // namespace speedbump::inject
