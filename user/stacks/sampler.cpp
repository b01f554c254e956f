// SPDX-License-Identifier: MIT
#include "stacks/sampler.h"

#include <bpf/bpf.h>
#include <bpf/libbpf.h>
#include <linux/perf_event.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <map>
#include <set>

#include "engine/event_pulse.h"
#include "engine/iterator.h"
#include "engine/libbpf.h"
#include "stacks.skel.h"
#include "util/clock.h"
#include "util/fd.h"

namespace speedbump::stacks {

namespace {

using engine::BpfLink;
using engine::BpfRing;
using engine::BpfSkeleton;
using engine::EventPulse;
using engine::kEventCheckPeriod;

Fd open_clock(int cpu, std::chrono::nanoseconds period) {
    perf_event_attr attributes{};
    attributes.size = sizeof(attributes);
    attributes.type = PERF_TYPE_SOFTWARE;
    attributes.config = PERF_COUNT_SW_CPU_CLOCK;
    attributes.sample_period = static_cast<uint64_t>(period.count());
    attributes.read_format = EventPulse::kReadFormat;
    return Fd(static_cast<int>(
        syscall(SYS_perf_event_open, &attributes, -1, cpu, -1, PERF_FLAG_FD_CLOEXEC)));
}

// The clock of one CPU; no link: it is offline.
struct CpuClock {
    BpfLink link;
    int fd = -1; // the link's
    EventPulse pulse;
};

} // namespace

struct StackSampler::Impl {
    BpfSkeleton<stacks_bpf> skeleton;
    std::chrono::nanoseconds period{};
    std::vector<CpuClock> clocks; // by CPU; after the skeleton, so that links die first
    Clock::time_point checked = Clock::now();
    uint64_t gaps = 0;
    std::map<pid_t, BpfLink> iterators;
    // Of each process the threads that the programs' maps have. An id may be used again, by another
    // process, before the first one's list says so: what was told last counts.
    std::map<pid_t, std::set<pid_t>> python_threads;
    std::map<pid_t, pid_t> python_process; // of a thread
    std::map<pid_t, std::set<pid_t>> known;
    BpfRing ring;
    const std::function<void(const ThreadSample&)>* take = nullptr;
    std::chrono::nanoseconds drain_end{}; // of this thread's time on a CPU

