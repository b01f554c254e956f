// SPDX-License-Identifier: MIT
#include "engine/engines.h"

#include <fmt/format.h>
#include <unistd.h>

#include <set>
#include <utility>

#include "engine/bpf/bpf_engine.h"
#include "engine/inprocess/open.h"
#include "engine/kmod/kmod_engine.h"
#include "engine/mapping_watch.h"
#include "engine/python/python_hooks.h"
#include "process/ownership.h"
#include "tree/polled_tree.h"
#include "util/descriptors.h"
#include "util/proc.h"

namespace speedbump::engine {

namespace {

using Warn = std::function<void(const std::string&)>;

// What of the request the module can't do; empty when it can all of it.
std::string unfit_for_module(const EngineRequest& request, const targets::TargetsFile& file) {
    if (!request.follow_children) return "it delays a process with its children (--no-children)";
    if (request.is_of_cgroup) return "it knows processes, no cgroups (--cgroup)";
    if (request.columns > 0) return "it has no schedule";
    if (request.every > 1) return "it delays each call (--every)";
    std::set<pid_t> roots(request.pids.begin(), request.pids.end());
    for (const targets::TargetLine& line : file.lines) {
        if (line.exclude || line.runtime != targets::Runtime::kNative) continue;
        if (line.options.every.value_or(1) > 1)
            return "it delays each call (every= in line " + std::to_string(line.line_number) + ")";
        if (line.options.pid) roots.insert(*line.options.pid);
    }
    for (pid_t pid = getpid(); pid > 0; pid = parent_of(pid))
        if (roots.contains(pid))
            return "it would delay this speedbump as well, which descends from process " +
                   std::to_string(pid);
    return "";
}

// What of the request the in-process engine can't do; empty when it can all of it.
std::string unfit_for_inprocess(const EngineRequest& request) {
    if (request.is_of_cgroup) return "it knows processes, no cgroups (--cgroup)";
    return "";
}

// nullptr: another engine delays.
Result<std::unique_ptr<inprocess::InprocessProbes>> open_inprocess(const EngineRequest& request,
                                                                   const Warn& warn) {
    if (request.choice != EngineChoice::kInprocess)
        return std::unique_ptr<inprocess::InprocessProbes>();
    if (const std::string reason = unfit_for_inprocess(request); !reason.empty())
        return make_error(ErrorKind::kUsage, "the in-process engine can't do that: " + reason)
            .with_hint("use --engine=bpf");
    auto probes = inprocess::open(request.columns, warn);
    if (probes) (*probes)->follow_children(request.follow_children);
    return probes;
}

// nullptr: BPF delays.
Result<std::unique_ptr<KmodEngine>> open_chosen_module(const EngineRequest& request,
                                                       const targets::TargetsFile& file,
                                                       const Features& features, const Warn& warn) {
    using Module = std::unique_ptr<KmodEngine>;
    const bool must = request.choice == EngineChoice::kKmod;
    if (request.choice == EngineChoice::kBpf || request.choice == EngineChoice::kInprocess ||
        (!must && !features.kmod))
        return Module();
    if (!features.kmod)
        return make_error(ErrorKind::kUnsupported, "the kernel module speed_bump is not loaded")
            .with_hint("modprobe speed_bump (docs/sysfs-interface.md), or use --engine=bpf");
    const std::string reason = unfit_for_module(request, file);
    if (!reason.empty() && must)
        return make_error(ErrorKind::kUsage, "the kernel module can't do that: " + reason)
            .with_hint("use --engine=bpf");
    auto module = reason.empty() ? KmodEngine::open(warn) : make_error(ErrorKind::kUsage, reason);
    if (module || must) return module;
    warn("the kernel module is loaded, but BPF delays: " + module.error().message);
    return Module();
}

// The in-process engine without BPF.
Engines with_polled_tree(std::unique_ptr<inprocess::InprocessProbes> jumps, const Error& why,
                         const Warn& warn) {
    warn(why.message +
         ": the process tree is looked at in /proc instead, some 30 times a second; a process that "
         "lives no longer than that, or whose parent does, is missed (docs/inprocess.md)");
    Engines engines;
    const auto tree = std::make_shared<tree::PolledTree>(process::is_ours);
    jumps->follow(*tree);
    engines.mappings = tree->mappings();
    engines.tree = tree;
    engines.probes = std::move(jumps);
    return engines;
}

} // namespace

Result<void> require_options(EngineChoice choice, const targets::TargetsFile& file) {
    for (const targets::TargetLine& line : file.lines) {
        if (line.exclude) continue;
        const targets::Options& options = line.options;
        const std::pair<bool, const char*> asked[] = {
            {options.mode == targets::Mode::kSleep, "mode=sleep"},
            {options.caller.has_value(), "caller="},
            {options.thread.has_value(), "thread="}};
        for (const auto& [is_asked, option] : asked) {
            if (!is_asked) continue;
            if (line.runtime == targets::Runtime::kPython)
                return make_error(ErrorKind::kUsage,
                                  fmt::format("line {}: {} is for native functions, not for those "
                                              "of Python",
                                              line.line_number, option))
                    .with_hint(fmt::format("take {} off that line", option));
            if (choice != EngineChoice::kInprocess)
                return make_error(ErrorKind::kUsage,
                                  fmt::format("line {}: only the in-process engine can do {}",
                                              line.line_number, option))
                    .with_hint(fmt::format("use --engine=inprocess, or take {} off", option));
        }
    }
    return {};
}

Result<Engines> open_counting(const Features& features) {
    auto loaded = BpfEngine::load(features);
    if (!loaded) return std::move(loaded).error();
    const std::shared_ptr<BpfEngine> bpf = std::move(*loaded);
    bpf->follow_children(false);
    Engines engines;
    engines.features = features;
    engines.tree = bpf;
    engines.probes = bpf;
    return engines;
}

Result<Engines> open_engines(const EngineRequest& request, const targets::TargetsFile& file,
                             const Warn& warn) {
    if (request.columns > SB_MAX_COLUMNS)
        return make_error(ErrorKind::kUnsupported, "a schedule has no more than " +
                                                       std::to_string(SB_MAX_COLUMNS) + " columns");
    if (auto able = require_options(request.choice, file); !able) return std::move(able).error();
    // First of all: probing the features starts a thread.
    auto jumps = open_inprocess(request, warn);
    if (!jumps) return std::move(jumps).error();
    Engines engines;
    engines.features = probe_features();
    if (auto rights = require_attach_rights(engines.features); !rights) {
        if (!*jumps) return std::move(rights).error();
        const Features features = std::move(engines.features);
        engines = with_polled_tree(std::move(*jumps), rights.error(), warn);
        engines.features = features;
        engines.hooks = PythonHooks::create(file, request.columns, warn);
        return engines;
    }
    auto module = open_chosen_module(request, file, engines.features, warn);
    if (!module) return std::move(module).error();
    allow_many_descriptors();
    auto loaded = BpfEngine::load(engines.features, request.columns);
    if (!loaded) return std::move(loaded).error();
    const std::shared_ptr<BpfEngine> bpf = std::move(*loaded);
    engines.tree = bpf; // in any case
    if (*jumps) {
        (*jumps)->follow(*bpf);
        engines.progress_schedule = bpf->schedule();
        engines.probes = std::move(*jumps);
    } else if (*module) {
        (*module)->follow(*bpf);
        engines.probes = std::move(*module);
    } else {
        engines.probes = bpf;
    }
    if (engines.features.mmap_events) {
        auto mappings = MappingWatch::open();
        if (!mappings) return std::move(mappings).error();
        engines.mappings = std::move(*mappings);
    } else {
        warn(
            "this host does not report new mappings: libraries that are loaded later stay "
            "unslowed, and so does each new process for its first milliseconds (speedbump "
            "doctor)");
    }
    engines.hooks = PythonHooks::create(file, request.columns, warn);
    return engines;
}

} // namespace speedbump::engine
