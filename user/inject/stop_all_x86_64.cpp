// SPDX-License-Identifier: MIT
#include "inject/stop_all.h"

#include <fmt/format.h>
#include <linux/futex.h>
#include <linux/kcmp.h>
#include <sys/ptrace.h>
#include <sys/syscall.h>
#include <sys/user.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <iterator>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "inject/blocking_call.h"
#include "inject/held_threads_x86_64.h"
#include "inject/hold.h"
#include "inject/process_state.h"
#include "inject/stopped.h"
#include "inject/wait_watch.h"
#include "process/memory.h"
#include "process/threads.h"
#include "util/fd.h"
#include "util/proc.h"

namespace speedbump::inject {
namespace {

using std::chrono::milliseconds;
using Outcome = CodeChange::Outcome;

// How long threads are kept waiting for the last of them, which may have to wait for a CPU: the
// first time, and at most.
constexpr milliseconds kFirstAttempt{50};
constexpr milliseconds kLongestAttempt{1000};
constexpr milliseconds kBetweenAttempts{2};
// The same for one that is in a call which a stop would disturb, at most; and for how much longer
// than the threads stood for it in vain they run then.
constexpr milliseconds kLongestForCalls{200};
constexpr int kRunsLonger = 9;
constexpr milliseconds kToStand{50}; // for one that wants no CPU

// All threads of a process, held by the thread that this runs on.
class HeldProcess {
  public:
    HeldProcess(pid_t pid, int pid_fd, WaitWatch& waits, CallsInTheWay& calls)
        : pid_(pid), pid_fd_(pid_fd), memory_(pid), waits_(waits), calls_(calls) {}
    HeldProcess(const HeldProcess&) = delete;
    HeldProcess& operator=(const HeldProcess&) = delete;
    ~HeldProcess();

    // kInTheWay: a thread is in a call that a stop would disturb.
    enum class Held { kAll, kNotYet, kInTheWay, kGone };
    Result<Held> hold(std::chrono::nanoseconds budget);
    // How long threads have stood.
    std::chrono::nanoseconds stood() const {
        return begun_ ? Clock::now() - *begun_ : std::chrono::nanoseconds(0);
    }
    std::vector<HeldThread>& threads() { return threads_; }
    // Why the last call of hold() was in vain.
    const std::string& doubt() const { return doubt_; }

  private:
    // Whether a stop would not disturb it now. `wait`: since when it waits in a call.
    bool may_stop(pid_t tid, std::optional<WaitWatch::Wait>& wait);
    // False: that would disturb it now.
    Result<bool> ask(pid_t tid);
    // Waits for those that were asked; false: not all of them stand by the deadline.
    Result<bool> wait_for_asked(Clock::time_point deadline);
    // One look at them: those that stand are taken.
    void look_at_all(bool may_have_ended);
    void let_go();
    Error why_not() const;
    void take_registers(pid_t tid, const std::optional<WaitWatch::Wait>& wait);

