// SPDX-License-Identifier: MIT
#pragma once

#include <sys/uio.h>
#include <unistd.h>

#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "inject/address_space.h"
#include "inject/blocking_call.h"
#include "inject/fire.h"
#include "inject/frame.h"
#include "inject/payload.h"
#include "inject/safe_point.h"
#include "inject/stopped.h"
#include "inject/wait_watch.h"
#include "process/memory.h"
#include "process/remote_elf.h"
#include "util/clock.h"
#include "util/fd.h"
#include "util/result.h"

namespace speedbump::inject {

inline constexpr uint64_t kAllSignals = ~uint64_t{0};

// What fire.cpp, which knows the process, and borrow.cpp, which takes one of its threads, share.
struct Fire::Plan {
    pid_t pid = 0;
    const std::vector<NeededCall>* calls = nullptr;
    process::RemoteMemory memory{0};
    SafePoints safe_points;
    std::optional<uint64_t> thread_block; // see thread_block_distance()
    AddressSpace space;
    WaitWatch waits;
    Fd pid_fd;
    Fd memory_file;
    uint64_t stub = 0;
    bool stub_is_there = false;
    bool stub_was_there = false;
    bool fired = false;
    bool answered = false;
    uint64_t block_at = 0;
    Block block{}; // what does not depend on the thread
    FireReport report;
    Resumption resumption; // of the borrowed thread
    uint64_t mask = 0;     // of its signals, before
    uint64_t frame_at = 0; // where its ucontext lies
    uint64_t image_at = 0; // what was written below its stack, from the canary
    uint64_t image_end = 0;

    Plan(pid_t target, const std::vector<process::RemoteModule>& modules)
        : pid(target),
          memory(target),
          safe_points(process::RemoteMemory(target), modules),
          thread_block(thread_block_distance(memory, modules)),
          waits(target) {}

    std::set<pid_t> refused;             // threads that will never do
    std::optional<Error> refusal;        // why the first of them will not
    std::map<pid_t, std::string> doubts; // why others did not do when they were last looked at
    std::map<pid_t, uint64_t> too_deep;  // stack pointers with which they have no room

    enum class Look { kFired, kUnsafe, kGone, kStuck };
    Result<Look> look(pid_t tid, Clock::time_point deadline);
    std::optional<WaitWatch::Wait> known_wait(pid_t tid, const BlockedCall& call);
    uint64_t waited_ms(pid_t tid, const std::optional<WaitWatch::Wait>& before) const;
    bool may_be_borrowed(pid_t tid, const Stopped& stopped);
    Result<bool> borrow(pid_t tid, const Resumption& wanted);
    Error give_up() const;
    bool had_late_signal() const;
    bool is_prepared(pid_t tid) const;
    bool write(uint64_t address, const void* data, size_t size) const {
        return pwrite(memory_file.get(), data, size, static_cast<off_t>(address)) ==
               static_cast<ssize_t>(size);
    }
    // Where the thread itself may write, too: through /proc/PID/mem guard pages can be written to.
    bool write_stack(uint64_t address, const void* data, size_t size) const {
        iovec local{const_cast<void*>(data), size};
        iovec remote{reinterpret_cast<void*>(address), size};
        if (process_vm_writev(pid, &local, 1, &remote, 1, 0) == static_cast<ssize_t>(size))
            return true;
        // It does not grow the main thread's stack (6.5); the floor was checked.
        return write(address, data, size);
    }
};

} // namespace speedbump::inject
