// SPDX-License-Identifier: MIT
#include "engine/bpf/bpf_schedule.h"

#include <bpf/libbpf.h>

#include <vector>

#include "engine/rings.h"

namespace speedbump::engine {

void BpfSchedule::make_room(delay_bpf& programs, uint32_t columns) {
    programs.rodata->sb_columns = columns;
    if (columns == 0) return;
    const uint32_t cells = SB_RING_SLICES * columns;
    const uint32_t rings = rings_for(static_cast<uint64_t>(libbpf_num_possible_cpus()),
                                     cells * sizeof(sb_slice_counts));
    programs.rodata->sb_last_ring = rings - 1;
    bpf_map__set_max_entries(programs.maps.doses, cells);
    bpf_map__set_max_entries(programs.maps.slice_counts, rings * cells);
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
    const size_t cells = size_t{SB_RING_SLICES} * columns;
    self->schedule_ = std::make_unique<Schedule>(
        *self->header_.as<sb_schedule>(), self->doses_.as<__u64>(), columns,
        bpf_map__max_entries(programs.maps.slice_counts) / cells,
        [counts, cells](size_t ring) { return counts + ring * cells; });
    return self;
}

} // namespace speedbump::engine