    pid_t pid_;
    int pid_fd_;
    process::RemoteMemory memory_;
    WaitWatch& waits_;
    CallsInTheWay& calls_;
    std::map<pid_t, std::optional<WaitWatch::Wait>> asked_; // since when they wait in a call
    std::vector<HeldThread> threads_;
    std::string doubt_;
    bool is_stopped_by_signal_ = false;
    std::optional<Clock::time_point> begun_; // to ask them
};

void HeldProcess::let_go() {
    for (HeldThread& thread : threads_) {
        if (thread.released) ptrace(PTRACE_SETREGS, thread.tid, nullptr, &*thread.released);
        release_thread(thread.tid);
    }
    threads_.clear();
}

// Who was asked and does not stand yet would see its epoll_wait() fail with EINTR, were it given
// back before: it is waited for, as long as it wants nothing but a CPU. The others run.
HeldProcess::~HeldProcess() {
    let_go();
    const Clock::time_point deadline = Clock::now() + kToStand;
    for (BetweenLooks between; !asked_.empty();) {
        const bool is_long = between.wait();
        look_at_all(is_long);
        let_go();
        if (!is_long) continue;
        std::set<pid_t> given_up;
        for (const auto& [tid, wait] : asked_)
            if (is_given_up(pid_, tid, deadline)) given_up.insert(tid);
        if (given_up.empty()) continue;
        look_at_all(true); // it may have stopped in between, and want no CPU for that reason
        let_go();
        std::erase_if(asked_, [&](const auto& one) { return given_up.contains(one.first); });
    }
}

// Of one that is not ours to stop.
Error HeldProcess::why_not() const {
    if (std::optional<Error> reason = obstacle(pid_)) return std::move(*reason);
    return process::access_error(pid_, "ptrace", EPERM);
}

bool HeldProcess::may_stop(pid_t tid, std::optional<WaitWatch::Wait>& wait) {
    const auto call = watch_for_call(pid_, tid);
    if (!call || call->number < 0) return true;
    // Whoever waits for a lock goes on waiting for it, with what is left of its time (futex(2));
    // only who is borrowed meanwhile must not have one of glibc's.
    if (call->number == SYS_futex && (call->arguments[1] & FUTEX_CMD_MASK) == FUTEX_WAIT)
        return true;
    const Interruption interruption = judge_interruption(pid_, pid_fd_, *call);
    if (interruption == Interruption::kHarmful) {
        doubt_ = call->number == kUnknownCall
                     ? fmt::format("thread {} is busy in the kernel", tid)
                     : fmt::format("thread {} is in system call {}, which a stop would disturb",
                                   tid, call->number);
        return false;
    }
    if (interruption != Interruption::kRelativeTime) return true;
    wait = waits_.look(tid);
    if (!wait)
        doubt_ = fmt::format(
            "thread {} waits in epoll_wait with a time-out, and the kernel does not tell since "
            "when",
            tid);
    return wait.has_value();
}

Result<bool> HeldProcess::ask(pid_t tid) {
    std::optional<WaitWatch::Wait> wait;
    if (!may_stop(tid, wait)) return false;
    const Hold hold = ask_to_stop(pid_, tid);
    if (hold == Hold::kRefused) return why_not();
    if (hold == Hold::kAsked) asked_[tid] = wait;
    return true;
}

void HeldProcess::look_at_all(bool may_have_ended) {
    for (auto one = asked_.begin(); one != asked_.end();) {
        const auto& [tid, wait] = *one;
        const Hold hold = look_at_asked(pid_, tid, may_have_ended);
        is_stopped_by_signal_ |= hold == Hold::kStoppedBySignal;
        if (hold == Hold::kHeld) take_registers(tid, wait);
        one = hold == Hold::kAsked ? std::next(one) : asked_.erase(one);
    }
}

Result<bool> HeldProcess::wait_for_asked(Clock::time_point deadline) {
    for (BetweenLooks between; !asked_.empty();) {
        const bool is_long = between.wait();
        look_at_all(is_long);
        if (is_stopped_by_signal_) return why_not();
        if (!asked_.empty() && is_long && Clock::now() > deadline) {
            const pid_t tid = asked_.begin()->first;
            doubt_ = fmt::format("thread {} does not stop: {}", tid,
                                 lacks_a_cpu(pid_, tid) ? "it gets no CPU"
                                                        : "it waits in the kernel, as in vfork()");
            return false;
        }
    }
    return true;
}

void HeldProcess::take_registers(pid_t tid, const std::optional<WaitWatch::Wait>& wait) {
    HeldThread thread;
    thread.tid = tid;
    if (ptrace(PTRACE_GETREGS, tid, nullptr, &thread.regs) != 0) return; // it has been killed
    uint64_t waited_ms = 0;
    if (wait) {
        const auto after = read_last_run(pid_, tid);
        if (after && after->switches <= wait->switches + 1)
            waited_ms = static_cast<uint64_t>(
                std::chrono::duration_cast<milliseconds>(Clock::now() - wait->begin).count());
    }
    if (const auto resumed = resumption_of(memory_, stopped_of(thread.regs), waited_ms))
        thread.released = resumed->released;
    threads_.push_back(thread);
}

// All are asked before the first is waited for: where CPUs are few each stands as soon as it has
// its turn, without those before it in the list taking theirs meanwhile.
Result<HeldProcess::Held> HeldProcess::hold(std::chrono::nanoseconds budget) {
    bool is_as_before = false;
    for (const pid_t tid : threads_of_program(pid_)) { // all of them, for `waits_` to see
        std::optional<WaitWatch::Wait> wait;
        is_as_before |= !may_stop(tid, wait) && !lacks_a_cpu(pid_, tid) && calls_.note(pid_, tid);
    }
    if (is_as_before) return Held::kInTheWay;
    begun_ = Clock::now();
    const Clock::time_point deadline = *begun_ + budget;
    const auto for_calls = *begun_ + std::min<std::chrono::nanoseconds>(budget, kLongestForCalls);
    std::set<pid_t> known; // asked, and held or ended since
    for (;;) {
        const std::vector<pid_t> listed = process::read_threads(pid_);
        if (listed.empty()) return Held::kGone;
        bool is_new = false;
        bool is_missing = false;
        bool is_in_the_way = false; // and not for lack of a CPU
        for (const pid_t tid : listed) {
            if (known.contains(tid)) continue;
            is_new = true;
            if (is_kernel_worker(pid_, tid)) {
                known.insert(tid);
                continue;
            }
            auto asked = ask(tid);
            if (!asked) return std::move(asked).error();
            if (*asked) known.insert(tid);
            is_missing |= !*asked;
            is_in_the_way |= !*asked && !lacks_a_cpu(pid_, tid);
        }
        auto all = wait_for_asked(deadline);
        if (!all) return std::move(all).error();
        if (!*all) return Held::kNotYet;
        if (!is_new) return threads_.empty() ? Held::kGone : Held::kAll;
        if (is_missing) {
            if (is_in_the_way && Clock::now() > for_calls) return Held::kInTheWay;
            if (Clock::now() > deadline) return Held::kNotYet;
            std::this_thread::sleep_for(std::chrono::microseconds(200));
        }
    }
}

// A process that has the same memory, which nobody holds: a child of vfork() or clone(). By a held
// thread: a leader that has ended has no memory, as kernel threads have none.
std::optional<pid_t> sharer_of(pid_t pid, pid_t held) {
    const std::vector<pid_t> all = list_pids();
    if (all.empty()) return pid; // nobody knows
    for (const pid_t other : all) {
        if (other == pid) continue;
        const long same = syscall(SYS_kcmp, held, other, KCMP_VM, 0, 0);
        if (same == 0 || (same < 0 && errno == ENOSYS)) return other;
    }
    return std::nullopt;
}

using Bytes = std::basic_string_view<unsigned char>;

Bytes bytes_of(const std::array<unsigned char, kChangedBytes>& bytes) {
    return {bytes.data(), bytes.size()};
}

// Of the first bytes of a change: those that it leaves alone.
size_t left_alone(const CodeChange& change) {
    return change.before[0] == change.after[0] ? 1 : 0;
}

// Whether the code is what it was before. Else the answer is there.
bool is_to_be_changed(int memory_file, CodeChange& change) {
    constexpr unsigned char kBreakpoint = 0xcc;
    change.outcome = Outcome::kNotTried;
    const size_t same = left_alone(change);
    const Bytes before = change.whole.empty() ? bytes_of(change.before) : Bytes(change.whole);
    const Bytes after = bytes_of(change.after).substr(same);
    std::basic_string<unsigned char> there(before.size(), '\0');
    const auto at = static_cast<off_t>(change.address);
    if (pread(memory_file, there.data(), there.size(), at) != static_cast<ssize_t>(there.size()))
        change.outcome = Outcome::kNoCode;
    else if (same != 0 && there[0] != before[0] && there[0] != kBreakpoint)
        change.outcome = Outcome::kOtherCode;
    else if (Bytes(there).substr(same) != before.substr(same))
        change.outcome =
            Bytes(there).substr(same, after.size()) == after ? Outcome::kDone : Outcome::kOtherCode;
    return change.outcome == Outcome::kNotTried;
}

void make_change(int memory_file, CodeChange& change) {
    const size_t same = left_alone(change);
    const Bytes after = bytes_of(change.after).substr(same);
    const auto at = static_cast<off_t>(change.address + same);
    const auto size = static_cast<ssize_t>(after.size());
    std::basic_string<unsigned char> there(after.size(), '\0');
    if (pwrite(memory_file, after.data(), after.size(), at) == size &&
        pread(memory_file, there.data(), there.size(), at) == size && there == after) {
        change.outcome = Outcome::kDone;
        return;
    }
    change.error_number = errno;
    change.outcome = Outcome::kRefused;
}

class Attempt {
  public:
    Attempt(pid_t pid, int pid_fd, const Witness& witness, std::span<CodeChange> changes,
            Quiet* quiet, WaitWatch& waits, CallsInTheWay& calls)
        : pid_(pid),
          pid_fd_(pid_fd),
          witness_(witness),
          changes_(changes),
          quiet_(quiet),
          waits_(waits),
          calls_(calls) {}

