// SPDX-License-Identifier: MIT
#pragma once

#include <sys/types.h>

#include <chrono>
#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <vector>

#include "util/result.h"

// What /proc tells of a process or thread without touching it.
namespace speedbump::inject {

// Some fields of /proc/PID/status.
struct ThreadStatus {
    char state = '?'; // R S D T t Z X I
    pid_t parent = 0; // 0: none in this PID name space
    pid_t tracer = 0;
    uint64_t blocked_signals = 0;
    uint64_t pending_signals = 0; // of the thread and of the process
    uint64_t ignored_signals = 0;
    bool shadow_stack = false;
    int seccomp = 0;       // SECCOMP_MODE_*
    uint64_t switches = 0; // how often it has given up the CPU
};
std::optional<ThreadStatus> read_status(pid_t pid, pid_t tid);

// Whether a thread is one of the kernel's that works for the process (io_uring's, vhost's): it is
// listed among its threads and can be stopped, but runs nothing of the program, and what it seems
// to wait in is the call in which it was made.
bool is_kernel_worker(pid_t pid, pid_t tid);
// The others.
std::vector<pid_t> threads_of_program(pid_t pid);

// The thread of a process that has this number in the process's own PID namespace; 0: none.
pid_t thread_named(pid_t pid, pid_t number);

// Whether a thread has no CPU though it could run, as far as that can be told from outside: it is
// asked of one that with a CPU would have been done by now. Others go before it, or its cgroup has
// used up its quota.
bool lacks_a_cpu(pid_t pid, pid_t tid);

// Whether it is waited for no longer: `deadline` is over, and for one that lacks a CPU 10 s more.
// No `tid`: whichever it is, it needs a CPU and nothing else.
bool is_given_up(pid_t pid, std::optional<pid_t> tid,
                 std::chrono::steady_clock::time_point deadline);

// The system call a thread is blocked in, from /proc/PID/task/TID/syscall; nothing while it runs.
struct BlockedCall {
    long number = -1; // -1: blocked, but in no call (a page fault)
    uint64_t arguments[6] = {};
    uint64_t stack_pointer = 0;
    uint64_t program_counter = 0;
};
std::optional<BlockedCall> read_blocked_call(pid_t pid, pid_t tid);

// The call that a thread is in; nothing when it runs and goes on running for a moment. One that
// waits for a CPU counts as running, wherever it is: in a call that has moved data already, too,
// which then is kUnknownCall. Its kernel stack tells; that of a thread that has a CPU is empty. A
// call that no stop disturbs is told by it, too, without its arguments and registers. Who may not
// see that takes every thread that gets no CPU within a tick for one in an unknown call.
std::optional<BlockedCall> watch_for_call(pid_t pid, pid_t tid);
inline constexpr long kUnknownCall = std::numeric_limits<long>::max(); // on no list

// When a process was forked, in clock ticks since the boot; nothing when it is gone.
std::optional<uint64_t> read_start_ticks(pid_t pid);

// How long ago a process was forked; nothing when it is gone. Good to 10 ms.
std::optional<std::chrono::milliseconds> read_age(pid_t pid);

// When a thread last ran, on the clock of the CPU where it did (their clocks leave out interrupts
// and stolen time, so they differ), and how often it gave the CPU up. Nothing where the kernel does
// not show it (/proc/PID/task/TID/sched).
struct LastRun {
    double milliseconds = 0; // 0: not known, the kernel has moved the thread to another CPU since
    uint64_t switches = 0;
    int cpu = 0;
};
std::optional<LastRun> read_last_run(pid_t pid, pid_t tid);

// An error that names why the process can't be attached to now (a zombie, stopped, traced by
// another process), or nothing.
std::optional<Error> obstacle(pid_t pid);

// An error that says so when all threads sleep uninterruptibly (state D), or nothing. For a moment
// that is nothing special (fork, vfork): to be asked when waiting was in vain.
std::optional<Error> uninterruptible(pid_t pid);

} // namespace speedbump::inject
