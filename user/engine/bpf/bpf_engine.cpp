// SPDX-License-Identifier: MIT
#include "engine/bpf/bpf_engine.h"

#include <bpf/bpf.h>
#include <bpf/libbpf.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <future>
#include <thread>

#include "abi.h"
#include "delay.skel.h"
#include "engine/bpf/bpf_schedule.h"
#include "engine/bpf/tallies.h"
#include "engine/iterator.h"
#include "engine/libbpf.h"
#include "engine/measure.h"
#include "util/clock.h"
#include "util/fd.h"
#include "util/numbers.h"
#include "util/passing.h"

namespace speedbump::engine {

namespace {

using Skeleton = BpfSkeleton<delay_bpf>;

static_assert(static_cast<uint32_t>(elf::SiteKind::kOptimizedNop) == SB_SITE_OPTIMIZED_NOP);
static_assert(static_cast<uint32_t>(elf::SiteKind::kEmulated) == SB_SITE_EMULATED);
static_assert(static_cast<uint32_t>(elf::SiteKind::kSingleStep) == SB_SITE_SINGLE_STEP);

constexpr uint32_t kSmallRing = 4096; // SPEEDBUMP_WITHOUT=ring
constexpr uint32_t kFewMembers = 16;  // SPEEDBUMP_WITHOUT=members

// What no other probe would fare better with.
bool concerns_all(int error) {
    return may_pass(error) || error == ESRCH || error == EPERM || error == EACCES;
}

Error bpf_error(const std::string& what, int negative_errno) {
    return errno_error(what, -negative_errno);
}

} // namespace

struct BpfEngine::Impl {
    Features features;
    BpfRing ring;
    Skeleton skeleton;
    std::vector<Fd> tree_links; // after the skeleton, so that links die first
    bpf_program* hit = nullptr;
    MapMemory targets_memory, overflow_memory;
    sb_target* targets = nullptr;
    uint32_t own_tgid = 0;
    std::vector<tree::TreeEvent> events;
    const sb_counts* overflow = nullptr;
    uint32_t target_count = 0; // configured so far
    Floors floors;
    std::unique_ptr<BpfSchedule> schedule; // nullptr: no columns
    std::vector<Links> used;               // probes of finished measurements
    std::future<void> cleanup;

    ~Impl() {
        if (skeleton) control().armed = 0;
    }
    sb_control& control() { return skeleton->bss_control->control; }
    sb_state& state() { return skeleton->bss->state; }

