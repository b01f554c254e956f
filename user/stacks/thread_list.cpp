// SPDX-License-Identifier: MIT
#include "stacks/thread_list.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <string>
#include <unordered_set>

#include "cpython/gil.h"
#include "process/memory.h"
#include "process/ownership.h"
#include "process/threads.h"
#include "util/proc.h"

namespace speedbump::stacks {
namespace {

constexpr size_t kMaxThreads = 1 << 14;
constexpr size_t kMaxInterpreters = 1 << 10;
constexpr uint64_t kNear = 2048; // a state and its lock that are nearer are read in one piece

} // namespace

// The threads of a process by the ids that it knows them by: those of its own PID namespace. What a
// process says is believed only of threads that it has.
class ThreadList::Ids {
  public:
    // 0: no such process, and every id is believed.
    explicit Ids(pid_t pid) : pid_(pid) {
        if (pid == 0) return;
        const std::string status = read_proc(fmt::format("/proc/{}/status", pid));
        // One number for each namespace, from ours to its own.
        is_inside_ = status_field(status, "NSpid").find_first_of(" \t") != std::string_view::npos;
    }

    // 0: the process has no such thread.
    pid_t find(pid_t id) {
        if (pid_ == 0 || id <= 0) return id;
        if (!is_inside_)
            return access(fmt::format("/proc/{}/task/{}", pid_, id).c_str(), F_OK) == 0 ? id : 0;
        if (!was_read_) read();
        const auto found = ours_.find(id);
        return found == ours_.end() ? 0 : found->second;
    }

  private:
    void read() {
        was_read_ = true;
        for (const pid_t ours : process::read_threads(pid_)) {
            const pid_t id =
                innermost_id(read_proc(fmt::format("/proc/{}/task/{}/status", pid_, ours)));
            if (id != 0) ours_[id] = ours;
        }
    }

