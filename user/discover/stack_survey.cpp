// SPDX-License-Identifier: MIT
#include "discover/stack_survey.h"

#include <sys/resource.h>

#include <algorithm>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <thread>

#include "cpython/interpreter.h"
#include "process/remote_elf.h"
#include "stacks/native_stack.h"
#include "stacks/sampler.h"
#include "stacks/stack_reader.h"
#include "util/clock.h"

namespace speedbump::discover {

namespace {

using stacks::Sampled;
using stacks::StackFault;
using stacks::ThreadStack;
using stacks::Unread;
using stacks::WholeFrame;
using std::chrono::nanoseconds;

constexpr double kMaxShare = 0.05;     // of a CPU, that looking at the threads may take
constexpr size_t kMaxPending = 10'000; // of a process
constexpr auto kLongestDrain = std::chrono::milliseconds(200);
constexpr auto kDrainAgain = std::chrono::milliseconds(100);
constexpr auto kListAgain = std::chrono::seconds(1);

struct Whole {
    Sampled thread;
    std::vector<WholeFrame> frames;
    bool is_whole = true; // else one of the runtimes, or some of the native callers, are missing
};

// A thread that is off the CPUs, until it runs again.
struct Still {
    sb_still since{};
    Whole stack;
    std::vector<stacks::Frame> python; // of it, when they were not certain
};

// What a thread last waited for a CPU with. The kernel knows how long it waited: to be found
// waiting tells little, since this program may have taken its CPU just now.
struct Waiting {
    std::optional<Whole> stack;
    std::vector<stacks::Frame> python; // of it, as long as they are not certain
    uint64_t counted_ns = 0;           // of its waiting
};

// A stack that counts once its Python frames are certain.
struct Pending {
    Whole stack;
    std::vector<stacks::Frame> python;
};

struct Process {
    pid_t pid = 0;
    std::optional<stacks::StackReader> reader; // of a Python
    std::optional<stacks::NativeUnwinder> unwinder;
    std::map<pid_t, Still> still;
    std::set<pid_t> unreadable; // of the threads off the CPUs, at this tick
    std::map<pid_t, Waiting> waiting;
    std::vector<Pending> pending;
    std::vector<std::pair<pid_t, sb_thread_state>> states; // that the sampler knows
};

std::chrono::microseconds own_cpu_time() {
    rusage usage{};
    getrusage(RUSAGE_THREAD, &usage);
    const auto time = [](const timeval& one) {
        return std::chrono::seconds(one.tv_sec) + std::chrono::microseconds(one.tv_usec);
    };
    return time(usage.ru_utime) + time(usage.ru_stime);
}

class StackSampling {
  public:
    StackSampling(const StackSurveyOptions& options, const std::function<bool()>& interrupted)
        : options_(options), interrupted_(interrupted), period_(1'000'000'000 / options.rate) {}

    StackSurvey run();

  private:
    void list_processes();
    bool open_process(pid_t pid);
    void look_at_all(uint64_t times);
    bool look(Process& process, uint64_t times);
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
    void count_waiting(Process& process, const sb_thread& thread);
    void close(Process& process);
    Sampled describe(const Process& process, pid_t tid, uint64_t times) const;

    const StackSurveyOptions& options_;
    const std::function<bool()>& interrupted_;
    const nanoseconds period_;
    std::unique_ptr<stacks::StackSampler> sampler_;
    std::shared_ptr<stacks::NativeFiles> files_ = std::make_shared<stacks::NativeFiles>();
    std::map<pid_t, Process> processes_;
    std::vector<pid_t> refused_; // once told, not again
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
        if (processes_.contains(pid)) continue;
        if (std::find(refused_.begin(), refused_.end(), pid) != refused_.end()) continue;
        if (!open_process(pid)) refused_.push_back(pid);
    }
}

Sampled StackSampling::describe(const Process& process, pid_t tid, uint64_t times) const {
    Sampled thread;
    thread.pid = process.pid;
    thread.tid = tid;
    thread.knows_qualified_names = !process.reader || process.reader->interpreter().minor >= 11;
    thread.times = times;
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

// Whole periods that the thread has waited for a CPU since they were last counted.
void StackSampling::count_waiting(Process& process, const sb_thread& thread) {
    auto [entry, is_new] = process.waiting.try_emplace(static_cast<pid_t>(thread.tid));
    Waiting& waiting = entry->second;
    if (is_new) waiting.counted_ns = thread.waited_ns;
    const auto period_ns = static_cast<uint64_t>(period_.count());
    const uint64_t periods = (thread.waited_ns - waiting.counted_ns) / period_ns;
    if (periods == 0 || !waiting.stack) return;
    waiting.counted_ns += periods * period_ns;
    waiting.stack->thread.times = periods;
    if (is_certain(process, waiting.python))
        count(*waiting.stack);
    else
        process.pending.push_back({*waiting.stack, waiting.python});
}

// Its last samples.
void StackSampling::close(Process& process) {
    if (process.reader) count_certain(process);
    fail(process.pending);
    if (sampler_) sampler_->remove_process(process.pid);
}

// What is known of threads that have ended.
void StackSampling::forget_ended(Process& process, const std::vector<sb_thread>& threads) {
    constexpr size_t kSpare = 64; // so that it is not done at each tick
    if (std::max(process.waiting.size(), process.still.size()) <= threads.size() + kSpare) return;
    std::set<pid_t> alive;
    for (const sb_thread& thread : threads) alive.insert(static_cast<pid_t>(thread.tid));
    std::erase_if(process.waiting, [&](const auto& one) { return !alive.contains(one.first); });
    std::erase_if(process.still, [&](const auto& one) {
        if (alive.contains(one.first)) return false;
        sampler_->forget(process.pid, one.first);
        return true;
    });
}

// One tick of a process; false when it is gone or runs another program now. Of a thread on a CPU
// that CPU's clock tells; the time of one that waits for a CPU is counted when it has waited; each
// that is asleep at its turn is counted now, or is one that could not be read.
bool StackSampling::look(Process& process, uint64_t times) {
    if (process.reader) {
        const auto listed = process.reader->list_threads();
        if (!listed && listed.error().kind == ErrorKind::kNotFound) return false;
        tell_threads(process);
    }
    const auto threads = sampler_->threads(process.pid);
    if (!threads) return false;
    forget_ended(process, *threads);
    for (const sb_thread& thread : *threads)
        if (thread.ended == 0) count_waiting(process, thread);
    process.unreadable.clear();
    sampler_->drain([this](const stacks::ThreadSample& sample) { take(sample); }, kLongestDrain);
    bool is_alive = false;
    for (const sb_thread& thread : *threads) {
        if (thread.ended != 0) continue;
        is_alive = true;
        if (thread.on_cpu != 0) continue;
        const auto tid = static_cast<pid_t>(thread.tid);
        const auto found = process.still.find(tid);
        const bool is_known = found != process.still.end() &&
                              found->second.since.switches == thread.still.switches &&
                              found->second.since.started_ns == thread.still.started_ns;
        if (thread.runnable != 0) {
            if (!is_known) continue;
            Waiting& waiting = process.waiting[tid];
            waiting.stack = found->second.stack;
            waiting.stack->thread.active = true;
            waiting.python = found->second.python;
        } else if (!is_known) {
            const bool was_copied = process.unreadable.contains(tid);
            result_.profile.add_failed(was_copied ? Unread::kUnreadable : Unread::kRanMeanwhile,
                                       times);
        } else if (!is_certain(process, found->second.python)) {
            result_.profile.add_failed(Unread::kUncertain, times);
        } else {
            found->second.stack.thread.times = times;
            count(found->second.stack);
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
    Sampled thread = describe(process, static_cast<pid_t>(sample.head.tid), 1);
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
        result_.profile.add_failed(Unread::kUnreadable, 1);
}

// `python`: its frames, when they are not certain.
void StackSampling::take_running(Process& process, Whole stack, std::vector<stacks::Frame> python) {
    if (python.empty())
        count(stack);
    else
        process.pending.push_back({std::move(stack), std::move(python)});
}

void StackSampling::take_still(Process& process, const sb_still& since, Whole stack,
                               std::vector<stacks::Frame> python) {
    const pid_t tid = stack.thread.tid;
    process.still[tid] = {since, std::move(stack), std::move(python)};
    sampler_->set_known(process.pid, tid, since);
}

void StackSampling::look_at_all(uint64_t times) {
    std::vector<pid_t> gone;
    for (auto& [pid, process] : processes_)
        if (!(sampler_ ? look(process, times) : look_without_bpf(process))) gone.push_back(pid);
    // What they had left before they ended.
    if (sampler_) sampler_->drain([this](const auto& sample) { take(sample); }, kLongestDrain);
    for (const pid_t pid : gone) {
        close(processes_.at(pid));
        processes_.erase(pid);
    }
}

StackSurvey StackSampling::run() {
    const auto cpu_before = own_cpu_time();
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
    uint64_t counted = 0; // periods from the start on
    Clock::time_point next = start;
    Clock::time_point next_list = start + kListAgain;
    for (bool is_over = false; !is_over;) {
        std::this_thread::sleep_until(std::min({next, end, Clock::now() + kDrainAgain}));
        const Clock::time_point now = Clock::now();
        is_over = now >= end || interrupted_();
        if (now >= next || is_over) {
            // A late look stands for all periods that were left out, and for no other.
            const uint64_t due = static_cast<uint64_t>((now - start) / period_) + 1;
            const auto before = own_cpu_time();
            if (due > counted) look_at_all(due - counted);
            counted = due;
            const auto spent = own_cpu_time() - before;
            next = std::max(start + static_cast<int64_t>(counted) * period_,
                            now + std::chrono::duration_cast<nanoseconds>(spent / kMaxShare));
        }
        if (sampler_) sampler_->drain([this](const auto& sample) { take(sample); }, kLongestDrain);
        if (now > next_list || processes_.empty()) {
            for (auto& [pid, process] : processes_)
                if (process.reader) count_certain(process);
            list_processes();
            next_list = Clock::now() + kListAgain;
        }
        is_over = is_over || processes_.empty();
    }
    result_.to_ns = monotonic_ns();
    for (auto& [pid, process] : processes_) close(process);
    if (sampler_) result_.profile.add_failed(Unread::kNoRoom, sampler_->lost());
    if (sampler_ && sampler_->gaps() > 0)
        result_.notes.push_back(
            "samples were lost: a CPU went offline or came online while it was to be sampled");
    result_.own_cpu = ns(own_cpu_time() - cpu_before) / ns(Clock::now() - start);
    return std::move(result_);
}

} // namespace

StackSurvey survey_stacks(const StackSurveyOptions& options,
                          const std::function<bool()>& interrupted) {
    return StackSampling(options, interrupted).run();
}

} // namespace speedbump::discover
