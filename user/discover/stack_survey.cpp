// SPDX-License-Identifier: MIT
#include "discover/stack_survey.h"

#include <algorithm>
#include <map>
#include <memory>
#include <optional>
#include <random>
#include <set>
#include <thread>
#include <utility>
#include <variant>

#include "cpython/interpreter.h"
#include "process/remote_elf.h"
#include "stacks/native_stack.h"
#include "stacks/running_account.h"
#include "stacks/sampler.h"
#include "stacks/stack_reader.h"
#include "stacks/thread_account.h"
#include "util/clock.h"

namespace speedbump::discover {

namespace {

using stacks::is_asleep;
using stacks::is_same;
using stacks::Pending;
using stacks::RunningAccount;
using stacks::Sampled;
using stacks::StackFault;
using stacks::take_periods;
using stacks::ThreadAccount;
using stacks::ThreadStack;
using stacks::Unread;
using stacks::Whole;
using stacks::WholeFrame;
using std::chrono::nanoseconds;

constexpr double kMaxShare = 0.05;     // of a CPU, that looking at the threads may take
constexpr size_t kMaxPending = 10'000; // of a process
constexpr auto kLongestDrain = std::chrono::milliseconds(200);
constexpr auto kDrainAgain = std::chrono::milliseconds(100);
constexpr auto kListAgain = std::chrono::seconds(1);

// A thread that is off the CPUs, until it runs again.
struct Still {
    sb_still since{};
    Pending seen;
};

struct Process {
    pid_t pid = 0;
    std::optional<stacks::StackReader> reader; // of a Python
    std::optional<stacks::NativeUnwinder> unwinder;
    std::map<pid_t, Still> still;
    std::set<pid_t> unreadable; // of the threads off the CPUs, at this tick
    std::map<pid_t, ThreadAccount> accounts;
    std::optional<RunningAccount> running; // since its threads were first looked at
    uint64_t lost = 0;                     // samples without room, as far as `running` has them
    std::vector<Pending> pending;
    std::vector<std::pair<pid_t, sb_thread_state>> states; // that the sampler knows
};

class StackSampling {
  public:
    StackSampling(const StackSurveyOptions& options, const std::function<bool()>& interrupted)
        : options_(options), interrupted_(interrupted), period_(1'000'000'000 / options.rate) {}

    StackSurvey run();

  private:
    void list_processes();
    bool open_process(pid_t pid);
    void look_at_all();
    bool look(Process& process);
    bool look_without_bpf(Process& process);
    void tell_threads(Process& process);
    void take(const stacks::ThreadSample& sample);
    void take_running(Process& process, Whole stack, std::vector<stacks::Frame> python);
    void take_still(Process& process, const sb_still& since, Whole stack,
                    std::vector<stacks::Frame> python);
    void forget_ended(Process& process, const std::vector<sb_thread>& threads);
    static std::optional<Whole> combine(const Process& process, const Sampled& thread,
                                        const stacks::NativeStack& native,
                                        const std::vector<stacks::Frame>* python);
    void count(const Whole& stack);
    void fail(const std::vector<Pending>& pending);
    void count_certain(Process& process);
    void count_running(Process& process);
    void count_waiting(Process& process, ThreadAccount& account);
    void count_asleep(Process& process, Still& still, uint64_t periods);
    std::optional<std::vector<sb_thread>> list_and_copy(Process& process);
    void book_all(Process& process, const std::vector<sb_thread>& threads, uint64_t now_ns);
    void close(Process& process);
    Sampled describe(const Process& process, pid_t tid) const;

    const StackSurveyOptions& options_;
    const std::function<bool()>& interrupted_;
    const nanoseconds period_;
    std::unique_ptr<stacks::StackSampler> sampler_;
    std::shared_ptr<stacks::NativeFiles> files_ = std::make_shared<stacks::NativeFiles>();
    std::map<pid_t, Process> processes_;
    std::set<pid_t> refused_; // once told, not again
    bool has_booked_ = false;
    std::mt19937_64 random_{monotonic_ns()};
    StackSurvey result_;
};

// Tells the sampler which threads run Python.
void StackSampling::tell_threads(Process& process) {
    auto states = process.reader->thread_states();
    const auto is_same = [](const auto& a, const auto& b) {
        return a.first == b.first && a.second.address == b.second.address &&
               a.second.gil == b.second.gil;
    };
    if (std::equal(states.begin(), states.end(), process.states.begin(), process.states.end(),
                   is_same))
        return;
    sampler_->set_thread_states(process.pid, states);
    process.states = std::move(states);
}

bool StackSampling::open_process(pid_t pid) {
    Process process;
    process.pid = pid;
    const auto interpreters = cpython::find_interpreters(pid);
    if (!interpreters && interpreters.error().kind == ErrorKind::kNotFound) return false;
    const bool is_python = !interpreters || !interpreters->empty();
    if (options_.with_python && is_python) {
        auto reader = stacks::StackReader::open(pid, {});
        if (!reader && reader.error().kind == ErrorKind::kNotFound) return false;
        if (reader) {
            result_.interpreters.push_back("process " + std::to_string(pid) + ": " +
                                           reader->interpreter().describe());
            process.reader = std::move(*reader);
        } else {
            result_.notes.push_back(reader.error().message);
        }
    }
    if (sampler_) {
        auto unwinder = stacks::NativeUnwinder::open(pid, files_);
        if (unwinder)
            process.unwinder = std::move(*unwinder);
        else
            result_.notes.push_back(unwinder.error().message);
        if (process.reader) {
            (void)process.reader->list_threads();
            tell_threads(process);
        }
        const auto layout =
            process.reader ? std::optional(process.reader->bpf_layout()) : std::nullopt;
        if (auto added = sampler_->add_process(pid, layout ? &*layout : nullptr); !added) {
            result_.notes.push_back("process " + std::to_string(pid) + ": " +
                                    added.error().message);
            return false;
        }
    }
    if (!process.reader && !process.unwinder) return false;
    processes_.insert_or_assign(pid, std::move(process));
    return true;
}

void StackSampling::list_processes() {
    for (const pid_t pid : options_.list()) {
        if (processes_.contains(pid) || refused_.contains(pid)) continue;
        if (!open_process(pid)) refused_.insert(pid);
    }
}

Sampled StackSampling::describe(const Process& process, pid_t tid) const {
    Sampled thread;
    thread.pid = process.pid;
    thread.tid = tid;
    thread.knows_qualified_names = !process.reader || process.reader->interpreter().minor >= 11;
    return thread;
}

// `python`: nullptr when the thread runs none that is known; nothing when it runs some all the
// same.
std::optional<Whole> StackSampling::combine(const Process& process, const Sampled& thread,
                                            const stacks::NativeStack& native,
                                            const std::vector<stacks::Frame>* python) {
    static const std::vector<stacks::Frame> kNone;
    const bool has_loop =
        std::any_of(native.frames.begin(), native.frames.end(),
                    [](const auto& frame) { return frame.function->runs_python; });
    if (process.reader && python == nullptr && has_loop) return std::nullopt;
    if (python == nullptr) python = &kNone;
    if (auto merged = stacks::merge(native, *python)) return Whole{thread, *merged, true};
    // One of them, then: each is right by itself.
    Whole stack{thread, {}, false};
    for (const stacks::Frame& frame : *python) stack.frames.push_back({frame.function, nullptr});
    if (python->empty())
        for (const stacks::NativeStack::Frame& frame : native.frames)
            stack.frames.push_back({nullptr, frame.function});
    return stack;
}

void StackSampling::count(const Whole& stack) {
    if (!stack.is_whole) result_.profile.add_unmerged(stack.thread.times);
    result_.profile.add(stack.thread, stack.frames);
}

void StackSampling::fail(const std::vector<Pending>& pending) {
    for (const Pending& one : pending)
        result_.profile.add_failed(Unread::kUncertain, one.stack.thread.times);
}

void StackSampling::count_certain(Process& process) {
    std::erase_if(process.pending, [&](const Pending& one) {
        if (!process.reader->is_certain(one.python)) return false;
        count(one.stack);
        return true;
    });
    if (process.pending.size() <= kMaxPending) return;
    fail(process.pending);
    process.pending.clear();
}

// Whether Python frames that were not certain are now; then nothing is left of them.
bool is_certain(Process& process, std::vector<stacks::Frame>& python) {
    if (!python.empty() && process.reader->is_certain(python)) python.clear();
    return python.empty();
}

// What a thread off the CPUs stands with, if it could be read since it left them.
Still* known_still(Process& process, const sb_thread& thread) {
    const auto found = process.still.find(static_cast<pid_t>(thread.tid));
    return found != process.still.end() && is_same(found->second.since, thread.still)
               ? &found->second
               : nullptr;
}

void StackSampling::count_running(Process& process) {
    if (!process.running) return;
    const uint64_t lost = sampler_->lost(process.pid);
    for (; process.lost < lost; ++process.lost) process.running->add(Unread::kNoRoom);
    process.running->settle(period_, [&](RunningAccount::Sample&& sample, uint64_t periods) {
        if (periods == 0) return;
        if (const Unread* why = std::get_if<Unread>(&sample))
            return result_.profile.add_failed(*why, periods);
        auto& seen = std::get<Pending>(sample);
        seen.stack.thread.times = periods;
        if (is_certain(process, seen.python))
            count(seen.stack);
        else
            process.pending.push_back(std::move(seen));
    });
    if (process.reader) count_certain(process);
}

void StackSampling::count_waiting(Process& process, ThreadAccount& account) {
    if (!account.waits_at) return;
    const uint64_t periods = take_periods(account.waiting_ns, period_);
    if (periods == 0) return;
    account.waits_at->stack.thread.times = periods;
    if (is_certain(process, account.waits_at->python))
        count(account.waits_at->stack);
    else
        process.pending.push_back(*account.waits_at);
}

// Its last samples.
void StackSampling::close(Process& process) {
    count_running(process);
    fail(process.pending);
    for (auto& [tid, account] : process.accounts)
        result_.profile.add_failed(
            Unread::kRanMeanwhile,
            take_periods(account.asleep_ns, period_) + take_periods(account.waiting_ns, period_));
    if (sampler_) sampler_->remove_process(process.pid);
}

// What is known of threads that have ended.
void StackSampling::forget_ended(Process& process, const std::vector<sb_thread>& threads) {
    constexpr size_t kSpare = 64; // so that it is not done at each tick
    if (std::max(process.accounts.size(), process.still.size()) <= threads.size() + kSpare) return;
    std::set<pid_t> alive;
    for (const sb_thread& thread : threads) alive.insert(static_cast<pid_t>(thread.tid));
    std::erase_if(process.accounts, [&](const auto& one) { return !alive.contains(one.first); });
    std::erase_if(process.still, [&](const auto& one) {
        if (alive.contains(one.first)) return false;
        sampler_->forget(process.pid, one.first);
        return true;
    });
}

void StackSampling::count_asleep(Process& process, Still& still, uint64_t periods) {
    if (!is_certain(process, still.seen.python))
        return result_.profile.add_failed(Unread::kUncertain, periods);
    still.seen.stack.thread.times = periods;
    count(still.seen.stack);
}

// The times of threads since the look before. Where one slept then, it slept until it woke up, and
// waited for a CPU, unless it was taken off one since: then it waits, as far as is known, where it
// was last seen running.
void StackSampling::book_all(Process& process, const std::vector<sb_thread>& threads,
                             uint64_t now_ns) {
    for (const sb_thread& thread : threads) {
        if (thread.ended != 0) continue; // a main thread that has left the others stays among them
        const auto tid = static_cast<pid_t>(thread.tid);
        ThreadAccount& account = process.accounts[tid];
        const sb_thread before = account.last;
        account.book(thread, now_ns);
        Still* const slept_at = is_asleep(before) ? known_still(process, before) : nullptr;
        // Most have not waited, and a stack is much to copy.
        const bool has_waited = thread.waited_ns != before.waited_ns ||
                                account.waiting_ns >= static_cast<uint64_t>(period_.count());
        if (has_waited && slept_at != nullptr && thread.preempted == before.preempted)
            account.wait_at(slept_at->seen);
        else if (has_waited && account.ran_at)
            account.waits_at = account.ran_at;
        if (slept_at == nullptr || is_asleep(thread)) continue;
        if (const uint64_t periods = take_periods(account.asleep_ns, period_); periods > 0)
            count_asleep(process, *slept_at, periods);
    }
}

// Its threads, whose times are booked, and the stacks of those off the CPUs, where these are new.
std::optional<std::vector<sb_thread>> StackSampling::list_and_copy(Process& process) {
    const uint64_t now_ns = monotonic_ns();
    auto threads = sampler_->threads(process.pid);
    if (!threads) return std::nullopt;
    // What is told lies between the first and the last time that is booked.
    if (!std::exchange(has_booked_, true)) result_.from_ns = now_ns;
    result_.to_ns = now_ns;
    if (process.running)
        process.running->look();
    else
        process.running.emplace(process.pid);
    book_all(process, *threads, now_ns);
    process.unreadable.clear();
    sampler_->drain([this](const stacks::ThreadSample& sample) { take(sample); }, kLongestDrain);
    return std::move(*threads);
}

// A look at a process; false when it is gone or runs another program now. Of a thread on a CPU that
// CPU's clock tells. What one has slept is counted where it is found asleep, or it could not be
// read there; what it has waited for a CPU where it is found waiting.
bool StackSampling::look(Process& process) {
    if (process.reader) {
        const auto listed = process.reader->list_threads();
        if (!listed && listed.error().kind == ErrorKind::kNotFound) return false;
        tell_threads(process);
    }
    auto threads = list_and_copy(process);
    // Once more, for those that ran while they were copied.
    if (threads && std::any_of(threads->begin(), threads->end(), [&](const sb_thread& thread) {
            return thread.ended == 0 && is_asleep(thread) &&
                   known_still(process, thread) == nullptr;
        }))
        threads = list_and_copy(process);
    if (!threads) return false;
    forget_ended(process, *threads);
    bool is_alive = false;
    for (const sb_thread& thread : *threads) {
        if (thread.ended != 0) continue;
        is_alive = true;
        const auto tid = static_cast<pid_t>(thread.tid);
        ThreadAccount& account = process.accounts[tid];
        Still* const known = known_still(process, thread);
        const bool waits = thread.on_cpu == 0 && thread.runnable != 0;
        if (waits && known != nullptr) account.wait_at(known->seen);
        count_waiting(process, account);
        if (!is_asleep(thread)) continue;
        const uint64_t periods = take_periods(account.asleep_ns, period_);
        if (periods == 0) continue;
        if (known != nullptr) {
            count_asleep(process, *known, periods);
        } else {
            const bool was_copied = process.unreadable.contains(tid);
            result_.profile.add_failed(was_copied ? Unread::kUnreadable : Unread::kRanMeanwhile,
                                       periods);
        }
    }
    return is_alive;
}

bool StackSampling::look_without_bpf(Process& process) {
    const auto sampled = process.reader->sample();
    if (sampled) result_.profile.add(process.pid, *process.reader);
    return sampled || sampled.error().kind != ErrorKind::kNotFound;
}

void StackSampling::take(const stacks::ThreadSample& sample) {
    const auto found = processes_.find(static_cast<pid_t>(sample.head.pid));
    if (found == processes_.end()) return;
    Process& process = found->second;
    if (!process.running) return; // of a time that no account has
    Sampled thread = describe(process, static_cast<pid_t>(sample.head.tid));
    thread.active = sample.head.on_cpu != 0;
    thread.holds_gil = sample.head.holds_gil != 0;
    stacks::NativeStack native;
    if (process.unwinder) native = process.unwinder->unwind(sample.head.registers, sample.stack);
    std::optional<ThreadStack> python;
    bool was_read = sample.head.python_fault == SB_PYTHON_NONE;
    if (sample.head.python_fault == SB_PYTHON_FINE && process.reader) {
        python = process.reader->interpret(thread.tid, sample.frames, native.loop_pc);
        was_read = python->fault == StackFault::kFine;
    }
    auto whole = was_read ? combine(process, thread, native, python ? &python->frames : nullptr)
                          : std::nullopt;
    const bool is_certain = !python || process.reader->is_certain(python->frames);
    std::vector<stacks::Frame> doubtful;
    if (!is_certain) doubtful = std::move(python->frames);
    if (whole && sample.head.on_cpu != 0)
        take_running(process, std::move(*whole), std::move(doubtful));
    else if (whole)
        take_still(process, sample.head.still, std::move(*whole), std::move(doubtful));
    else if (sample.head.on_cpu == 0)
        process.unreadable.insert(thread.tid);
    else
        process.running->add(Unread::kUnreadable);
}

// `python`: its frames, when they are not certain.
void StackSampling::take_running(Process& process, Whole stack, std::vector<stacks::Frame> python) {
    Pending sample{std::move(stack), std::move(python)};
    if (sample.python.empty()) process.accounts[sample.stack.thread.tid].ran_at = sample;
    process.running->add(std::move(sample));
}

void StackSampling::take_still(Process& process, const sb_still& since, Whole stack,
                               std::vector<stacks::Frame> python) {
    const pid_t tid = stack.thread.tid;
    process.still[tid] = {since, {std::move(stack), std::move(python)}};
    sampler_->set_known(process.pid, tid, since);
}

void StackSampling::look_at_all() {
    std::vector<pid_t> gone;
    for (auto& [pid, process] : processes_)
        if (!(sampler_ ? look(process) : look_without_bpf(process))) gone.push_back(pid);
    // What they had left before they ended.
    if (sampler_) sampler_->drain([this](const auto& sample) { take(sample); }, kLongestDrain);
    for (const pid_t pid : gone) {
        close(processes_.at(pid));
        processes_.erase(pid);
    }
}

StackSurvey StackSampling::run() {
    const auto cpu_before = thread_cpu_time();
    const Clock::time_point opened_at = Clock::now();
    if (options_.with_native) {
        auto opened = stacks::StackSampler::open(period_);
        if (opened)
            sampler_ = std::move(*opened);
        else
            result_.notes.push_back("native stacks: " + opened.error().message);
    }
    list_processes();
    const Clock::time_point start = Clock::now();
    const Clock::time_point end = start + options_.duration;
    result_.from_ns = monotonic_ns();
    Clock::time_point next = start;
    Clock::time_point next_list = start + kListAgain;
    for (bool is_over = false; !is_over;) {
        std::this_thread::sleep_until(std::min({next, end, Clock::now() + kDrainAgain}));
        const Clock::time_point now = Clock::now();
        is_over = now >= end || interrupted_();
        if (now >= next || is_over) {
            const auto before = thread_cpu_time();
            look_at_all();
            const auto spent = thread_cpu_time() - before;
            // One in each period, at a random moment of it: the clocks of the CPUs have the same
            // period, and would else tick each time just while this program has a thread's CPU.
            const nanoseconds within(static_cast<int64_t>(
                random_() % static_cast<uint64_t>(nanoseconds(period_).count())));
            next = std::max(start + ((now - start) / period_ + 1) * period_ + within,
                            now + std::chrono::duration_cast<nanoseconds>(spent / kMaxShare));
        }
        if (sampler_) sampler_->drain([this](const auto& sample) { take(sample); }, kLongestDrain);
        if (now > next_list || processes_.empty()) {
            for (auto& [pid, process] : processes_) count_running(process);
            list_processes();
            next_list = Clock::now() + kListAgain;
        }
        is_over = is_over || processes_.empty();
    }
    if (!has_booked_) result_.to_ns = monotonic_ns();
    for (auto& [pid, process] : processes_) close(process);
    if (sampler_ && sampler_->gaps() > 0)
        result_.notes.push_back(
            "samples were lost: a CPU went offline or came online while it was to be sampled");
    result_.own_cpu = ns(thread_cpu_time() - cpu_before) / ns(Clock::now() - opened_at);
    return std::move(result_);
}

} // namespace

StackSurvey survey_stacks(const StackSurveyOptions& options,
                          const std::function<bool()>& interrupted) {
    return StackSampling(options, interrupted).run();
}

} // namespace speedbump::discover