    pid_t pid_;
    bool is_inside_ = false; // of another PID namespace than ours
    bool was_read_ = false;
    std::unordered_map<pid_t, pid_t> ours_; // by the ids inside
};

ThreadList::ThreadList(const Source& source, const Layout& layout,
                       const cpython::Interpreter& interpreter, pid_t pid)
    : source_(source), layout_(layout), interpreter_(interpreter), pid_(pid) {
    interpreter_low_ = std::min(layout.interpreter_next, layout.interpreter_threads);
    interpreter_size_ =
        std::max(layout.interpreter_next, layout.interpreter_threads) + 8 - interpreter_low_;
    gil_low_ = std::min(layout.gil_holder, layout.gil_locked);
    gil_size_ = std::max(layout.gil_holder, layout.gil_locked) + 8 - gil_low_;
}

pid_t ThreadList::tid_of(uint64_t thread, Ids& ids) const {
    uint64_t tid = 0;
    if (layout_.thread_native_id != kNone) {
        tid = source_.value<uint64_t>(thread + layout_.thread_native_id).value_or(0);
    } else {
        const auto pthread = source_.value<uint64_t>(thread + layout_.thread_id);
        tid = source_.value<uint32_t>(pthread.value_or(0) + process::kPthreadTid).value_or(0);
    }
    return ids.find(static_cast<pid_t>(tid));
}

void ThreadList::name_threads() {
    if (are_all_named_) return;
    Ids ids(pid_);
    are_all_named_ = true;
    for (const auto& thread : threads_) {
        if (thread->is_named()) continue;
        thread->stack.tid = tid_of(thread->address, ids);
        thread->watch = SleepWatch(pid_, thread->stack.tid);
        are_all_named_ &= thread->is_named();
    }
}

InterpreterState ThreadList::describe_state(uint64_t address) const {
    InterpreterState interpreter;
    interpreter.address = address;
    interpreter.gil =
        cpython::gil_of(source_, layout_, interpreter_.runtime_address, address).value_or(0);
    const uint64_t low = address + interpreter_low_;
    const uint64_t lock = interpreter.gil + gil_low_;
    interpreter.low = std::min(low, lock);
    interpreter.size = std::max(low + interpreter_size_, lock + gil_size_) - interpreter.low;
    // What it says of its lock may be anything, and reach around the end of memory.
    const uint64_t apart = lock > low ? lock - low : low - lock;
    interpreter.has_lock_in_it = apart <= kNear && interpreter.size <= kNear;
    if (!interpreter.has_lock_in_it) {
        interpreter.low = low;
        interpreter.size = interpreter_size_;
    }
    return interpreter;
}

Result<void> ThreadList::read() {
    std::vector<InterpreterState> interpreters;
    std::vector<std::unique_ptr<Thread>> threads;
    std::unordered_map<uint64_t, std::unique_ptr<Thread>> known;
    for (auto& thread : threads_) known[thread->address] = std::move(thread);
    threads_.clear();
    Ids ids(pid_);
    bool are_all_named = true;
    std::unordered_set<uint64_t> seen;
    auto state = source_.value<uint64_t>(interpreter_.runtime_address + layout_.runtime_head);
    while (state && *state != 0) {
        if (!seen.insert(*state).second || interpreters.size() >= kMaxInterpreters)
            return failure("its list of interpreters forms a circle");
        const auto id = source_.value<int64_t>(*state + layout_.interpreter_id);
        const auto next = source_.value<uint64_t>(*state + layout_.interpreter_next);
        auto thread = source_.value<uint64_t>(*state + layout_.interpreter_threads);
        if (!id || !next || !thread) return failure("an interpreter's state is not there");
        InterpreterState interpreter = describe_state(*state);
        interpreter.first_thread = threads.size();
        while (thread && *thread != 0) {
            if (!seen.insert(*thread).second || threads.size() >= kMaxThreads)
                return failure("its list of threads forms a circle");
            const pid_t tid = tid_of(*thread, ids);
            auto old = known.find(*thread);
            const bool is_same = old != known.end() && old->second->stack.tid == tid;
            threads.push_back(is_same ? std::move(old->second)
                                      : std::make_unique<Thread>(*thread, pid_, tid));
            if (is_same) known.erase(old);
            threads.back()->stack.interpreter = *id;
            are_all_named &= threads.back()->is_named();
            thread = source_.value<uint64_t>(*thread + layout_.thread_next);
        }
        if (!thread) return failure("a thread's state is not there");
        interpreters.push_back(interpreter);
        state = next;
    }
    if (!state || interpreters.empty()) return failure("its list of interpreters is not there");
    interpreters_ = std::move(interpreters);
    threads_ = std::move(threads);
    are_all_named_ = are_all_named;
    return {};
}

void ThreadList::add_chain(std::vector<Piece>& wanted, const Thread* read_anyway) const {
    wanted.push_back(piece(interpreter_.runtime_address + layout_.runtime_head, 8));
    for (const InterpreterState& one : interpreters_) {
        wanted.push_back(piece(one.low, one.size));
        if (!one.has_lock_in_it) wanted.push_back(piece(one.gil + gil_low_, gil_size_));
    }
    for (const auto& thread : threads_)
        if (thread.get() != read_anyway)
            wanted.push_back(piece(thread->address + layout_.thread_next, 8));
}

bool ThreadList::chain_holds(const char* bytes, const Thread* read_anyway, uint64_t its_next) {
    auto take = [&bytes] {
        const auto value = load_at<uint64_t>(bytes);
        bytes += sizeof(value);
        return value;
    };
    uint64_t next_interpreter = take();
    heads_.clear();
    holders_.clear();
    for (const InterpreterState& one : interpreters_) {
        if (one.address != next_interpreter) return false;
        const char* state = bytes + (one.address - one.low);
        const char* lock =
            one.has_lock_in_it ? bytes + (one.gil - one.low) : bytes + (one.size - gil_low_);
        bytes += one.size + (one.has_lock_in_it ? 0 : gil_size_);
        next_interpreter = load_at<uint64_t>(state + layout_.interpreter_next);
        heads_.push_back(load_at<uint64_t>(state + layout_.interpreter_threads));
        const bool is_locked = load_at<int32_t>(lock + layout_.gil_locked) == 1;
        holders_.push_back(is_locked ? load_at<uint64_t>(lock + layout_.gil_holder) : 0);
    }
    if (next_interpreter != 0) return false;
    size_t interpreter = 0;
    uint64_t expected = 0;
    for (size_t i = 0; i <= threads_.size(); ++i) {
        while (interpreter < interpreters_.size() && interpreters_[interpreter].first_thread == i) {
            if (expected != 0) return false;
            expected = heads_[interpreter++];
            if (i == threads_.size() && expected != 0) return false;
        }
        if (i == threads_.size()) break;
        Thread& thread = *threads_[i];
        if (thread.address != expected) return false;
        expected = &thread == read_anyway ? its_next : take();
        thread.stack.holds_gil = holders_[interpreter - 1] == thread.address;
    }
    return expected == 0;
}

bool ThreadList::holds(Gathering& gathering) {
    add_chain(gathering.begin(), nullptr);
    return gathering.run() && chain_holds(gathering.data(), nullptr, 0);
}

std::vector<std::pair<pid_t, sb_thread_state>> ThreadList::states() const {
    std::vector<std::pair<pid_t, sb_thread_state>> states;
    size_t interpreter = 0;
    for (size_t i = 0; i < threads_.size(); ++i) {
        while (interpreter + 1 < interpreters_.size() &&
               interpreters_[interpreter + 1].first_thread <= i)
            ++interpreter;
        if (threads_[i]->is_named())
            states.push_back(
                {threads_[i]->stack.tid, {threads_[i]->address, interpreters_[interpreter].gil}});
    }
    return states;
}

Error ThreadList::failure(const std::string& what) const {
    const std::string name = "process " + std::to_string(pid_);
    if (pid_ != 0) {
        char byte = 0;
        const Piece runtime = piece(interpreter_.runtime_address, 1);
        const ssize_t got = source_.gather({&runtime, 1}, &byte);
        if (got == -ESRCH || access(("/proc/" + std::to_string(pid_)).c_str(), F_OK) != 0)
            return make_error(ErrorKind::kNotFound, name + " has ended");
        if (got < 0) return process::access_error(pid_, "read its memory", static_cast<int>(-got));
        const auto now = cpython::find_interpreters(pid_);
        if (now && (now->empty() || now->front().runtime_address != interpreter_.runtime_address ||
                    now->front().path != interpreter_.path))
            return make_error(ErrorKind::kNotFound,
                              name + " runs another program than before (exec)");
    }
    return make_error(ErrorKind::kIo, name + ": " + what);
}

} // namespace speedbump::stacks
