// SPDX-License-Identifier: MIT
#pragma once

#include <sys/types.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "engine/engine.h"
#include "engine/features.h"
#include "targets/target.h"
#include "tree/process_tree.h"
#include "util/result.h"

namespace speedbump::engine {

// What a session asks of its engines, by which they are chosen.
struct EngineRequest {
    EngineChoice choice = EngineChoice::kAuto;
    bool follow_children = true;
    bool is_of_cgroup = false;
    uint64_t every = 1; // of lines that set none
    std::vector<pid_t> pids;
    uint32_t columns = 0; // of a schedule; only engines that can have one are taken
};

// What a session stands on. Later ones may use earlier ones.
struct Engines {
    Features features;
    std::shared_ptr<tree::ProcessTree> tree;
    std::unique_ptr<tree::MappingRecords> mappings; // nullptr: the host has none
    std::shared_ptr<ProbeEngine> probes;
    std::unique_ptr<HookEngine> hooks; // nullptr: no line is for it; not open yet
    // The tree's, by which progress points are counted, where `probes` has another one.
    Schedule* progress_schedule = nullptr;
};

// kUsage where a line asks for what no engine of this choice does: delays that sleep, calls of some
// functions or threads alone.
Result<void> require_options(EngineChoice choice, const targets::TargetsFile& file);

// Probes the features of the kernel, checks rights, and opens the engines that the request and the
// lines of `file` are for. With kAuto the kernel module is taken when it
// is loaded and can do what is asked; where it is loaded and can't, `warn` is told why. With kKmod
// and kInprocess an error says why it can't. With kInprocess this program must have one thread.
Result<Engines> open_engines(const EngineRequest& request, const targets::TargetsFile& file,
                             const std::function<void(const std::string&)>& warn);

// What counts calls, with settings of delay 0, in processes that become members one by one, without
// their children: a tree and probes alone.
Result<Engines> open_counting(const Features& features);

} // namespace speedbump::engine