    // True: done; false: to be tried again. Waits this long for all threads.
    Result<bool> run(std::chrono::nanoseconds budget) {
        HeldProcess held(pid_, pid_fd_, waits_, calls_);
        auto all = held.hold(budget);
        if (!all) return std::move(all).error();
        if (*all == HeldProcess::Held::kGone) return gone();
        if (*all != HeldProcess::Held::kAll) {
            doubt_ = held.doubt();
            if (*all == HeldProcess::Held::kInTheWay) stood_in_vain_ = held.stood();
            return false;
        }
        // Opened now: what it was before may have been another program's.
        const auto opened = process::open_memory(pid_);
        if (!opened) return opened.error();
        const Fd& memory = *opened;
        std::array<unsigned char, sizeof(witness_.bytes)> there{};
        if (pread(memory.get(), there.data(), there.size(), static_cast<off_t>(witness_.address)) !=
                static_cast<ssize_t>(there.size()) ||
            there != witness_.bytes)
            return gone();
        if (const auto sharer = sharer_of(pid_, held.threads().front().tid)) {
            doubt_ = fmt::format("process {} has the same memory", *sharer);
            return false;
        }
        if (!make_changes(held, memory.get())) return false;
        if (quiet_ == nullptr) return true;
        const Stacks stacks(pid_);
        quiet_->is_quiet =
            std::all_of(held.threads().begin(), held.threads().end(),
                        [&](const auto& thread) { return is_quiet(stacks, *quiet_, thread); });
        return true;
    }
    const std::string& doubt() const { return doubt_; }
    // For a thread in a call that a stop would disturb; nothing: that was not why.
    std::optional<std::chrono::nanoseconds> stood_in_vain() const { return stood_in_vain_; }

