// SPDX-License-Identifier: MIT
#include "engine/features.h"

#include <bpf/bpf.h>
#include <bpf/libbpf.h>
#include <fcntl.h>
#include <linux/capability.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/utsname.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <fstream>
#include <memory>
#include <sstream>
#include <thread>

#include "calibrate.skel.h"
#include "engine/bpf/bpf_engine.h"
#include "engine/declared_absent.h"
#include "engine/inprocess/open.h"
#include "engine/kmod/kmod_engine.h"
#include "engine/libbpf.h"
#include "engine/machine.h"
#include "engine/mapping_watch.h"
#include "engine/quiet_libbpf.h"
#include "engine/shielded.h"
#include "engine/sites.h"
#include "util/log.h"
#include "util/proc.h"

namespace speedbump::engine {

namespace {

using Skeleton = BpfSkeleton<calibrate_bpf>;

// Which programs the kernel takes. Mostly all, and then one load tells; else each is tried alone.
Skeleton load_programs(Features& features) {
    struct Try {
        bpf_program* (*program)(calibrate_bpf*);
        bool Features::*feature;
    };
    static constexpr Try kTries[] = {
        {[](calibrate_bpf* s) { return s->progs.sb_probe_perf; }, &Features::bpf},
        {[](calibrate_bpf* s) { return s->progs.sb_probe_perf_sleepable; },
         &Features::sleepable_uprobe},
        {[](calibrate_bpf* s) { return s->progs.sb_probe_tracepoint; }, &Features::tracepoint_btf},
        {[](calibrate_bpf* s) { return s->progs.sb_probe_iterator; }, &Features::task_iterator},
        {[](calibrate_bpf* s) { return s->progs.sb_probe_multi; }, &Features::uprobe_multi},
    };
    Skeleton all(calibrate_bpf__open());
    if (!all) return nullptr;
    for (const Try& one : kTries) bpf_program__set_autoload(one.program(all.get()), true);
    if (calibrate_bpf__load(all.get()) == 0) {
        for (const Try& one : kTries) features.*one.feature = true;
        return all;
    }
    Skeleton multi;
    for (const Try& one : kTries) {
        Skeleton skeleton(calibrate_bpf__open());
        if (!skeleton) continue;
        bpf_program__set_autoload(one.program(skeleton.get()), true);
        features.*one.feature = calibrate_bpf__load(skeleton.get()) == 0;
        if (features.uprobe_multi) multi = std::move(skeleton);
    }
    return multi;
}

// How the kernel's uprobe_multi really behaves, seen on functions of this program.
void try_uprobe_multi(Features& features, Skeleton skeleton) {
    const auto sites = feature_sites();
    unsigned long offsets[sites.size()];
    for (size_t i = 0; i < sites.size(); ++i)
        offsets[i] = own_file_offset(reinterpret_cast<const void*>(sites[i].function));
    LIBBPF_OPTS(bpf_uprobe_multi_opts, options, .offsets = offsets, .cnt = sites.size());
    BpfLink link(bpf_program__attach_uprobe_multi(skeleton->progs.sb_probe_multi, getpid(),
                                                  "/proc/self/exe", nullptr, &options));
    features.uprobe_multi = link != nullptr;
    if (!link) return;
    // Before "bpf: Fix uprobe multi pid filter check" (6.10) other threads went unseen.
    const auto emulated = sites[static_cast<size_t>(elf::SiteKind::kEmulated)].function;
    const uint64_t before = skeleton->bss->hits;
    std::thread(emulated).join();
    features.uprobe_multi_pid = skeleton->bss->hits == before + 1;
    // "uprobes/x86: Add support to optimize uprobes" (6.18) turns int3 into a near call.
    const auto nop = sites[static_cast<size_t>(elf::SiteKind::kOptimizedNop)].function;
    for (int i = 0; i < 10; ++i) nop();
    const auto* code = reinterpret_cast<const volatile unsigned char*>(nop);
    features.nop5_optimized = has_become_call(code);
    features.nop5_is_safe = !features.nop5_optimized || child_reaches_call(code);
    // Closing it waits for a grace period, and for whoever is in a probe.
    const int kept = ::fcntl(bpf_link__fd(link.get()), F_DUPFD_CLOEXEC, 0);
    features.cleanup = std::async(std::launch::async, [kept, skeleton = std::move(skeleton),
                                                       link = std::move(link)]() mutable {
                           link.reset();
                           if (kept >= 0) close_shielded({kept});
                           skeleton.reset();
                       }).share();
}

uint64_t effective_capabilities() {
    return std::strtoull(
        std::string(status_field(read_proc("/proc/self/status"), "CapEff")).c_str(), nullptr, 16);
}

bool has_capability(int number) {
    const uint64_t effective = effective_capabilities();
    return (effective >> number & 1) != 0;
}

struct NeededCapability {
    int number;
    const char* name;
    const char* purpose;
};
constexpr NeededCapability kNeeded[] = {
    {CAP_BPF, "CAP_BPF", "load the BPF programs"},
    {CAP_PERFMON, "CAP_PERFMON", "attach probes and hear of new mappings"},
    {CAP_SYS_PTRACE, "CAP_SYS_PTRACE", "look into other processes"},
};

std::string kernel_release() {
    utsname name{};
    uname(&name);
    return name.release;
}

std::string read_line(const char* path) {
    std::ifstream file(path);
    std::string line;
    std::getline(file, line);
    return line;
}

std::string lockdown_mode() {
    const std::string line = read_line("/sys/kernel/security/lockdown");
    const size_t open = line.find('['), close = line.find(']');
    return open == std::string::npos || close == std::string::npos
               ? ""
               : line.substr(open + 1, close - open - 1);
}

// To a group: with these capabilities the program can read and slow any process of the host, and
// only its own checks (process/ownership.h) keep its callers to their own.
constexpr const char* kGrantLine =
    "sudo groupadd -f speedbump && f=$(readlink -f \"$(command -v speedbump)\") && "
    "sudo chgrp speedbump \"$f\" && sudo chmod 0750 \"$f\" && "
    "sudo setcap cap_bpf,cap_perfmon,cap_sys_ptrace=ep \"$f\"";

// Processor and kernel together: only then the flag is shown (6.6), and that of the guarded control
// stacks of aarch64 (6.13).
bool has_no_shadow_stacks() {
    std::ifstream processors("/proc/cpuinfo");
    for (std::string line; std::getline(processors, line);)
        if (line.starts_with("flags") || line.starts_with("Features"))
            return (line + ' ').find(" user_shstk ") == std::string::npos &&
                   (line + ' ').find(" gcs ") == std::string::npos;
    return false;
}

// What SPEEDBUMP_WITHOUT names.
void take_off_declared(Features& features) {
    const auto without = is_declared_absent;
    if (without("btf")) features.btf = features.bpf = features.tracepoint_btf = false;
    if (without("bpf")) features.bpf = false;
    if (without("sleepable")) features.sleepable_uprobe = false;
    if (without("uprobe_multi")) features.uprobe_multi = features.uprobe_multi_pid = false;
    if (without("uprobe_multi_pid")) features.uprobe_multi_pid = false;
    if (without("kmod")) features.kmod = false;
    if (without("mmap_events")) features.mmap_events = false;
    if (without("nop5")) features.nop5_optimized = false;
    if (without("no_shadow_stacks")) features.no_shadow_stacks = false;
    if (without("tallies")) features.few_tallies = true;
    if (without("ring")) features.small_ring = true;
    if (without("members")) features.few_members = true;
    if (without("fentry")) features.no_fentry = true;
}

} // namespace

bool is_declared_absent(std::string_view name) {
    const char* without = std::getenv("SPEEDBUMP_WITHOUT");
    std::stringstream names(without ? without : "");
    for (std::string one; std::getline(names, one, ',');)
        if (one == name) return true;
    return false;
}

Result<void> require_attach_rights() {
    const QuietLibbpf quiet;
    Features features;
    features.btf = access("/sys/kernel/btf/vmlinux", R_OK) == 0;
    load_programs(features);
    take_off_declared(features);
    return require_attach_rights(features);
}

Features probe_features() {
    const QuietLibbpf quiet;
    Features features;
    features.btf = access("/sys/kernel/btf/vmlinux", R_OK) == 0;
    if (Skeleton skeleton = load_programs(features); skeleton && features.uprobe_multi)
        try_uprobe_multi(features, std::move(skeleton));
    if (!features.nop5_optimized && !features.nop5_is_safe)
        features.nop5_is_safe = has_no_trampoline();
    features.no_shadow_stacks = has_no_shadow_stacks();
    features.mmap_events = MappingWatch::open().has_value();
    features.kmod = access("/dev/speed_bump", F_OK) == 0;

    take_off_declared(features);
    return features;
}

Result<void> require_attach_rights(const Features& features) {
    for (const NeededCapability& needed : kNeeded) {
        if (has_capability(needed.number) || has_capability(CAP_SYS_ADMIN)) continue;
        return make_error(
                   ErrorKind::kPermission,
                   std::string(needed.name) + " is missing: it is needed to " + needed.purpose)
            .with_hint(std::string("run as root (sudo), or grant it once: ") + kGrantLine);
    }
    if (!features.btf)
        return make_error(ErrorKind::kUnsupported,
                          "this kernel (" + kernel_release() +
                              ") has no type information: /sys/kernel/btf/vmlinux is missing")
            .with_hint(
                "boot a kernel built with CONFIG_DEBUG_INFO_BTF=y (those of Debian 12, "
                "Ubuntu 22.04 and later are)");
    if (!features.bpf || !features.tracepoint_btf || !features.task_iterator) {
        if (lockdown_mode() == "confidentiality")
            return make_error(ErrorKind::kPermission,
                              "kernel lockdown is in confidentiality mode, which forbids BPF to "
                              "read kernel memory")
                .with_hint("boot with lockdown=integrity; see kernel_lockdown(7)");
        return make_error(ErrorKind::kUnsupported,
                          "this kernel (" + kernel_release() + ") does not load the BPF programs")
            .with_hint(
                "Linux 6.1 or newer with CONFIG_BPF_EVENTS and CONFIG_UPROBE_EVENTS is "
                "needed, and no lockdown in confidentiality mode; speedbump doctor tells which "
                "part "
                "is missing");
    }
    return {};
}

std::vector<Check> check_host(const Features& features) {
    using State = Check::State;
    std::vector<Check> checks;
    const auto add = [&](std::string name, bool good, State otherwise, std::string detail,
                         std::string remedy) {
        checks.push_back({std::move(name), good ? State::kGood : otherwise, std::move(detail),
                          good ? "" : std::move(remedy)});
    };
    checks.push_back({"kernel", State::kGood, "Linux " + kernel_release(), ""});
    for (const NeededCapability& needed : kNeeded)
        add(needed.name, has_capability(needed.number) || has_capability(CAP_SYS_ADMIN),
            State::kBad, std::string("to ") + needed.purpose, kGrantLine);
    add("BTF", features.btf, State::kBad,
        features.btf ? "/sys/kernel/btf/vmlinux" : "no /sys/kernel/btf/vmlinux: nothing can load",
        "boot a kernel built with CONFIG_DEBUG_INFO_BTF=y");
    const std::string lockdown = lockdown_mode();
    add("lockdown", lockdown != "confidentiality", State::kBad,
        lockdown.empty() ? "not in force" : "mode " + lockdown, "boot with lockdown=integrity");
    add("uprobes from BPF", features.bpf, State::kBad,
        features.bpf ? "programs load" : "a program that does nothing is refused",
        "boot a kernel with CONFIG_UPROBE_EVENTS=y and CONFIG_BPF_EVENTS=y");
    add("process tree", features.tracepoint_btf && features.task_iterator, State::kBad,
        "BTF tracepoints and the task iterator", "boot Linux 6.1 or newer");
    add("sleepable uprobes", features.sleepable_uprobe, State::kDegraded,
        features.sleepable_uprobe ? "a delay holds up no RCU grace period"
                                  : "long delays hold up RCU grace periods",
        "Linux 6.1 or newer");
    add("uprobe_multi", features.uprobe_multi, State::kDegraded,
        features.uprobe_multi ? "many probes in one call"
                              : "probes are attached one by one: slow with thousands",
        "Linux 6.6 or newer");
    add("uprobe_multi by process", features.uprobe_multi_pid, State::kDegraded,
        features.uprobe_multi_pid
            ? "processes outside the tree pay nothing"
            : "other processes that map the same file pay for the breakpoint, without the delay",
        "Linux 6.10 or newer");
    add_machine_checks(checks, features);
    add("mapping records", features.mmap_events, State::kBad,
        features.mmap_events ? "libraries mapped later are picked up at once"
                             : "libraries mapped later would go unseen",
        "sudo sysctl kernel.perf_event_paranoid=2");
    checks.push_back(
        {"kernel module", features.kmod ? State::kGood : State::kUnknown,
         features.kmod ? "loaded: --engine=auto takes it for native targets, except with every=, "
                         "--no-children, --cgroup, or this program in the tree; it does not "
                         "count by process"
                       : "not loaded (not needed: BPF delays)",
         ""});
    return checks;
}

Result<std::vector<CalibrationRow>> calibrate(const Features& features) {
    if (auto rights = require_attach_rights(features); !rights) return std::move(rights).error();
    auto engine = BpfEngine::load(features);
    if (!engine) return std::move(engine).error();
    if (auto floors = (*engine)->calibrate(); !floors) return std::move(floors).error();
    using namespace std::chrono_literals;
    const std::vector<nanoseconds> delays = {1us, 10us, 100us, 1ms};
    auto rows = (*engine)->measure_accuracy(delays);
    if (!rows) return rows;
    if (auto row = inprocess::measure_accuracy(delays)) rows->push_back(std::move(*row));
    if (!features.kmod) return rows;
    auto kmod = KmodEngine::open(log::warning);
    if (!kmod) return std::move(kmod).error();
    if (auto floors = (*kmod)->calibrate(); !floors) return std::move(floors).error();
    auto more = (*kmod)->measure_accuracy(delays);
    if (!more) return more;
    rows->insert(rows->end(), more->begin(), more->end());
    return rows;
}

} // namespace speedbump::engine
