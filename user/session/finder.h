// SPDX-License-Identifier: MIT
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "elf/placement.h"
#include "engine/engine.h"
#include "process/resolver.h"
#include "session/members.h"
#include "session/probe_set.h"
#include "session/target_set.h"
#include "session/unfinished.h"
#include "util/clock.h"
#include "util/result.h"

namespace speedbump::session {

// Finds what is to be slowed in the members, and has it probed or hooked. What fails in a member is
// warned of once, and tried again.
class Finder {
  public:
    // `hooks`: nullptr when there are none. All must outlive this.
    Finder(const SessionOptions& options, const targets::TargetsFile& file,
           const elf::PlacementOptions& placement, Members& members, TargetSet& targets,
           ProbeSet& probes, engine::HookEngine* hooks, Warn warn)
        : options_(options),
          members_(members),
          targets_(targets),
          probes_(probes),
          hooks_(hooks),
          warn_(std::move(warn)),
          resolver_(file, placement) {}

    // All members, the program that is to be run, and files that nothing maps yet. Until then
    // look_at() does nothing.
    Result<void> find_all();
    bool has_begun() const { return has_begun_; }
    void look_at(Member& member);
    // Puts in place what was found before.
    void probe(const Member& member);
    void put_off(const Member& member, const Error& error);

    void try_unfinished();
    void forget(uint32_t tgid) { unfinished_.forget(tgid); }
    std::optional<Clock::duration> until_next() const { return unfinished_.until_next(); }
    std::vector<size_t> unmatched_lines() const { return resolver_.unmatched_lines(); }

  private:
    Result<void> find_mapped(Member& member, Clock::time_point exec_end);
    Result<void> find_program(Member& member);
    void find_named_files();
    void take(Member& member, process::Findings&& findings);

    const SessionOptions& options_;
    Members& members_;
    TargetSet& targets_;
    ProbeSet& probes_;
    engine::HookEngine* hooks_;
    Warn warn_;
    process::Resolver resolver_;
    Unfinished unfinished_;
    bool has_begun_ = false;
};

} // namespace speedbump::session