  private:
    Error gone() const { return errno_error(fmt::format("process {}", pid_), ESRCH); }

    bool make_changes(HeldProcess& held, int memory_file) {
        std::vector<CodeChange*> wanted;
        for (CodeChange& change : changes_)
            if (is_to_be_changed(memory_file, change)) wanted.push_back(&change);
        Mover mover(pid_, wanted, memory_file);
        for (HeldThread& thread : held.threads()) {
            if (mover.look_at(thread)) continue;
            doubt_ = fmt::format("thread {} stands where code is to be changed", thread.tid);
            return false;
        }
        if (!mover.move()) {
            doubt_ = "a program counter could not be moved";
            return false;
        }
        for (CodeChange* change : wanted) make_change(memory_file, *change);
        return true;
    }

    pid_t pid_;
    int pid_fd_;
    const Witness& witness_;
    std::span<CodeChange> changes_;
    Quiet* quiet_;
    WaitWatch& waits_;
    CallsInTheWay& calls_;
    std::string doubt_;
    std::optional<std::chrono::nanoseconds> stood_in_vain_;
};

} // namespace

Result<void> change_code(const Turn& turn, const Witness& witness, std::span<CodeChange> changes,
                         Quiet* quiet, Clock::time_point deadline) {
    const pid_t pid = turn.pid();
    WaitWatch waits(pid);
    CallsInTheWay calls;
    for (milliseconds budget = kFirstAttempt;;) {
        Attempt attempt(pid, turn.pid_fd().get(), witness, changes, quiet, waits, calls);
        Result<bool> done = false;
        on_tracer_thread([&] { done = attempt.run(budget); });
        if (!done) return std::move(done).error();
        if (*done) return {};
        if (Clock::now() > deadline)
            return make_error(ErrorKind::kTimeout,
                              fmt::format("process {}: its threads could not all be stopped: {}",
                                          pid, attempt.doubt()));
        const auto stood = attempt.stood_in_vain(); // 0: none was asked
        if (stood != std::chrono::nanoseconds(0)) budget = std::min(2 * budget, kLongestAttempt);
        sleep_about(std::max<std::chrono::nanoseconds>(
            kBetweenAttempts, kRunsLonger * stood.value_or(std::chrono::nanoseconds(0))));
    }
}

} // namespace speedbump::inject
