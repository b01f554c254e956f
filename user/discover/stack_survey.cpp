// SPDX-License-Identifier: MIT
#include "discover/stack_survey.h"

#include <algorithm>
#include <iterator>
#include <map>
#include <memory>
#include <optional>
#include <random>
#include <set>
#include <thread>
#include <utility>
#include <variant>

#include "discover/sampled_process.h"
#include "util/clock.h"

namespace speedbump::discover {

namespace {

using stacks::is_asleep;
using stacks::Pending;
using stacks::RunningAccount;
using stacks::Sampled;
using stacks::StackFault;
using stacks::take_periods;
using stacks::ThreadAccount;
using stacks::ThreadStack;
using stacks::Unread;
using stacks::Whole;
using std::chrono::nanoseconds;

constexpr double kMaxShare = 0.05;     // of a CPU, that looking at the threads may take
constexpr size_t kMaxPending = 10'000; // of a process
constexpr auto kLongestDrain = std::chrono::milliseconds(200);
constexpr auto kDrainAgain = std::chrono::milliseconds(100);
constexpr auto kListAgain = std::chrono::seconds(1);

class StackSampling {
  public:
    StackSampling(const StackSurveyOptions& options, const std::function<bool()>& interrupted)
        : options_(options), interrupted_(interrupted), period_(1'000'000'000 / options.rate) {}

    StackSurvey run();

  private:
    void list_processes();
    bool open_process(pid_t pid, bool is_new);
    void note_python(const SampledProcess& process);
    void look_for_pythons();
    void look_at_all();
    bool look(SampledProcess& process);
    bool look_without_bpf(SampledProcess& process);
    void take(const stacks::ThreadSample& sample);
    void take_running(SampledProcess& process, Whole stack, std::vector<stacks::Frame> python);
    void take_still(SampledProcess& process, const sb_still& since, Whole stack,
                    std::vector<stacks::Frame> python);
    void forget_ended(SampledProcess& process, const std::vector<sb_thread>& threads);
    void count(const Whole& stack);
    void fail(const std::vector<Pending>& pending);
    void count_certain(SampledProcess& process);
    void count_running(SampledProcess& process);
    void count_waiting(SampledProcess& process, ThreadAccount& account);
    void count_asleep(SampledProcess& process, Still& still, uint64_t periods);
    std::optional<std::vector<sb_thread>> list_and_copy(SampledProcess& process);
    void book_all(SampledProcess& process, const std::vector<sb_thread>& threads, uint64_t now_ns);
    void close(SampledProcess& process);

    const StackSurveyOptions& options_;
    const std::function<bool()>& interrupted_;
    const nanoseconds period_;
    std::unique_ptr<stacks::StackSampler> sampler_;
    std::shared_ptr<stacks::NativeFiles> files_ = std::make_shared<stacks::NativeFiles>();
    std::map<pid_t, SampledProcess> processes_;
    std::set<pid_t> refused_; // once told, not again
    bool has_booked_ = false;
    bool has_listed_ = false;
    std::mt19937_64 random_{monotonic_ns()};
    StackSurvey result_;
};

void StackSampling::note_python(const SampledProcess& process) {
    if (process.reader)
        result_.interpreters.push_back("process " + std::to_string(process.pid) + ": " +
                                       process.reader->interpreter().describe());
}

// Whether there is something of it to sample.
bool StackSampling::open_process(pid_t pid, bool is_new) {
    auto process =
        open_sampled(pid, {sampler_.get(), files_, options_.with_python}, is_new, result_.notes);
    if (!process) {
        if (sampler_) sampler_->remove_process(pid);
        return false;
    }
    note_python(*process);
    processes_.insert_or_assign(pid, std::move(*process));
    return true;
}

// Of processes that run none so far.
void StackSampling::look_for_pythons() {
    for (auto& [pid, process] : processes_) {
        if (!options_.with_python || !process.is_python_due()) continue;
        (void)process.open_python(); // the next look sees when it has ended
        if (!process.reader) continue;
        if (sampler_) {
            count_running(process);
            for (const auto& [tid, still] : process.still) sampler_->forget(pid, tid);
            process.still.clear(); // they may stand in Python
            if (auto added = process.add_to(*sampler_); !added)
                result_.notes.push_back(added.error().message);
        }
        note_python(process);
    }
}

void StackSampling::list_processes() {
    const std::vector<pid_t> listed = options_.list();
    // A number may be used again.
    const std::set<pid_t> alive(listed.begin(), listed.end());
    std::erase_if(refused_, [&](pid_t pid) { return !alive.contains(pid); });
    for (const pid_t pid : listed) {
        if (processes_.contains(pid) || refused_.contains(pid)) continue;
        if (!open_process(pid, has_listed_)) refused_.insert(pid);
    }
    has_listed_ = true;
}

void StackSampling::count(const Whole& stack) {
    if (!stack.is_whole) result_.profile.add_unmerged(stack.thread.times);
    result_.profile.add(stack.thread, stack.frames);
}

void StackSampling::fail(const std::vector<Pending>& pending) {
    for (const Pending& one : pending)
        result_.profile.add_failed(Unread::kUncertain, one.stack.thread.times);
}

void StackSampling::count_certain(SampledProcess& process) {
    std::erase_if(process.pending, [&](const Pending& one) {
        if (!process.reader->is_certain(one.python)) return false;
        count(one.stack);
        return true;
    });
    if (process.pending.size() <= kMaxPending) return;
    fail(process.pending);
    process.pending.clear();
}

void StackSampling::count_running(SampledProcess& process) {
    if (!process.running) return;
    const uint64_t lost = sampler_->lost(process.pid);
    for (; process.lost < lost; ++process.lost) process.running->add(Unread::kNoRoom);
    process.running->settle(period_, [&](RunningAccount::Sample&& sample, uint64_t periods) {
        if (periods == 0) return;
        if (const Unread* why = std::get_if<Unread>(&sample))
            return result_.profile.add_failed(*why, periods);
        auto& seen = std::get<Pending>(sample);
        seen.stack.thread.times = periods;
        if (process.is_certain(seen.python))
            count(seen.stack);
        else
            process.pending.push_back(std::move(seen));
    });
    if (process.reader) count_certain(process);
}

void StackSampling::count_waiting(SampledProcess& process, ThreadAccount& account) {
    if (!account.waits_at) return;
    const uint64_t periods = take_periods(account.waiting_ns, period_);
    if (periods == 0) return;
    account.waits_at->stack.thread.times = periods;
    if (process.is_certain(account.waits_at->python))
        count(account.waits_at->stack);
    else
        process.pending.push_back(*account.waits_at);
}

// Its last samples.
void StackSampling::close(SampledProcess& process) {
    count_running(process);
    fail(process.pending);
    for (auto& [tid, account] : process.accounts)
        result_.profile.add_failed(
            Unread::kRanMeanwhile,
            take_periods(account.asleep_ns, period_) + take_periods(account.waiting_ns, period_));
    if (!process.reader && !process.why_no_python.empty())
        result_.notes.push_back(process.why_no_python);
    if (sampler_) sampler_->remove_process(process.pid);
}

// What is known of threads that have ended.
void StackSampling::forget_ended(SampledProcess& process, const std::vector<sb_thread>& threads) {
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

void StackSampling::count_asleep(SampledProcess& process, Still& still, uint64_t periods) {
    if (!process.is_certain(still.seen.python))
        return result_.profile.add_failed(Unread::kUncertain, periods);
    still.seen.stack.thread.times = periods;
    count(still.seen.stack);
}

// The times of threads since the look before. Where one slept then, it slept until it woke up, and
// waited for a CPU, unless it was taken off one since: then it waits, as far as is known, where it
// was last seen running.
void StackSampling::book_all(SampledProcess& process, const std::vector<sb_thread>& threads,
                             uint64_t now_ns) {
    for (const sb_thread& thread : threads) {
        if (thread.ended != 0) continue; // a main thread that has left the others stays among them
        const auto tid = static_cast<pid_t>(thread.tid);
        ThreadAccount& account = process.accounts[tid];
        const sb_thread before = account.last;
        account.book(thread, now_ns);
        Still* const slept_at = is_asleep(before) ? process.known_still(before) : nullptr;
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
// Nothing: it is gone, or runs another program.
std::optional<std::vector<sb_thread>> StackSampling::list_and_copy(SampledProcess& process) {
    const uint64_t now_ns = monotonic_ns();
    auto threads = sampler_->threads(process.pid);
    if (!threads) return std::nullopt;
    if (std::any_of(threads->begin(), threads->end(), [&process](const sb_thread& thread) {
            return thread.ended == 0 && process.has_left(thread.execs);
        }))
        return std::nullopt;
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
bool StackSampling::look(SampledProcess& process) {
    if (process.reader) {
        const auto listed = process.reader->list_threads();
        if (!listed && listed.error().kind == ErrorKind::kNotFound) return false;
        process.tell_threads(*sampler_);
    }
    auto threads = list_and_copy(process);
    // Once more, for those that ran while they were copied.
    if (threads && std::any_of(threads->begin(), threads->end(), [&](const sb_thread& thread) {
            return thread.ended == 0 && is_asleep(thread) && process.known_still(thread) == nullptr;
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
        Still* const known = process.known_still(thread);
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

bool StackSampling::look_without_bpf(SampledProcess& process) {
    const auto sampled = process.reader->sample();
    if (sampled) result_.profile.add(process.pid, *process.reader);
    return sampled || sampled.error().kind != ErrorKind::kNotFound;
}

void StackSampling::take(const stacks::ThreadSample& sample) {
    const auto found = processes_.find(static_cast<pid_t>(sample.head.pid));
    if (found == processes_.end()) return;
    SampledProcess& process = found->second;
    if (!process.running) return; // of a time that no account has
    if (process.has_left(sample.head.execs)) {
        if (sample.head.on_cpu != 0) process.running->add(Unread::kUnreadable);
        return;
    }
    Sampled thread = process.describe(static_cast<pid_t>(sample.head.tid));
    thread.active = sample.head.on_cpu != 0;
    thread.holds_gil = sample.head.holds_gil != 0;
    std::copy(std::begin(sample.head.comm), std::end(sample.head.comm), thread.name.begin());
    stacks::NativeStack native;
    if (process.unwinder) native = process.unwinder->unwind(sample.head.registers, sample.stack);
    std::optional<ThreadStack> python;
    bool was_read = sample.head.python_fault == SB_PYTHON_NONE;
    if (sample.head.python_fault == SB_PYTHON_FINE && process.reader) {
        python = process.reader->interpret(thread.tid, sample.frames, native.loop_pc);
        was_read = python->fault == StackFault::kFine;
    }
    auto whole = was_read ? process.combine(thread, native, python ? &python->frames : nullptr)
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
void StackSampling::take_running(SampledProcess& process, Whole stack,
                                 std::vector<stacks::Frame> python) {
    Pending sample{std::move(stack), std::move(python)};
    if (sample.python.empty()) process.accounts[sample.stack.thread.tid].ran_at = sample;
    process.running->add(std::move(sample));
}

void StackSampling::take_still(SampledProcess& process, const sb_still& since, Whole stack,
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
        if (sampler_) (void)open_process(pid, true); // where it runs another program now
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
            look_for_pythons();
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
