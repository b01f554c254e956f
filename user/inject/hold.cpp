// SPDX-License-Identifier: MIT
#include "inject/hold.h"

#include <fmt/format.h>
#include <sched.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <optional>
#include <random>
#include <string>
#include <thread>

#include "inject/process_state.h"
#include "util/clock.h"

namespace speedbump::inject {

using std::chrono::nanoseconds;

namespace {

// Between two looks whether a thread stands.
constexpr std::chrono::microseconds kFirstPause{10};
constexpr std::chrono::microseconds kLongestPause{100};

// The kernel refuses a thread that has ended, but is still listed, with EPERM (ptrace_attach()).
bool has_ended(pid_t pid, pid_t tid) {
    const std::optional<ThreadStatus> status = read_status(pid, tid);
    return !status || status->state == 'Z' || status->state == 'X';
}

} // namespace

void release_thread(pid_t tid) {
    ptrace(PTRACE_DETACH, tid, nullptr, 0L);
}

Hold hold_thread(pid_t pid, pid_t tid, Clock::time_point deadline, Clock::time_point& since,
                 Seen* seen) {
    if (ptrace(PTRACE_SEIZE, tid, nullptr, nullptr) != 0)
        return errno == ESRCH || has_ended(pid, tid) ? Hold::kGone : Hold::kRefused;
    if (seen) *seen = see(pid, tid);
    since = Clock::now();
    if (ptrace(PTRACE_INTERRUPT, tid, nullptr, nullptr) != 0) {
        release_thread(tid);
        return Hold::kGone;
    }
    for (nanoseconds pause = kFirstPause;;) {
        // Before anything else: it may be on the CPU of this thread, which goes before it, and what
        // it sleeps in may end by itself meanwhile.
        std::this_thread::sleep_for(pause);
        pause = std::min<nanoseconds>(pause + pause / 2, kLongestPause);
        Clock::time_point asked = Clock::now();
        // Stops only: the end of a child of ours is for whoever started it.
        siginfo_t info{};
        if (waitid(P_PID, static_cast<id_t>(tid), &info, WSTOPPED | __WALL | WNOHANG) != 0 &&
            errno != EINTR)
            return Hold::kGone;
        if (info.si_pid == 0) {
            since = asked; // it is not held yet
            if (pause < kLongestPause) continue;
            if (has_ended(pid, tid)) return Hold::kGone;
            // Uninterruptible, or waiting for a CPU. Seizing it anew would change nothing.
            if (asked > deadline) return Hold::kStuck;
            continue;
        }
        const int signal = info.si_status & 0xff; // the event is above it
        if (info.si_status >> 8 == PTRACE_EVENT_STOP) {
            if (signal == SIGTRAP) return Hold::kHeld;
            release_thread(tid);
            return Hold::kStoppedBySignal;
        }
        // A signal was on its way: let it be delivered, the interrupt follows.
        if (seen) seen->signalled = true;
        if (ptrace(PTRACE_CONT, tid, nullptr, static_cast<long>(signal)) != 0) return Hold::kGone;
    }
}

void sleep_about(nanoseconds duration) {
    static thread_local std::minstd_rand random{std::random_device{}()};
    const int64_t length = duration.count();
    std::this_thread::sleep_for(
        nanoseconds(length / 2 + std::uniform_int_distribution<int64_t>(0, length)(random)));
}

void on_tracer_thread(const std::function<void()>& work) {
    pid_t id = 0;
    std::thread tracer([&] {
        sched_param parameter{};
        parameter.sched_priority = 1;
        sched_setscheduler(0, SCHED_FIFO | SCHED_RESET_ON_FORK, &parameter);
        prctl(PR_SET_TIMERSLACK, 1UL, 0UL, 0UL, 0UL);
        id = static_cast<pid_t>(syscall(SYS_gettid));
        work();
    });
    tracer.join();
    // The kernel ends what it still traced some time after join() returns.
    const std::string place = fmt::format("/proc/self/task/{}", id);
    while (access(place.c_str(), F_OK) == 0)
        std::this_thread::sleep_for(std::chrono::microseconds(100));
}

} // namespace speedbump::inject
