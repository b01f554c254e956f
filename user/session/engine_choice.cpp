// SPDX-License-Identifier: MIT
#include "session/engine_choice.h"

#include <unistd.h>

#include <algorithm>
#include <set>

#include "util/proc.h"

namespace speedbump::session {

std::string unfit_for_module(const SessionOptions& options, const targets::TargetsFile& file) {
    if (!options.follow_children) return "it delays a process with its children (--no-children)";
    if (options.cgroup) return "it knows processes, no cgroups (--cgroup)";
    if (options.defaults.every.value_or(1) > 1) return "it delays each call (--every)";
    std::set<pid_t> roots(options.pids.begin(), options.pids.end());
    for (const targets::TargetLine& line : file.lines) {
        if (line.exclude || line.world != targets::World::kNative) continue;
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

Result<std::unique_ptr<engine::KmodEngine>> open_chosen_module(
    const SessionOptions& options, const targets::TargetsFile& file,
    const engine::Features& features, const std::function<void(const std::string&)>& warn) {
    using Module = std::unique_ptr<engine::KmodEngine>;
    const bool must = options.engine == EngineChoice::kKmod;
    if (options.engine == EngineChoice::kBpf || (!must && !features.kmod)) return Module();
    if (!features.kmod)
        return make_error(ErrorKind::kUnsupported, "the kernel module speed_bump is not loaded")
            .with_hint("modprobe speed_bump (docs/sysfs-interface.md), or use --engine=bpf");
    const std::string reason = unfit_for_module(options, file);
    if (!reason.empty() && must)
        return make_error(ErrorKind::kUsage, "the kernel module can't do that: " + reason)
            .with_hint("use --engine=bpf");
    auto module =
        reason.empty() ? engine::KmodEngine::open(warn) : make_error(ErrorKind::kUsage, reason);
    if (module || must) return module;
    warn("the kernel module is loaded, but BPF delays: " + module.error().message);
    return Module();
}

} // namespace speedbump::session
