// SPDX-License-Identifier: MIT
#include "experiment/progress_syscall.h"

#include <bpf/bpf.h>
#include <fmt/format.h>
#include <seccomp.h>

#include "engine/features.h"
#include "engine/libbpf.h"
#include "engine/quiet_libbpf.h"
#include "experiment/machine.h"
#include "experiment/progress_programs.h"
#include "syscall.skel.h"
#include "util/clock.h"

namespace speedbump::experiment {

namespace {

// The kernel's function of a system call. Some have another name since there was an older one.
std::string function_of(const std::string& name) {
    const std::string prefix = kSystemCallPrefix;
    for (const char* renewed : {"stat", "lstat", "fstat", "uname"})
        if (name == renewed) return prefix + "new" + name;
    return prefix + name;
}

class SystemCall : public ProgressPoint {
  public:
    // By the kernel's function, or, when `function` is empty, by each system call's tracepoint.
    Result<void> attach(int number, const std::string& function, session::Session& session) {
        if (auto able = require_programs(session); !able) return able;
        const engine::QuietLibbpf quiet;
        skeleton_.reset(syscall_bpf__open());
        if (!skeleton_) return errno_error("open the counting program", errno);
        bpf_program* program =
            function.empty() ? skeleton_->progs.sb_any_call : skeleton_->progs.sb_call;
        bpf_program__set_autoload(program, true);
        skeleton_->rodata->sb_number = static_cast<uint32_t>(number);
        int error = 0;
        if (!function.empty()) error = bpf_program__set_attach_target(program, 0, function.c_str());
        if (error == 0) error = bpf_map__reuse_fd(skeleton_->maps.tree, session.tree_map());
        if (error == 0) error = SliceCounter::prepare(session, *skeleton_, 1);
        if (error == 0) error = syscall_bpf__load(skeleton_.get());
        if (error != 0) return errno_error("load the counting program", -error);
        if (session.schedule() != nullptr) {
            auto by_slice = SliceCounter::open(skeleton_->maps.slice_units, 1);
            if (!by_slice) return std::move(by_slice).error();
            by_slice_.emplace(std::move(*by_slice));
        }
        link_.reset(bpf_program__attach(program));
        if (!link_) return errno_error("attach the counting program", errno);
        return {};
    }

    Result<Reading> read(const Totals& /*totals*/) override {
        std::vector<uint64_t> counts(static_cast<size_t>(libbpf_num_possible_cpus()));
        const uint32_t key = 0;
        if (bpf_map_lookup_elem(bpf_map__fd(skeleton_->maps.units), &key, counts.data()) != 0)
            return errno_error("read a counter", errno);
        Reading reading{0, monotonic_ns()};
        for (const uint64_t count : counts) reading.units += count;
        return reading;
    }

    bool clear_slices() override {
        if (by_slice_) by_slice_->clear();
        return by_slice_.has_value();
    }
    std::optional<engine::SliceProgress> take_slice(uint64_t slice) override {
        return by_slice_ ? std::optional(by_slice_->take(slice, 0)) : std::nullopt;
    }

  private:
    engine::BpfSkeleton<syscall_bpf> skeleton_;
    std::optional<SliceCounter> by_slice_;
    engine::BpfLink link_; // after the program, so that it goes first
};

} // namespace

Result<std::unique_ptr<ProgressPoint>> open_syscall(
    const std::string& name, session::Session& session,
    const std::function<void(const std::string&)>& warn) {
    const int number = seccomp_syscall_resolve_name(name.c_str());
    if (number < 0) return make_error(ErrorKind::kUsage, "there is no system call " + name);
    auto point = std::make_unique<SystemCall>();
    Result<void> attached = session.features().no_fentry
                                ? make_error(ErrorKind::kUnsupported, "switched off for a test")
                                : point->attach(number, function_of(name), session);
    if (!attached) {
        const std::string reason = attached.error().message;
        attached = point->attach(number, "", session);
        if (attached)
            warn(fmt::format(
                "syscall:{} is counted at every system call of this host, which makes each "
                "some tens of ns slower until the experiment ends: the kernel takes no "
                "program at the function of this one call ({})",
                name, reason));
    }
    if (!attached) return std::move(attached).error().with_context("count the system call " + name);
    return std::unique_ptr<ProgressPoint>(std::move(point));
}

} // namespace speedbump::experiment