    Result<Links> attach(const std::string& path, const std::vector<Probe>& probes, pid_t pid,
                         uint32_t set, std::vector<RefusedProbe>& refused);
    void attach_range(const std::string& path, const Probe* probes, size_t count, pid_t pid,
                      uint32_t set, Links& links, std::vector<RefusedProbe>& refused);
};

BpfEngine::BpfEngine(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
BpfEngine::~BpfEngine() = default;

Capabilities BpfEngine::capabilities() const {
    // Without that a kernel with uprobe_multi filters by thread.
    const bool narrow = impl_->features.uprobe_multi_pid || !impl_->features.uprobe_multi;
    return {.name = "bpf", .title = "BPF", .narrow = narrow, .schedule = true};
}

Result<std::unique_ptr<BpfEngine>> BpfEngine::load(const Features& features, uint32_t columns) {
    auto impl = std::make_unique<Impl>();
    impl->features = features;
    impl->skeleton.reset(delay_bpf__open());
    if (!impl->skeleton) return errno_error("open the BPF programs", errno);
    delay_bpf* skeleton = impl->skeleton.get();
    if (features.uprobe_multi)
        impl->hit = features.sleepable_uprobe ? skeleton->progs.sb_hit_multi_sleepable
                                              : skeleton->progs.sb_hit_multi;
    else
        impl->hit = features.sleepable_uprobe ? skeleton->progs.sb_hit_perf_sleepable
                                              : skeleton->progs.sb_hit_perf;
    bpf_program__set_autoload(impl->hit, true);
    skeleton->rodata->sb_may_sleep = features.sleepable_uprobe ? 1 : 0;
    if (features.few_tallies) bpf_map__set_max_entries(skeleton->maps.tallies, SB_SITE_KINDS);
    if (features.small_ring) bpf_map__set_max_entries(skeleton->maps.events, kSmallRing);
    if (features.few_members) bpf_map__set_max_entries(skeleton->maps.tree, kFewMembers);
    BpfSchedule::make_room(*skeleton, columns);
    if (const int error = delay_bpf__load(skeleton); error != 0) {
        impl->skeleton.reset(); // its variables may not be there
        return bpf_error("load the BPF programs", error);
    }

    impl->control().follow_children = 1;
    impl->control().only_own = getuid() != 0 ? 1 : 0;
    auto targets =
        MapMemory::of(skeleton->maps.targets, PROT_READ | PROT_WRITE, "map the table of targets");
    if (!targets) return std::move(targets).error();
    impl->targets_memory = std::move(*targets);
    impl->targets = impl->targets_memory.as<sb_target>();
    auto overflow = MapMemory::of(skeleton->maps.overflow, PROT_READ, "map the counters");
    if (!overflow) return std::move(overflow).error();
    impl->overflow_memory = std::move(*overflow);
    impl->overflow = impl->overflow_memory.as<const sb_counts>();

    if (columns > 0) {
        auto schedule = BpfSchedule::open(*skeleton, columns);
        if (!schedule) return std::move(schedule).error();
        impl->schedule = std::move(*schedule);
    }

    impl->ring.reset(ring_buffer__new(
        bpf_map__fd(skeleton->maps.events),
        [](void* context, void* data, size_t) {
            const auto* event = static_cast<const sb_event*>(data);
            auto* self = static_cast<Impl*>(context);
            self->events.push_back({static_cast<tree::TreeEvent::Type>(event->type), event->tgid,
                                    event->parent_tgid, static_cast<pid_t>(event->pid),
                                    event->roots, event->start_time,
                                    std::string(event->comm, strnlen(event->comm, 16))});
            return 0;
        },
        impl.get(), nullptr));
    if (!impl->ring) return errno_error("open the ring buffer of tree events", errno);

    for (bpf_program* program : {skeleton->progs.sb_fork, skeleton->progs.sb_exec,
                                 skeleton->progs.sb_exit, skeleton->progs.sb_cgroup}) {
        const int link = bpf_link_create(bpf_program__fd(program), 0,
                                         bpf_program__expected_attach_type(program), nullptr);
        if (link < 0)
            return bpf_error(std::string("attach the BPF program ") + bpf_program__name(program),
                             link);
        impl->tree_links.emplace_back(link);
    }

    auto engine = std::unique_ptr<BpfEngine>(new BpfEngine(std::move(impl)));
    // The iterator runs in this process: it tells how deep in PID namespaces this program is, and
    // with that our own PID as the programs see it.
    auto listed = engine->list_processes();
    if (!listed) return std::move(listed).error().with_context("list the processes");
    for (const tree::ListedProcess& process : *listed)
        if (process.pid == getpid()) engine->impl_->own_tgid = process.tgid;
    engine->impl_->control().loader_tgid = engine->impl_->own_tgid;
    return engine;
}

void BpfEngine::follow_children(bool follow) {
    impl_->control().follow_children = follow;
}

void BpfEngine::set_cgroup(uint64_t id, uint64_t roots) {
    sb_control& control = impl_->control();
    control.cgroup_roots = roots;
    __atomic_store_n(&control.cgroup_id, id, __ATOMIC_RELEASE);
}

void BpfEngine::record_edges(bool record) {
    impl_->control().record_edges = record;
}
void BpfEngine::wake_on_fork(bool wake) {
    impl_->control().wake_on_fork = wake;
}
uint32_t BpfEngine::own_tgid() const {
    return impl_->own_tgid;
}

Result<std::vector<tree::ListedProcess>> BpfEngine::list_processes() {
    const BpfLink link(bpf_program__attach_iter(impl_->skeleton->progs.sb_tasks, nullptr));
    if (!link) return errno_error("attach the task iterator", errno);
    const auto tasks = read_iterator<sb_task>(*link, "the task iterator");
    if (!tasks) return tasks.error();
    std::vector<tree::ListedProcess> processes;
    for (const sb_task& task : *tasks)
        processes.push_back({task.tgid, task.parent_tgid, static_cast<pid_t>(task.pid),
                             task.start_time, task.kernel_thread != 0, task.in_cgroup != 0,
                             std::string(task.comm, strnlen(task.comm, sizeof(task.comm))),
                             task.ended != 0});
    return processes;
}

Result<bool> BpfEngine::add_member(uint32_t tgid, uint64_t roots) {
    const int map = bpf_map__fd(impl_->skeleton->maps.tree);
    const sb_member member{roots};
    if (bpf_map_update_elem(map, &tgid, &member, BPF_NOEXIST) == 0) {
        __atomic_fetch_add(&impl_->state().members, 1, __ATOMIC_RELAXED);
        return true;
    }
    if (errno != EEXIST) return errno_error("add a process to the tree", errno);
    // It got there by a fork; the bits of both ways count.
    const uint64_t arguments[] = {tgid, roots};
    LIBBPF_OPTS(bpf_test_run_opts, run, .ctx_in = arguments, .ctx_size_in = sizeof arguments);
    const int error =
        bpf_prog_test_run_opts(bpf_program__fd(impl_->skeleton->progs.sb_add_roots), &run);
    if (error != 0) return bpf_error("add a process to the tree", error);
    return run.retval != 0;
}

void BpfEngine::remove_member(uint32_t tgid) {
    if (bpf_map_delete_elem(bpf_map__fd(impl_->skeleton->maps.tree), &tgid) != 0) return;
    __atomic_fetch_add(&impl_->state().departures, 1, __ATOMIC_RELAXED);
    __atomic_fetch_sub(&impl_->state().members, 1, __ATOMIC_RELAXED);
}

uint64_t BpfEngine::member_roots(uint32_t tgid) const {
    sb_member member{};
    bpf_map_lookup_elem(bpf_map__fd(impl_->skeleton->maps.tree), &tgid, &member);
    return member.roots;
}

uint64_t BpfEngine::member_count() const {
    return __atomic_load_n(&impl_->state().members, __ATOMIC_RELAXED);
}

int BpfEngine::tree_map() const {
    return bpf_map__fd(impl_->skeleton->maps.tree);
}

int BpfEngine::event_fd() const {
    return ring_buffer__epoll_fd(impl_->ring.get());
}

std::vector<tree::TreeEvent> BpfEngine::drain_events() {
    ring_buffer__consume(impl_->ring.get());
    return std::exchange(impl_->events, {});
}

// --- targets

Result<void> BpfEngine::configure(uint32_t target, const TargetSettings& settings,
                                  uint64_t armed_at_ns, const ProbeSets& sets) {
    if (target >= SB_MAX_TARGETS)
        return make_error(ErrorKind::kUnsupported, "more than " + std::to_string(SB_MAX_TARGETS) +
                                                       " functions match; narrow the targets");
    impl_->target_count = std::max(impl_->target_count, target + 1);
    write_target(impl_->targets[target], settings, on_host_clock(armed_at_ns), sets);
    return {};
}

void BpfEngine::arm(bool armed) {
    __atomic_store_n(&impl_->control().armed, armed ? 1u : 0u, __ATOMIC_RELEASE);
}
uint32_t* BpfEngine::armed_word() {
    return &impl_->control().armed;
}

Schedule* BpfEngine::schedule() {
    return impl_->schedule ? &impl_->schedule->schedule() : nullptr;
}

int BpfEngine::schedule_map() const {
    return bpf_map__fd(impl_->skeleton->maps.schedule);
}

// --- probes

namespace {

std::vector<UprobePlace> places_of(const Probe* probes, size_t count, uint32_t set) {
    std::vector<UprobePlace> places;
    for (size_t i = 0; i < count; ++i)
        places.push_back({probes[i].file_offset, SB_COOKIE(probes[i].kind, set, probes[i].target)});
    return places;
}

} // namespace

// One call for all; where the kernel refuses it, halves, until the refused probes stand alone.
// Kernels without such a call are asked for each.
void BpfEngine::Impl::attach_range(const std::string& path, const Probe* probes, size_t count,
                                   pid_t pid, uint32_t set, Links& links,
                                   std::vector<RefusedProbe>& refused) {
    const std::vector<UprobePlace> places = places_of(probes, count, set);
    const int program = bpf_program__fd(hit);
    if (!features.uprobe_multi) {
        const std::vector<int> errors = links.attach_perf(program, path, places, pid);
        for (size_t i = 0; i < count; ++i)
            if (errors[i] != 0) refused.push_back({probes[i], errors[i]});
        return;
    }
    const int error = links.attach_multi(program, path, places, pid);
    if (error == 0) return;
    if (count == 1 || concerns_all(error)) {
        for (size_t i = 0; i < count; ++i) refused.push_back({probes[i], error});
        return;
    }
    const size_t half = count / 2;
    attach_range(path, probes, half, pid, set, links, refused);
    attach_range(path, probes + half, count - half, pid, set, links, refused);
}

Result<Links> BpfEngine::Impl::attach(const std::string& path, const std::vector<Probe>& probes,
                                      pid_t pid, uint32_t set, std::vector<RefusedProbe>& refused) {
    Links links;
    if (probes.empty()) return links;
    std::vector<RefusedProbe> failed;
    attach_range(path, probes.data(), probes.size(), pid, set, links, failed);
    for (const RefusedProbe& one : failed) {
        const int error = one.error_number;
        // Half of the probes are not kept: a later try puts all of them in place.
        if (may_pass(error) || (failed.size() == probes.size() && concerns_all(error)))
            return errno_error("attach " + std::to_string(probes.size()) + " probes", error);
    }
    refused.insert(refused.end(), failed.begin(), failed.end());
    return links;
}

Result<Links> BpfEngine::attach_narrow(const std::string& path, const std::vector<Probe>& probes,
                                       pid_t pid, std::vector<RefusedProbe>& refused,
                                       uint32_t set) {
    return impl_->attach(path, probes, pid, set, refused);
}

std::vector<Links> BpfEngine::attach_narrow(const std::string& path,
                                            const std::vector<Probe>& probes,
                                            const std::vector<pid_t>& pids, uint32_t set) {
    if (!impl_->features.uprobe_multi_pid) return std::vector<Links>(pids.size());
    return Links::attach_multi_each(bpf_program__fd(impl_->hit), path,
                                    places_of(probes.data(), probes.size(), set), pids);
}

Result<Links> BpfEngine::attach_wide(const std::string& path, const std::vector<Probe>& probes,
                                     std::vector<RefusedProbe>& refused, uint32_t set) {
    return impl_->attach(path, probes, -1, set, refused);
}

// --- counters

Result<std::vector<Counts>> BpfEngine::read_counts() {
    auto result = read_tallies(bpf_map__fd(impl_->skeleton->maps.tallies));
    if (!result) return result;
    for (uint32_t target = 0; target < impl_->target_count; ++target) {
        const sb_counts& rest = impl_->overflow[target];
        if (rest.hits != 0)
            result->push_back({target, 0, rest.hits, rest.delays, nanoseconds(rest.requested_ns),
                               nanoseconds(rest.measured_ns)});
    }
    return result;
}

void BpfEngine::forget_counts(uint32_t target, uint32_t tgid) {
    const sb_counts_key key{tgid, target};
    bpf_map_delete_elem(bpf_map__fd(impl_->skeleton->maps.tallies), &key);
}

uint64_t BpfEngine::lost_events() const {
    return impl_->state().lost_events;
}
uint64_t BpfEngine::lost_members() const {
    return impl_->state().lost_members;
}

// --- calibration

nanoseconds BpfEngine::floor(elf::SiteKind kind) const {
    return impl_->floors.by_kind[static_cast<size_t>(kind)];
}

namespace {

// Calls for an estimate of how late interrupts make a spin: as long together as the period of the
// timer at 250 Hz, so that each batch has its share of ticks.
constexpr int kLateCalls = 4'000'000 / SB_LATE_DELAY_NS;
constexpr double kMaxLate = 300;

} // namespace

// One calibration site, probed in this process alone, which is a member for that time.
class BpfEngine::OwnProbe {
  public:
    OwnProbe(BpfEngine& engine, const CalibrationSite& site)
        : engine_(engine), site_(site), plain_(plain_cost(site)) {}
    OwnProbe(const OwnProbe&) = delete;
    OwnProbe& operator=(const OwnProbe&) = delete;
    ~OwnProbe() {
        engine_.arm(false);
        engine_.remove_member(engine_.own_tgid());
        engine_.forget_counts(kind(), engine_.own_tgid());
        engine_.impl_->targets[kind()] = sb_target{};
        engine_.impl_->used.push_back(std::move(links_));
    }

    Result<void> attach() {
        std::vector<RefusedProbe> refused;
        const uint64_t offset = own_file_offset(reinterpret_cast<const void*>(site_.function));
        auto links = engine_.attach_narrow("/proc/self/exe", {{kind(), offset, site_.kind}},
                                           getpid(), refused);
        if (!links) return std::move(links).error();
        if (!refused.empty())
            return errno_error("probe a function of this program", refused.front().error_number);
        links_ = std::move(*links);
        if (auto added = engine_.add_member(engine_.own_tgid(), 1); !added)
            return std::move(added).error();
        engine_.arm(true);
        (void)added_ns(nanoseconds(0), 10); // the first hits make the kernel optimise the site
        return {};
    }

    // What a call of the site takes longer than without the probe, in ns.
    double added_ns(nanoseconds delay, int calls) {
        TargetSettings settings;
        settings.delay = delay;
        if (auto done = engine_.configure(kind(), settings, 0, {}); !done) return 0;
        ns_per_call(site_.function, kWarmUpCalls);
        return ns_per_call(site_.function, calls) - plain_;
    }
    // The same, less the delay.
    double beyond(nanoseconds delay, int calls) {
        return added_ns(delay, calls) - static_cast<double>(delay.count());
    }
    uint32_t kind() const { return static_cast<uint32_t>(site_.kind); }

  private:
    BpfEngine& engine_;
    CalibrationSite site_;
    double plain_;
    Links links_;
};

Result<Floors> BpfEngine::calibrate() {
    sb_control& control = impl_->control();
    std::memset(control.outside_ns, 0, sizeof(control.outside_ns));
    control.late_ns = 0;
    struct Kind {
        std::unique_ptr<OwnProbe> probe;
        std::vector<double> floors{}, outsides{};
    };
    std::vector<Kind> kinds;
    for (const CalibrationSite& site : calibration_sites()) {
        kinds.push_back({std::make_unique<OwnProbe>(*this, site)});
        if (auto attached = kinds.back().probe->attach(); !attached)
            return std::move(attached).error().with_context("calibrate");
    }
    // In turn, so that what disturbs for some milliseconds spoils a part of each only.
    std::vector<double> late;
    for (int round = 0; round < kRounds; ++round) {
        for (Kind& kind : kinds)
            for (int batch = 0; batch < kBatches; ++batch) {
                kind.floors.push_back(kind.probe->beyond(nanoseconds(0), kCalls));
                kind.outsides.push_back(kind.probe->beyond(kShortDelay, kCalls));
            }
        const Kind& any = kinds.front(); // it is the same for all
        late.push_back(any.probe->beyond(nanoseconds(SB_LATE_DELAY_NS), kLateCalls));
    }
    const auto whole = [](double ns) { return static_cast<uint64_t>(std::max(0.0, ns)); };
    control.late_ns = whole(std::min(median(late) - undisturbed(kinds.front().outsides), kMaxLate));
    for (const Kind& kind : kinds) {
        const uint32_t index = kind.probe->kind();
        control.floor_ns[index] = whole(undisturbed(kind.floors));
        control.outside_ns[index] = whole(undisturbed(kind.outsides));
        impl_->floors.by_kind[index] = nanoseconds(control.floor_ns[index]);
    }
    kinds.clear();
    // Nothing calls these functions any more: the probes may go while the session begins.
    impl_->cleanup = std::async(
        std::launch::async,
        [used = std::exchange(impl_->used, {})]() mutable { Links::release_all(std::move(used)); });
    return impl_->floors;
}

Result<std::vector<CalibrationRow>> BpfEngine::measure_accuracy(
    const std::vector<nanoseconds>& delays) {
    // Its probes would still be under what is measured as a plain call.
    if (impl_->cleanup.valid()) impl_->cleanup.wait();
    std::vector<CalibrationRow> rows;
    for (const CalibrationSite& site : calibration_sites()) {
        OwnProbe probe(*this, site);
        if (auto attached = probe.attach(); !attached)
            return std::move(attached).error().with_context("measure the accuracy");
        rows.push_back(accuracy_of("bpf", site.kind, delays, [&](nanoseconds delay, int calls) {
            return probe.added_ns(delay, calls);
        }));
    }
    return rows;
}

} // namespace speedbump::engine
