// SPDX-License-Identifier: MIT
#include "engine/bpf/bpf_schedule.h"

#include <bpf/libbpf.h>

#include <vector>

namespace speedbump::engine {

namespace {

uint32_t cpus() {
    return static_cast<uint32_t>(libbpf_num_possible_cpus());
}

} // namespace

void BpfSchedule::make_room(delay_bpf& programs, uint32_t columns) {
    programs.rodata->sb_columns = columns;
    if (columns == 0) return;
    bpf_map__set_max_entries(programs.maps.doses, SB_RING_SLICES * columns);
    bpf_map__set_max_entries(programs.maps.slice_counts, cpus() * SB_RING_SLICES * columns);
}

Result<std::unique_ptr<BpfSchedule>> BpfSchedule::open(const delay_bpf& programs,
                                                       uint32_t columns) {
    auto self = std::make_unique<BpfSchedule>();
    self->columns_ = columns;
    const auto map = [](const bpf_map* of, int protection, MapMemory& to) -> Result<void> {
        auto mapped = MapMemory::of(of, protection, "map the schedule");
        if (!mapped) return std::move(mapped).error();
        to = std::move(*mapped);
        return {};
    };
    const int writable = PROT_READ | PROT_WRITE;
    if (auto done = map(programs.maps.schedule, writable, self->header_); !done)
        return std::move(done).error();
    if (auto done = map(programs.maps.doses, writable, self->doses_); !done)
        return std::move(done).error();
    if (auto done = map(programs.maps.slice_counts, PROT_READ, self->counts_); !done)
        return std::move(done).error();
    const auto* const counts = self->counts_.as<const sb_slice_counts>();
    self->schedule_ = std::make_unique<Schedule>(
        *self->header_.as<sb_schedule>(), self->doses_.as<__u64>(), columns, cpus(),
        [counts, ring = size_t{SB_RING_SLICES} * columns](size_t cpu) {
            return counts + cpu * ring;
        });
    return self;
}

} // namespace speedbump::engine