    static int on_sample(void* self, void* data, size_t size);
    static Result<std::vector<sb_thread>> iterate(const bpf_link& link) {
        return engine::read_iterator<sb_thread>(link, "the iterator of threads");
    }
    Result<BpfLink> make_iterator(pid_t pid) const;
    // That of a process, which is made when it is first asked for.
    Result<const bpf_link*> iterator(pid_t pid);
    // False: the CPU is offline.
    Result<bool> start_clock(int cpu);
    void mend_clocks();
};

int StackSampler::Impl::on_sample(void* self, void* data, size_t size) {
    const auto* head = static_cast<const sb_stack_sample*>(data);
    if (size < sizeof(*head)) return 0;
    const char* stack = reinterpret_cast<const char*>(head + 1); // NOLINT: abi.h
    const size_t frames_bytes = size_t{head->python_frames} * sizeof(sb_python_frame);
    if (sizeof(*head) + head->stack_bytes + frames_bytes > size) return 0;
    // NOLINTNEXTLINE: abi.h; stack_bytes is a multiple of 8
    const auto* frames = reinterpret_cast<const sb_python_frame*>(stack + head->stack_bytes);
    auto* impl = static_cast<Impl*>(self);
    (*impl->take)({*head, {stack, head->stack_bytes}, {frames, head->python_frames}});
    return thread_cpu_time() < impl->drain_end ? 0 : -EAGAIN; // which ends ring_buffer__consume()
}

Result<BpfLink> StackSampler::Impl::make_iterator(pid_t pid) const {
    bpf_iter_link_info info{};
    info.task.pid = static_cast<uint32_t>(pid);
    DECLARE_LIBBPF_OPTS(bpf_iter_attach_opts, options, .link_info = &info,
                        .link_info_len = sizeof(info));
    BpfLink link(bpf_program__attach_iter(skeleton->progs.sb_threads, &options));
    if (!link) return errno_error("attach the iterator of threads", errno);
    return link;
}

Result<const bpf_link*> StackSampler::Impl::iterator(pid_t pid) {
    BpfLink& link = iterators[pid];
    if (!link) {
        auto made = make_iterator(pid);
        if (!made) {
            iterators.erase(pid);
            return std::move(made).error();
        }
        link = std::move(*made);
    }
    return link.get();
}

Result<bool> StackSampler::Impl::start_clock(int cpu) {
    Fd clock = open_clock(cpu, period);
    if (!clock.valid() && errno == ENODEV) return false;
    if (!clock.valid()) return errno_error("open the clock of a CPU (perf_event_open)", errno);
    bpf_link* link = bpf_program__attach_perf_event(skeleton->progs.sb_running, clock.get());
    if (link == nullptr) return errno_error("attach to the clock of a CPU", errno);
    clocks[static_cast<size_t>(cpu)] = {BpfLink(link), clock.release(), {}};
    return true;
}

// Starts the clocks of CPUs that went or came again.
void StackSampler::Impl::mend_clocks() {
    if (Clock::now() - checked < kEventCheckPeriod) return;
    checked = Clock::now();
    for (int cpu = 0; cpu < static_cast<int>(clocks.size()); ++cpu) {
        CpuClock& clock = clocks[static_cast<size_t>(cpu)];
        if (clock.link && !clock.pulse.has_stopped(clock.fd)) continue;
        clock = {};
        // One that can't be started is tried again the next time, and is a gap as long.
        if (auto started = start_clock(cpu); !started || *started) ++gaps;
    }
}

StackSampler::StackSampler(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
StackSampler::~StackSampler() = default;

Result<std::unique_ptr<StackSampler>> StackSampler::open(std::chrono::nanoseconds period) {
    auto impl = std::make_unique<Impl>();
    impl->skeleton.reset(stacks_bpf__open());
    if (!impl->skeleton) return errno_error("open the sampling programs", errno);
    stacks_bpf* skeleton = impl->skeleton.get();
    const int cpus = libbpf_num_possible_cpus();
    if (cpus < 1) return errno_error("count the CPUs", -cpus);
    bpf_map__set_max_entries(skeleton->maps.scratches, static_cast<uint32_t>(cpus) + 1);
    skeleton->rodata->still_scratch = static_cast<uint32_t>(cpus);
    if (const int error = stacks_bpf__load(skeleton); error != 0)
        return errno_error("load the sampling programs", -error);
    impl->ring.reset(ring_buffer__new(bpf_map__fd(skeleton->maps.samples), Impl::on_sample,
                                      impl.get(), nullptr));
    if (!impl->ring) return errno_error("open the ring buffer of samples", errno);
    // It finds out how deep in PID namespaces this program is.
    auto own = impl->make_iterator(getpid());
    if (!own) return std::move(own).error();
    if (auto seen = Impl::iterate(**own); !seen) return std::move(seen).error();
    impl->period = period;
    impl->clocks.resize(static_cast<size_t>(cpus));
    for (int cpu = 0; cpu < cpus; ++cpu)
        if (auto started = impl->start_clock(cpu); !started) return std::move(started).error();
    return std::unique_ptr<StackSampler>(new StackSampler(std::move(impl)));
}

Result<void> StackSampler::add_process(pid_t pid, const sb_python_layout* python) {
    if (auto made = impl_->iterator(pid); !made) return std::move(made).error();
    const auto key = static_cast<uint32_t>(pid);
    sb_sampled_process process{};
    if (python != nullptr) process.python = *python;
    const int error =
        bpf_map_update_elem(bpf_map__fd(impl_->skeleton->maps.processes), &key, &process, BPF_ANY);
    if (error != 0) return errno_error("add a process to the sampled ones", -error);
    return {};
}

void StackSampler::remove_process(pid_t pid) {
    const auto key = static_cast<uint32_t>(pid);
    bpf_map_delete_elem(bpf_map__fd(impl_->skeleton->maps.processes), &key);
    set_thread_states(pid, {});
    impl_->python_threads.erase(pid);
    const int known = bpf_map__fd(impl_->skeleton->maps.known);
    for (const pid_t tid : impl_->known[pid]) bpf_map_delete_elem(known, &tid);
    impl_->known.erase(pid);
    impl_->iterators.erase(pid);
}

void StackSampler::set_known(pid_t pid, pid_t tid, const sb_still& still) {
    // Without room for it the stack is handed over again.
    bpf_map_update_elem(bpf_map__fd(impl_->skeleton->maps.known), &tid, &still, BPF_ANY);
    impl_->known[pid].insert(tid);
}

void StackSampler::forget(pid_t pid, pid_t tid) {
    bpf_map_delete_elem(bpf_map__fd(impl_->skeleton->maps.known), &tid);
    impl_->known[pid].erase(tid);
}

void StackSampler::set_thread_states(pid_t pid,
                                     const std::vector<std::pair<pid_t, sb_thread_state>>& states) {
    const int map = bpf_map__fd(impl_->skeleton->maps.thread_states);
    std::set<pid_t> now;
    for (const auto& [tid, state] : states) {
        const auto key = static_cast<uint32_t>(tid);
        bpf_map_update_elem(map, &key, &state, BPF_ANY);
        impl_->python_process[tid] = pid;
        now.insert(tid);
    }
    for (const pid_t tid : impl_->python_threads[pid]) {
        const auto key = static_cast<uint32_t>(tid);
        const auto told_by = impl_->python_process.find(tid);
        if (now.contains(tid) || told_by == impl_->python_process.end() || told_by->second != pid)
            continue;
        bpf_map_delete_elem(map, &key);
        impl_->python_process.erase(told_by);
    }
    impl_->python_threads[pid] = std::move(now);
}

void StackSampler::drain(const std::function<void(const ThreadSample&)>& take,
                         std::chrono::nanoseconds limit) {
    impl_->take = &take;
    impl_->drain_end = thread_cpu_time() + limit;
    ring_buffer__consume(impl_->ring.get());
    impl_->take = nullptr;
    impl_->mend_clocks();
}

uint64_t StackSampler::lost(pid_t pid) const {
    const auto key = static_cast<uint32_t>(pid);
    sb_sampled_process process{};
    bpf_map_lookup_elem(bpf_map__fd(impl_->skeleton->maps.processes), &key, &process);
    return process.lost;
}

uint64_t StackSampler::gaps() const {
    return impl_->gaps;
}

Result<std::vector<sb_thread>> StackSampler::threads(pid_t pid) {
    const auto iterator = impl_->iterator(pid);
    if (!iterator) return iterator.error();
    return Impl::iterate(**iterator);
}

} // namespace speedbump::stacks
