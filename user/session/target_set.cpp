// SPDX-License-Identifier: MIT
#include "session/target_set.h"

#include <fmt/format.h>

#include <algorithm>

#include "session/roots.h"
#include "targets/matcher.h"

namespace speedbump::session {

using targets::Runtime;

engine::DelayEngine& TargetSet::engine_of(const Target& target) const {
    if (target.runtime == Runtime::kNative) return probes_;
    return *hooks_;
}

void TargetSet::describe(Target& target) const {
    const targets::Options& own = file_.lines[target.line_index].options;
    const targets::Options& general = options_.defaults;
    const auto choose = [](const auto& first, const auto& second, auto otherwise) {
        return first ? *first : second ? *second : otherwise;
    };
    target.settings.delay = choose(own.delay, general.delay, targets::kDefaultDelay);
    target.settings.every = choose(own.every, general.every, uint64_t{1});
    target.settings.start = choose(own.start, general.start, nanoseconds(0));
    target.settings.duration = choose(own.duration, general.duration, nanoseconds(0));
    target.settings.mode = choose(own.mode, general.mode, targets::Mode::kSpin);
    target.settings.caller = own.caller;
    target.settings.thread = own.thread;
    target.settings.root_mask = kSessionRoot | kCgroupRoot;
    if (own.pid) target.settings.root_mask = mask_of_pid_.at(*own.pid);
    target.below_floor = is_below_floor(target);
}

bool TargetSet::is_below_floor(const Target& target) const {
    return target.runtime == Runtime::kNative && target.settings.delay.count() > 0 &&
           target.settings.delay < probes_.floor(target.site.kind);
}

nanoseconds TargetSet::floor(uint32_t index) const {
    const Target& target = targets_.at(index);
    return engine_of(target).floor(target.site.kind);
}

// --- what is slowed

uint32_t TargetSet::append(Target target, const engine::ProbeSets& sets) {
    describe(target);
    targets_.push_back(std::move(target));
    sets_.push_back(sets);
    return static_cast<uint32_t>(targets_.size() - 1);
}

std::optional<engine::Probe> TargetSet::add(const process::NativeMatch& match,
                                            const engine::ProbeSets& sets) {
    const std::pair place(match.file, match.entry_offset);
    if (target_of_.contains(place)) return std::nullopt;
    Target target;
    target.runtime = Runtime::kNative;
    target.line_index = match.line_index;
    target.container = match.path;
    target.name = match.name;
    target.entry_offset = match.entry_offset;
    target.site = match.site;
    const uint32_t index = append(std::move(target), sets);
    target_of_[place] = index;
    if (auto done = configure(index); !done) {
        // It is no target: nothing will be at its place.
        const Target failed = std::move(targets_.back());
        targets_.pop_back();
        sets_.pop_back();
        target_of_.erase(place);
        list_skipped({failed.container, failed.name, failed.line_index, done.error().message});
        return std::nullopt;
    }
    return engine::Probe{index, match.site.file_offset, match.site.kind,
                         match.site.return_distance};
}

// What functions such a line names, each interpreter finds out.
void TargetSet::add_hooked_lines() {
    for (const size_t line : hooks_->lines()) {
        Target target;
        target.runtime = file_.lines[line].runtime;
        target.line_index = line;
        target.container = file_.lines[line].container.text;
        target.name = file_.lines[line].name.text;
        const uint32_t index = append(std::move(target), {});
        target_of_line_[line] = index;
        hooks_->add_line(index, line);
        configure_or_warn(index);
    }
}

void TargetSet::skip(process::Skipped skipped) {
    list_skipped({std::move(skipped.path), std::move(skipped.name),
                  skipped.line_index == SIZE_MAX ? std::nullopt : std::optional(skipped.line_index),
                  std::move(skipped.reason)});
}

void TargetSet::list_skipped(SkippedTarget skipped) {
    skipped_names_.emplace(skipped.container, skipped.name);
    skipped_.push_back(std::move(skipped));
}

void TargetSet::refused(const std::vector<engine::RefusedProbe>& probes) {
    for (const engine::RefusedProbe& failed : probes) {
        const Target& target = targets_[failed.probe.target];
        if (skipped_names_.contains({target.container, target.name}))
            continue; // of another process
        list_skipped({target.container, target.name, target.line_index,
                      failed.reason.empty()
                          ? fmt::format("the kernel refuses a probe at 0x{:x} ({}): {}",
                                        failed.probe.file_offset, target.site.instruction,
                                        error_text(failed.error_number))
                          : fmt::format("not probed: at 0x{:x} ({}) {}", failed.probe.file_offset,
                                        target.site.instruction, failed.reason)});
    }
}

// --- settings

Result<void> TargetSet::configure(uint32_t index) {
    const Target& target = targets_[index];
    return engine_of(target).configure(index, target.settings, armed_at_ns_, sets_[index]);
}

bool TargetSet::configure_or_warn(uint32_t index) {
    auto done = configure(index);
    if (done) return true;
    warn_(std::move(done).error().with_context("configure " + targets_[index].name).message);
    return false;
}

Result<void> TargetSet::set_sets(const std::vector<engine::Probe>& probes,
                                 const engine::ProbeSets& sets) {
    for (const engine::Probe& probe : probes) {
        sets_[probe.target] = sets;
        if (auto done = configure(probe.target); !done)
            return std::move(done).error().with_context("configure " + targets_[probe.target].name);
    }
    return {};
}

void TargetSet::begin_windows(uint64_t armed_at_ns) {
    armed_at_ns_ = armed_at_ns;
    for (uint32_t index = 0; index < targets_.size(); ++index) {
        const engine::TargetSettings& settings = targets_[index].settings;
        if (settings.start.count() > 0 || settings.duration.count() > 0) configure_or_warn(index);
    }
}

bool TargetSet::set(uint32_t index, const targets::Options& change) {
    Target& target = targets_[index];
    engine::TargetSettings& settings = target.settings;
    if (change.delay) settings.delay = *change.delay;
    if (change.every) settings.every = *change.every;
    if (change.start) settings.start = *change.start;
    if (change.duration) settings.duration = *change.duration;
    target.below_floor = is_below_floor(target);
    return configure_or_warn(index);
}

bool TargetSet::apply(std::span<const nanoseconds> delays, uint64_t end_ns) {
    const nanoseconds window(end_ns > armed_at_ns_ ? end_ns - armed_at_ns_ : 1);
    bool all = true;
    for (uint32_t index = 0; index < targets_.size(); ++index) {
        engine::TargetSettings& settings = targets_[index].settings;
        const nanoseconds delay = index < delays.size() ? delays[index] : nanoseconds(0);
        const nanoseconds duration = delay.count() > 0 ? window : nanoseconds(0);
        if (settings.delay == delay && settings.duration == duration) continue;
        const engine::TargetSettings before = settings;
        settings.delay = delay;
        settings.duration = duration;
        if (configure_or_warn(index)) continue;
        settings = before; // to be tried again
        all = false;
    }
    return all;
}

bool TargetSet::set_column(uint32_t index, std::optional<uint32_t> column) {
    Target& target = targets_[index];
    if (column && (*column >= options_.columns || !engine_of(target).capabilities().schedule))
        return false;
    target.settings.column = column;
    return configure_or_warn(index);
}

Result<size_t> TargetSet::set(const std::string& pattern, const targets::Options& change) {
    const engine::Capabilities able = probes_.capabilities();
    if (!able.every && change.every.value_or(1) > 1)
        return make_error(ErrorKind::kUsage, able.title + " delays each call: no every=")
            .with_hint("start the session with --engine=bpf");
    const targets::Pattern glob{pattern.empty() ? "*" : pattern, true};
    size_t changed = 0;
    for (uint32_t index = 0; index < targets_.size(); ++index) {
        const Target& target = targets_[index];
        const std::string& line = file_.lines[target.line_index].original;
        const std::string name = target.container + ":" + target.name;
        if (!targets::matches(glob, target.name) && !targets::matches(glob, name) &&
            line != pattern)
            continue;
        if (set(index, change)) ++changed;
    }
    probes_.handle_events();
    return changed;
}

void TargetSet::enable_hooked(const std::set<size_t>& lines) {
    for (const auto& [line, index] : target_of_line_) {
        targets_[index].settings.enabled = lines.contains(line);
        configure_or_warn(index);
    }
}

Result<void> TargetSet::restore_hooked() {
    for (const auto& [line, index] : target_of_line_) {
        targets_[index].settings.enabled = true;
        if (auto done = configure(index); !done) return done;
    }
    return {};
}

} // namespace speedbump::session
