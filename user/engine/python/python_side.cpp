// SPDX-License-Identifier: MIT
#include "engine/python/python_side.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <utility>

#include "engine/python/cores.h"
#include "util/channel.h"

namespace speedbump::engine {

namespace {

// An interpreter is ready some 20 ms after its exec; one that imports from a slow disk, later.
constexpr auto kRetryFirst = std::chrono::milliseconds(20);
constexpr auto kRetryLongest = std::chrono::milliseconds(500);
constexpr auto kRetryFor = std::chrono::seconds(10);
constexpr auto kDetachTimeout = std::chrono::milliseconds(2000);
constexpr auto kLooksTimeout = std::chrono::milliseconds(5000);
constexpr auto kLooksAgain = std::chrono::milliseconds(20);
constexpr auto kRegroupTimeout = std::chrono::milliseconds(5000);

bool is_python_target(const targets::TargetLine& line) {
    return line.runtime == targets::Runtime::kPython && !line.exclude;
}

// The end of the session waits for what is under way.
constexpr auto kSafePointTimeout = std::chrono::milliseconds(500);
constexpr auto kInterpreterTimeout = std::chrono::milliseconds(2000);

// Whether an interpreter is in the process, ready or not. Where that can't be seen for want of
// descriptors or memory there may be one: the attempt to enter it tells of that.
bool may_have_interpreter(pid_t pid) {
    const auto found = cpython::find_interpreters(pid);
    return found ? !found->empty() : found.error().kind == ErrorKind::kIo;
}

} // namespace

Result<std::unique_ptr<PythonSide>> PythonSide::create(
    const targets::TargetsFile& file, uint32_t columns,
    std::function<void(const std::string&)> warn) {
    PythonSession session;
    for (uint32_t index = 0; index < file.lines.size(); ++index) {
        // Only the patterns matter there: the options, defaults included, are in the table.
        session.targets += file.lines[index].original + "\n";
        if (is_python_target(file.lines[index])) session.lines.push_back(index);
    }
    if (session.lines.empty()) return std::unique_ptr<PythonSide>();

    std::unique_ptr<PythonSide> side(new PythonSide(std::move(warn)));
    auto table = PythonTable::create(static_cast<uint32_t>(file.lines.size()), columns);
    if (!table) return std::move(table).error();
    side->table_ = std::move(*table);
    session.identity = fmt::format("{}-{}", getpid(), monotonic_ns());
    session.settings = side->table_->settings_fd();
    session.counters = side->table_->counters_fd();
    auto engine = PythonEngine::create(std::move(session), core_directories());
    if (!engine) return std::move(engine).error();
    side->engine_ = std::move(*engine);
    return side;
}

PythonSide::~PythonSide() {
    if (!engine_) return; // create() failed
    arm(false);
    engine_->detach_all(std::chrono::duration_cast<std::chrono::milliseconds>(kDetachTimeout));
    if (matches_.left_out() > 0)
        warn_(fmt::format("{} matches of Python functions were not listed", matches_.left_out()));
}

int PythonSide::fd() const {
    return engine_->fd();
}

Result<std::string> PythonSide::path_entry(pid_t only) {
    auto module = inject::StartModule::create(core_tags(core_directories()), only);
    if (!module) return std::move(module).error();
    start_module_ = std::move(*module);
    return start_module_->path_entry();
}

Result<void> PythonSide::regroup(const Regrouping& regrouping) {
    if (auto done = engine_->regroup(regrouping, kRegroupTimeout); !done) return done;
    table_->set_grouping(engine_->grouping());
    // They have no channel to be told by, and count nothing until they are told.
    attach({inherited_.begin(), inherited_.end()}, true);
    return {};
}

void PythonSide::configure(size_t line, const TargetSettings& settings, uint64_t window_origin_ns) {
    table_->configure(static_cast<uint32_t>(line), settings, window_origin_ns);
}

std::vector<Counts> PythonSide::read_counts() {
    return table_->read_counts(
        [this](uint32_t pid_namespace, pid_t pid) { return pid_names_.here(pid_namespace, pid); });
}

void PythonSide::record(std::vector<PythonMatch> matches) {
    if (matches.empty()) return;
    const pid_t pid = matches.front().process;
    const bool first = matches_.left_out() == 0;
    if (matches_.add(std::move(matches)) > 0 && first)
        warn_(
            fmt::format("process {} reports more Python functions than are kept of one process: "
                        "the others are slowed, but not listed",
                        pid));
}

void PythonSide::attach(const std::vector<std::pair<pid_t, uint64_t>>& processes_and_roots,
                        bool wait) {
    std::map<uint64_t, std::vector<pid_t>> waited_for; // by roots
    for (const auto& [pid, roots] : processes_and_roots) {
        if (attached_.contains(pid)) continue;
        Attempt& attempt = attempts_[pid];
        if (!attempt.is_idle() || !may_have_interpreter(pid)) continue;
        attempt.roots = roots;
        if (wait)
            waited_for[roots].push_back(pid);
        else
            begin(pid, attempt);
    }
    for (const auto& [roots, pids] : waited_for) {
        auto outcomes = engine_->attach(pids, roots);
        for (size_t i = 0; i < pids.size(); ++i) take_outcome(pids[i], std::move(outcomes[i]));
    }
    if (!waited_for.empty()) wait_for_looks();
}

// What a process has not told in time it tells later; its functions are slowed all the same.
void PythonSide::wait_for_looks() {
    const Clock::time_point deadline = Clock::now() + kLooksTimeout;
    while (engine_->is_looking() && Clock::now() < deadline) {
        wait_readable(engine_->fd(), std::min(deadline, Clock::now() + kLooksAgain));
        take_events();
    }
}

void PythonSide::forked(pid_t parent, pid_t child, uint64_t roots) {
    if (const auto old = attempts_.find(child); old != attempts_.end() && old->second.ending)
        attempts_.erase(old); // the number was another's before
    const bool hooked =
        (attached_.contains(parent) && !fresh_.contains(parent)) || inherited_.contains(parent);
    if (hooked) {
        inherited_.insert_or_assign(child, roots);
        // It may have been forked before its parent was told of the groups that there are.
        if (engine_->grouping() != 0) attach({{child, roots}}, false);
        return;
    }
    const auto attempt = attempts_.find(parent);
    if (attempt != attempts_.end() && attempt->second.reported) { // it failed, as its child would
        attempts_[child].reported = true;
        return;
    }
    if (attempt != attempts_.end() && attempt->second.is_idle()) return; // no interpreter in it
    attach({{child, roots}}, false);
}

void PythonSide::begin(pid_t pid, Attempt& attempt) {
    inject::InjectOptions options;
    options.safe_point_timeout = kSafePointTimeout;
    options.interpreter_timeout = kInterpreterTimeout;
    if (attempt.execed) options.minimum_age = std::chrono::milliseconds(0);
    attempt.under_way = true;
    attempt.next = Clock::time_point::max();
    engine_->begin_attach(pid, attempt.roots, options);
}

// Takes in what came of an attempt.
void PythonSide::take_outcome(pid_t pid, Result<PythonAttachment> outcome) {
    const auto now = Clock::now();
    Attempt& attempt = attempts_[pid];
    attempt.under_way = false;
    const bool outdated = std::exchange(attempt.outdated, false);
    if (outcome) {
        for (const std::string& text : outcome->warnings)
            warn_(fmt::format("process {}: {}", pid, text));
        if (start_module_ && attempt.execed && !outcome->from_start &&
            !std::exchange(told_late_, true))
            warn_(
                fmt::format("process {} ran some of its Python before it was hooked: it was "
                            "started with -I, -E or -S, or not with the environment that run "
                            "had set",
                            pid));
        pid_names_.note(pid);
        record(outcome->matches);
        attached_.insert_or_assign(pid, std::move(*outcome));
        fresh_.insert(pid);
        inherited_.erase(pid);
        ever_attached_ = true;
    }
    if (outdated) { // a success may have been the program before's
        attempt.next = now + kRetryFirst;
        return;
    }
    if (outcome || outcome.error().kind == ErrorKind::kNotFound) { // done, or it is gone
        attempts_.erase(pid);
        return;
    }
    const Error& error = outcome.error();
    if (!first_failure_) first_failure_ = error;
    if (attempt.until == Clock::time_point{}) attempt.until = now + kRetryFor;
    // Starting, stopped, in the middle of an exec: it may work later.
    const bool may_pass = error.kind == ErrorKind::kTimeout || error.kind == ErrorKind::kIo;
    if (!may_pass || now >= attempt.until) {
        warn_(error.message + (error.hint.empty() ? "" : " (" + error.hint + ")"));
        attempt.reported = true;
        return;
    }
    const auto age = kRetryFor - (attempt.until - now);
    attempt.next = now + std::clamp<Clock::duration>(age / 2, kRetryFirst, kRetryLongest);
}

void PythonSide::take_events() {
    for (PythonEvent& event : engine_->poll()) {
        record(std::move(event.matches));
        if (event.kind == PythonEvent::Kind::kGone) {
            attached_.erase(event.process);
            if (event.reason == "exit") attempts_[event.process].ending = true;
            if (event.reason == "detach")
                warn_(fmt::format("process {} has left the session by itself", event.process));
        }
        if (event.outcome) take_outcome(event.process, std::move(*event.outcome));
    }
}

void PythonSide::execed(pid_t pid) {
    take_events(); // the old program's channel hung up
    attached_.erase(pid);
    inherited_.erase(pid);
    const bool under_way = attempts_[pid].under_way;
    attempts_[pid] = {.execed = true, .under_way = under_way, .outdated = under_way};
}

void PythonSide::exited(pid_t pid) {
    inherited_.erase(pid);
    const auto attempt = attempts_.find(pid);
    if (attempt != attempts_.end() && !attempt->second.under_way) attempts_.erase(attempt);
}

void PythonSide::handle_events() {
    take_events();
    const auto now = Clock::now();
    for (auto& [pid, attempt] : attempts_) {
        if (attempt.next > now) continue;
        attempt.next = Clock::time_point::max();
        if (!attached_.contains(pid) && may_have_interpreter(pid)) begin(pid, attempt);
    }
}

Clock::duration PythonSide::longest_sleep() const {
    Clock::duration sleep =
        engine_->is_looking() ? kLooksAgain : Clock::duration(std::chrono::hours(1));
    for (const auto& [pid, attempt] : attempts_)
        if (attempt.next != Clock::time_point::max())
            sleep = std::min(sleep, std::max<Clock::duration>(attempt.next - Clock::now(),
                                                              std::chrono::milliseconds(1)));
    return sleep;
}

} // namespace speedbump::engine
