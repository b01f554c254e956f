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

// The kernel refuses a thread that has ended, but is still listed, with EPERM (ptrace_attach()).
bool has_ended(pid_t pid, pid_t tid) {
    const std::optional<ThreadStatus> status = read_status(pid, tid);
    return !status || status->state == 'Z' || status->state == 'X';
}

} // namespace

bool BetweenLooks::wait() {
    constexpr nanoseconds kLongest = std::chrono::microseconds(100);
    std::this_thread::sleep_for(pause_);
    pause_ = std::min(pause_ + pause_ / 2, kLongest);
    return pause_ == kLongest;
}

void release_thread(pid_t tid) {
    ptrace(PTRACE_DETACH, tid, nullptr, 0L);
}

Hold ask_to_stop(pid_t pid, pid_t tid, Seen* seen) {
    if (ptrace(PTRACE_SEIZE, tid, nullptr, nullptr) != 0)
        return errno == ESRCH || has_ended(pid, tid) ? Hold::kGone : Hold::kRefused;
    if (seen) *seen = see(pid, tid);
    if (ptrace(PTRACE_INTERRUPT, tid, nullptr, nullptr) == 0) return Hold::kAsked;
    release_thread(tid);
    return Hold::kGone;
}

Hold look_at_asked(pid_t pid, pid_t tid, bool may_have_ended, Seen* seen) {
    // Stops only: the end of a child of ours is for whoever started it.
    siginfo_t info{};
    if (waitid(P_PID, static_cast<id_t>(tid), &info, WSTOPPED | __WALL | WNOHANG) != 0 &&
        errno != EINTR)
        return Hold::kGone;
    if (info.si_pid == 0) return may_have_ended && has_ended(pid, tid) ? Hold::kGone : Hold::kAsked;
    const int signal = info.si_status & 0xff; // the event is above it
    if (info.si_status >> 8 == PTRACE_EVENT_STOP) {
        if (signal == SIGTRAP) return Hold::kHeld;
        release_thread(tid);
        return Hold::kStoppedBySignal;
    }
    // A signal was on its way: let it be delivered, the interrupt follows.
    if (seen) seen->signalled = true;
    return ptrace(PTRACE_CONT, tid, nullptr, static_cast<long>(signal)) == 0 ? Hold::kAsked
                                                                             : Hold::kGone;
}

Hold hold_thread(pid_t pid, pid_t tid, Clock::time_point deadline, Clock::time_point& since,
                 Seen* seen) {
    since = Clock::now();
    Hold hold = ask_to_stop(pid, tid, seen);
    for (BetweenLooks between; hold == Hold::kAsked;) {
        const bool is_long = between.wait();
        const Clock::time_point asked = Clock::now();
        hold = look_at_asked(pid, tid, is_long, seen);
        if (hold != Hold::kAsked) break;
        since = asked; // it is not held yet
        // Seizing it anew would change nothing.
        if (!is_long || !is_given_up(pid, tid, deadline)) continue;
        return look_at_asked(pid, tid, true, seen); // it may have stopped in between
    }
    return hold;
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
