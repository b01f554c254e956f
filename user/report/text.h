// SPDX-License-Identifier: MIT
#pragma once

#include <string>

#include "report/summary.h"
#include "report/table.h"
#include "session/types.h"
#include "targets/target.h"

// The tables of `attach` and `run` for people. Pure functions; every line ends with a newline.
namespace speedbump::report {

// "push %rbp at +4, emulated": where a probe sits, relative to the function's entry.
std::string describe_site(const session::Target& target);
// "optimized nop", "emulated", "single-stepped".
std::string site_kind_name(elf::SiteKind kind);
// "10us every=3 start=1s": what differs from a plain delay follows it.
std::string delay_and_window(const engine::TargetSettings& settings);

// What matched which line, before the first delay: line, target, delay, site, notes.
std::string match_table(const Snapshot& snapshot, const TargetsFile& file, const Style& style);

// One look at a running session: the busiest targets in the time between two snapshots.
std::string live_table(const Snapshot& before, const Snapshot& now, const TargetsFile& file,
                       const Style& style);

// What happened in the whole session; `by_process` adds a row per process.
std::string final_table(const Snapshot& snapshot, const TargetsFile& file, const Style& style,
                        bool by_process);

} // namespace speedbump::report
