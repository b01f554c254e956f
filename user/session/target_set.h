// SPDX-License-Identifier: MIT
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "engine/engine.h"
#include "process/resolver.h"
#include "session/types.h"
#include "session/warn.h"
#include "targets/target.h"
#include "util/result.h"

namespace speedbump::session {

// What a session slows, and how: its targets, each with its settings in the engine that delays it,
// and what can't be slowed. A target that keeps old settings is warned of.
class TargetSet {
  public:
    // `hooks`: nullptr when there are none. All must outlive this.
    TargetSet(const SessionOptions& options, const targets::TargetsFile& file,
              engine::ProbeEngine& probes, engine::HookEngine* hooks, Warn warn)
        : options_(options), file_(file), probes_(probes), hooks_(hooks), warn_(std::move(warn)) {}

    // The root bits that pid=N of a line stands for; to be told before the first target.
    void set_roots(std::map<pid_t, uint64_t> mask_of_pid) { mask_of_pid_ = std::move(mask_of_pid); }

    // A function that was found: its probe, unless it is known already or can't be configured.
    // `sets`: of its file.
    std::optional<engine::Probe> add(const process::NativeMatch& match,
                                     const engine::ProbeSets& sets);
    // The lines of the hooks, a target each. They are to be open.
    void add_hooked_lines();
    void skip(process::Skipped skipped);
    // Each is listed once.
    void refused(const std::vector<engine::RefusedProbe>& probes);

    // Which sets of probes their file has from now on.
    // An error is about one of them; those before it have been told.
    Result<void> set_sets(const std::vector<engine::Probe>& probes, const engine::ProbeSets& sets);
    // Windows count from here.
    void begin_windows(uint64_t armed_at_ns);
    // As Session::apply().
    bool apply(std::span<const nanoseconds> delays, uint64_t end_ns);
    // False when the engine can't do it.
    bool set_column(uint32_t index, std::optional<uint32_t> column);
    // As Session::set().
    Result<size_t> set(const std::string& pattern, const targets::Options& change);
    // Whether the targets of these lines of the hooks are enabled; the others are not.
    void enable_hooked(const std::set<size_t>& lines);
    // Those of all its lines are, and have all their settings anew.
    Result<void> restore_hooked();

    const std::vector<Target>& all() const { return targets_; }
    const std::vector<SkippedTarget>& skipped() const { return skipped_; }
    bool has_native() const { return !target_of_.empty(); }
    nanoseconds floor(uint32_t index) const;

  private:
    engine::DelayEngine& engine_of(const Target& target) const;
    void describe(Target& target) const;
    bool is_below_floor(const Target& target) const;
    bool set(uint32_t index, const targets::Options& change);
    uint32_t append(Target target, const engine::ProbeSets& sets);
    void list_skipped(SkippedTarget skipped);
    Result<void> configure(uint32_t index);
    bool configure_or_warn(uint32_t index);

    const SessionOptions& options_;
    const targets::TargetsFile& file_;
    engine::ProbeEngine& probes_;
    engine::HookEngine* hooks_;
    Warn warn_;
    std::map<pid_t, uint64_t> mask_of_pid_;
    uint64_t armed_at_ns_ = 0; // monotonic_ns()
    std::vector<Target> targets_;
    std::vector<engine::ProbeSets> sets_;                                 // of each
    std::map<std::pair<process::FileKey, uint64_t>, uint32_t> target_of_; // (file, entry) -> index
    std::map<size_t, uint32_t> target_of_line_;                           // of the hooks
    std::vector<SkippedTarget> skipped_;
    std::set<std::pair<std::string, std::string>> skipped_names_; // containers and names of these
};

} // namespace speedbump::session
