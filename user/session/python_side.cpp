// SPDX-License-Identifier: MIT
#include "session/python_side.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>

namespace speedbump::session {

namespace {

// An interpreter is ready some 20 ms after its exec; one that imports from a slow disk, later.
constexpr auto kRetryFirst = std::chrono::milliseconds(20);
constexpr auto kRetryLongest = std::chrono::milliseconds(500);
constexpr auto kRetryFor = std::chrono::seconds(10);
constexpr auto kDetachTimeout = std::chrono::milliseconds(2000);

bool is_python_target(const targets::TargetLine& line) {
    return line.world == targets::World::kPython && !line.exclude;
}

// The session's other work waits meanwhile.
inject::InjectOptions brief_options() {
    inject::InjectOptions options;
    options.safe_point_timeout = std::chrono::milliseconds(50);
    options.interpreter_timeout = std::chrono::milliseconds(2000);
    return options;
}

// Whether an interpreter is in the process, ready or not.
bool has_interpreter(pid_t pid) {
    const auto found = process::find_interpreters(pid);
    return found && !found->empty();
}

} // namespace

Result<std::unique_ptr<PythonSide>> PythonSide::create(
    const targets::TargetsFile& file, std::function<void(const std::string&)> warn) {
    engine::PythonSession session;
    for (uint32_t index = 0; index < file.lines.size(); ++index) {
        // Only the patterns matter there: the options, defaults included, are in the table.
        session.targets += file.lines[index].original + "\n";
        if (is_python_target(file.lines[index])) session.lines.push_back(index);
    }
    if (session.lines.empty()) return std::unique_ptr<PythonSide>();

    std::unique_ptr<PythonSide> side(new PythonSide(std::move(warn)));
    auto table = engine::PythonTable::create(static_cast<uint32_t>(file.lines.size()));
    if (!table) return std::move(table).error();
    side->table_ = std::move(*table);
    session.identity = fmt::format("{}-{}", getpid(), monotonic_ns());
    session.table = side->table_->fd();
    auto engine = engine::PythonEngine::create(std::move(session), engine::core_directories());
    if (!engine) return std::move(engine).error();
    side->engine_ = std::move(*engine);
    return side;
}

PythonSide::~PythonSide() {
    arm(false);
    engine_->detach_all(std::chrono::duration_cast<std::chrono::milliseconds>(kDetachTimeout));
}

int PythonSide::fd() const {
    return engine_->fd();
}

void PythonSide::configure(size_t line, const engine::TargetSettings& settings,
                           uint64_t window_origin_ns) {
    table_->configure(static_cast<uint32_t>(line), settings, window_origin_ns);
}

void PythonSide::record(std::vector<engine::PythonMatch> matches) {
    matches_.insert(matches_.end(), std::make_move_iterator(matches.begin()),
                    std::make_move_iterator(matches.end()));
}

void PythonSide::attach(const std::vector<std::pair<pid_t, uint64_t>>& processes_and_roots,
                        bool patient) {
    std::vector<std::pair<pid_t, uint64_t>> pythons;
    for (const auto& process : processes_and_roots)
        if (!attached_.contains(process.first) && !waiting_.contains(process.first) &&
            has_interpreter(process.first))
            pythons.push_back(process);
    try_attach(pythons, patient ? inject::InjectOptions{} : brief_options());
}

void PythonSide::try_attach(const std::vector<std::pair<pid_t, uint64_t>>& processes,
                            const inject::InjectOptions& options) {
    std::map<uint64_t, std::vector<pid_t>> by_roots;
    for (const auto& [pid, roots] : processes) by_roots[roots].push_back(pid);
    for (const auto& [roots, pids] : by_roots) {
        auto results = engine_->attach(pids, roots, options);
        for (size_t i = 0; i < pids.size(); ++i) {
            const pid_t pid = pids[i];
            if (results[i]) {
                for (const std::string& text : results[i]->warnings)
                    warn_(fmt::format("process {}: {}", pid, text));
                record(results[i]->matches);
                attached_.insert_or_assign(pid, std::move(*results[i]));
                waiting_.erase(pid);
                ever_attached_ = true;
                continue;
            }
            const Error& error = results[i].error();
            if (error.kind == ErrorKind::kNotFound) { // it is gone
                waiting_.erase(pid);
                continue;
            }
            const auto now = Clock::now();
            Waiting& waiting = waiting_[pid];
            if (waiting.until == Clock::time_point{}) waiting.until = now + kRetryFor;
            if (error.kind != ErrorKind::kTimeout || now >= waiting.until) {
                warn_(error.message + (error.hint.empty() ? "" : " (" + error.hint + ")"));
                waiting.next = Clock::time_point::max(); // told; not tried again
                continue;
            }
            const auto age = kRetryFor - (waiting.until - now);
            waiting.roots = roots;
            waiting.next = now + std::clamp<Clock::duration>(age / 2, kRetryFirst, kRetryLongest);
        }
    }
}

void PythonSide::hear() {
    for (engine::PythonEvent& event : engine_->poll()) {
        record(std::move(event.matches));
        if (event.kind == engine::PythonEvent::Kind::kGone) attached_.erase(event.process);
    }
}

void PythonSide::forget(pid_t pid) {
    hear(); // the old program's channel hung up at the exec
    attached_.erase(pid);
    waiting_.erase(pid);
}

void PythonSide::tend() {
    hear();
    const auto now = Clock::now();
    std::vector<std::pair<pid_t, uint64_t>> due;
    for (const auto& [pid, waiting] : waiting_)
        if (waiting.next <= now) due.emplace_back(pid, waiting.roots);
    if (due.empty()) return;
    try_attach(due, brief_options());
}

Clock::duration PythonSide::longest_sleep() const {
    Clock::duration sleep = std::chrono::hours(1);
    for (const auto& [pid, waiting] : waiting_)
        if (waiting.next != Clock::time_point::max())
            sleep = std::min(sleep, std::max<Clock::duration>(waiting.next - Clock::now(),
                                                              std::chrono::milliseconds(1)));
    return sleep;
}

} // namespace speedbump::session
