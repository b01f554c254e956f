// SPDX-License-Identifier: MIT
#include "experiment/progress_programs.h"

#include <bpf/bpf.h>
#include <bpf/libbpf.h>

#include <algorithm>

#include "engine/rings.h"

namespace speedbump::experiment {

namespace {

constexpr uint32_t kFewCalls = 64; // SPEEDBUMP_WITHOUT=tallies

struct Call {
    unsigned char key[24]; // sb_call
    uint64_t start_ns = 0;
};

} // namespace

Result<void> require_programs(const session::Session& session) {
    if (session.tree_map() >= 0) return {};
    return make_error(ErrorKind::kPermission,
                      "it is counted by BPF programs, for which there are no rights here")
        .with_hint(
            "run as root (sudo), or count calls of a function: --progress native:... or "
            "python:...");
}

SliceCounter::SliceCounter(engine::MapMemory memory, uint32_t points)
    : memory_(std::move(memory)),
      units_(memory_.as<const sb_slice_units>(), rings_for(points), points) {}

uint32_t SliceCounter::rings_for(uint32_t points) {
    return engine::rings_for(static_cast<uint64_t>(libbpf_num_possible_cpus()),
                             SB_RING_SLICES * uint64_t{points} * sizeof(sb_slice_units));
}

int SliceCounter::make_room(session::Session& session, bpf_map* schedule, bpf_map* counts,
                            uint32_t points) {
    const int error = bpf_map__set_max_entries(counts, rings_for(points) * SB_RING_SLICES * points);
    return error != 0 ? error : bpf_map__reuse_fd(schedule, session.schedule_map());
}

Result<SliceCounter> SliceCounter::open(const bpf_map* counts, uint32_t points) {
    auto memory = engine::MapMemory::of(counts, PROT_READ, "map the units of progress");
    if (!memory) return std::move(memory).error();
    return SliceCounter(std::move(*memory), points);
}

Result<std::shared_ptr<Programs>> Programs::load(session::Session& session, uint32_t points,
                                                 bool has_device) {
    if (auto able = require_programs(session); !able) return std::move(able).error();
    auto programs = std::make_shared<Programs>(session);
    programs->skeleton_.reset(progress_bpf__open());
    if (!programs->skeleton_) return errno_error("open the counting programs", errno);
    progress_bpf* skeleton = programs->skeleton_.get();
    const engine::Features& features = programs->features_;
    bpf_program__set_autoload(
        features.uprobe_multi ? skeleton->progs.sb_at_site_multi : skeleton->progs.sb_at_site_perf,
        true);
    if (features.few_tallies) bpf_map__set_max_entries(skeleton->maps.calls, kFewCalls);
    skeleton->rodata->sb_points = points;
    int error = bpf_map__reuse_fd(skeleton->maps.tree, session.tree_map());
    if (error == 0) error = SliceCounter::prepare(session, *skeleton, points);
    if (error == 0 && has_device)
        error = bpf_map__set_max_entries(skeleton->maps.device_events, SB_DEVICE_RING_BYTES);
    if (error == 0) error = progress_bpf__load(skeleton);
    if (error != 0) return errno_error("load the counting programs", -error);
    if (session.schedule() != nullptr) {
        auto by_slice = SliceCounter::open(skeleton->maps.slice_units, points);
        if (!by_slice) return std::move(by_slice).error();
        programs->by_slice_.emplace(std::move(*by_slice));
    }
    if (has_device) {
        auto ring = DeviceRing::open(skeleton->maps.device_events);
        if (!ring) return std::move(ring).error();
        programs->ring_ = std::move(*ring);
    }
    return programs;
}

uint64_t Programs::lost_device_events() const {
    return __atomic_load_n(&skeleton_->bss->lost_device_events, __ATOMIC_RELAXED);
}

int Programs::at_site() const {
    return bpf_program__fd(features_.uprobe_multi ? skeleton_->progs.sb_at_site_multi
                                                  : skeleton_->progs.sb_at_site_perf);
}

Result<uint32_t> Programs::add_site(const sb_progress_site& site) {
    if (sites_ == SB_MAX_PROGRESS_SITES)
        return make_error(ErrorKind::kUnsupported,
                          "more than " + std::to_string(SB_MAX_PROGRESS_SITES) + " probes");
    change_site(sites_, site);
    return sites_++;
}

void Programs::change_site(uint32_t number, const sb_progress_site& site) {
    // An array's element that exists can always be written.
    (void)bpf_map_update_elem(bpf_map__fd(skeleton_->maps.sites), &number, &site, BPF_ANY);
}

uint64_t Programs::sum(bpf_map* map, uint32_t key) const {
    std::vector<uint64_t> values(static_cast<size_t>(libbpf_num_possible_cpus()));
    if (bpf_map_lookup_elem(bpf_map__fd(map), &key, values.data()) != 0) return 0;
    uint64_t total = 0;
    for (const uint64_t value : values) total += value;
    return total;
}

// Points share the counts: what is cleared for one is cleared for all, before any of it is taken.
bool Programs::clear_slices() {
    if (by_slice_) by_slice_->clear();
    return by_slice_.has_value();
}

std::optional<engine::SliceProgress> Programs::take_slice(uint64_t slice, uint32_t point) {
    if (!by_slice_) return std::nullopt;
    return by_slice_->take(slice, point);
}

uint64_t Programs::lost_calls() {
    const uint64_t lost = skeleton_->bss->lost_calls;
    if (lost != std::exchange(lost_before_, lost)) drop_older_calls();
    return lost;
}

void Programs::drop_older_calls() {
    const int map = bpf_map__fd(skeleton_->maps.calls);
    std::vector<Call> all;
    Call call;
    const void* previous = nullptr;
    unsigned char at[sizeof(call.key)];
    // Calls end meanwhile: then the walk begins anew, and goes on no longer than the map is large.
    for (uint32_t i = 0; i < SB_MAX_TIMED_CALLS; ++i) {
        if (bpf_map_get_next_key(map, previous, call.key) != 0) break;
        if (bpf_map_lookup_elem(map, call.key, &call.start_ns) == 0) all.push_back(call);
        std::copy(std::begin(call.key), std::end(call.key), at);
        previous = at;
    }
    if (all.size() < bpf_map__max_entries(skeleton_->maps.calls) / 2) return; // it was not full
    const auto middle = all.begin() + static_cast<ptrdiff_t>(all.size() / 2);
    std::nth_element(all.begin(), middle, all.end(),
                     [](const Call& a, const Call& b) { return a.start_ns < b.start_ns; });
    for (auto one = all.begin(); one != middle; ++one) bpf_map_delete_elem(map, one->key);
}

} // namespace speedbump::experiment
