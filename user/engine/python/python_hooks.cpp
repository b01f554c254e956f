// SPDX-License-Identifier: MIT
#include "engine/python/python_hooks.h"

namespace speedbump::engine {

std::unique_ptr<PythonHooks> PythonHooks::create(const targets::TargetsFile& file, uint32_t columns,
                                                 Warn warn) {
    std::unique_ptr<PythonHooks> hooks(new PythonHooks(file, columns, std::move(warn)));
    for (size_t line = 0; line < file.lines.size(); ++line)
        if (file.lines[line].runtime == targets::Runtime::kPython && !file.lines[line].exclude)
            hooks->lines_.push_back(line);
    return hooks->lines_.empty() ? nullptr : std::move(hooks);
}

nanoseconds PythonHooks::floor(elf::SiteKind) const {
    if (!side_ || side_->attached().empty()) return nanoseconds(0);
    return side_->attached().begin()->second.hook_overhead;
}

Result<void> PythonHooks::configure(uint32_t target, const TargetSettings& settings,
                                    uint64_t armed_at_ns, const ProbeSets&) {
    if (side_) side_->configure(line_of_.at(target), settings, on_host_clock(armed_at_ns));
    return {};
}

void PythonHooks::arm(bool armed) {
    if (side_) side_->arm(armed);
}

int PythonHooks::fd() const {
    return side_ ? side_->fd() : -1;
}

void PythonHooks::handle_events() {
    if (side_) side_->handle_events();
}

Clock::duration PythonHooks::until_next() const {
    return side_ ? side_->longest_sleep() : Clock::duration::max();
}

// --- counts

void PythonHooks::add_counts(Sums& sums) {
    for (const Counts& counts : side_->read_counts()) {
        const auto target = target_of_.find(counts.target); // the table counts by line
        if (target == target_of_.end()) continue;
        Counts& sum = sums[{target->second, counts.process}];
        sum.target = target->second;
        sum.process = counts.process;
        sum += counts;
    }
}

Result<std::vector<Counts>> PythonHooks::read_counts() {
    Sums sums = closed_;
    if (side_) add_counts(sums);
    std::vector<Counts> result;
    for (const auto& [key, counts] : sums) result.push_back(counts);
    return result;
}

Losses PythonHooks::losses() const {
    return {.counts = side_ ? side_->lost_counts() : 0};
}

// --- hooks

void PythonHooks::add_line(uint32_t target, size_t line) {
    line_of_[target] = line;
    target_of_[line] = target;
}

Result<void> PythonHooks::open() {
    auto side = PythonSide::create(file_, columns_, warn_);
    if (!side) return std::move(side).error();
    side_ = std::move(*side);
    return regrouping_ ? side_->regroup(*regrouping_) : Result<void>();
}

Result<void> PythonHooks::regroup(Regrouping regrouping) {
    regrouping_ = std::move(regrouping);
    return side_ ? side_->regroup(*regrouping_) : Result<void>();
}

void PythonHooks::close() {
    if (!side_) return;
    add_counts(closed_);
    side_.reset();
}

void PythonHooks::attach(const std::vector<std::pair<pid_t, uint64_t>>& processes_and_roots,
                         bool wait) {
    if (side_) side_->attach(processes_and_roots, wait);
}

void PythonHooks::begin_events() {
    was_fresh_ = side_ && side_->has_fresh();
}

// What was hooked before this look at the events is told of all forks from before its hook.
void PythonHooks::end_events() {
    if (side_ && was_fresh_) side_->all_forks_told();
}

void PythonHooks::forked(pid_t parent, pid_t child, uint64_t roots) {
    if (side_) side_->forked(parent, child, roots);
}

void PythonHooks::execed(pid_t pid) {
    if (side_) side_->execed(pid);
}

void PythonHooks::exited(pid_t pid) {
    if (side_) side_->exited(pid);
}

Result<std::string> PythonHooks::path_entry(pid_t only) {
    return side_ ? side_->path_entry(only) : std::string();
}

HookReport PythonHooks::report() const {
    if (!side_) return {};
    return {side_->ever_attached(), side_->first_failure(), side_->matches()};
}

} // namespace speedbump::engine
