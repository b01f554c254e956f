// SPDX-License-Identifier: MIT
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "../bpf/progress.h"
#include "engine/features.h"
#include "engine/libbpf.h"
#include "engine/map_memory.h"
#include "engine/schedule.h"
#include "experiment/device_ring.h"
#include "progress.skel.h"
#include "session/session.h"
#include "util/result.h"

namespace speedbump::experiment {

// kPermission where BPF programs can't be loaded, and the session does without.
Result<void> require_programs(const session::Session& session);

// The units by slice that programs count: their map of that (slice_units), for a schedule that is
// the session's.
class SliceCounter {
  public:
    // Before the programs are loaded: gives them the session's schedule, and room. An errno value.
    template <typename Skeleton>
    static int prepare(session::Session& session, Skeleton& programs, uint32_t points) {
        if (session.schedule() == nullptr) return 0; // one of their own, that never begins
        programs.rodata->sb_columns = session.schedule()->columns();
        programs.rodata->sb_last_ring = rings_for(points) - 1;
        return make_room(session, programs.maps.schedule, programs.maps.slice_units, points);
    }
    // Of loaded programs.
    static Result<SliceCounter> open(const bpf_map* counts, uint32_t points);

    void clear() { units_.clear(); }
    engine::SliceProgress take(uint64_t slice, uint32_t point) { return units_.take(slice, point); }

  private:
    SliceCounter(engine::MapMemory memory, uint32_t points);
    static uint32_t rings_for(uint32_t points);
    static int make_room(session::Session& session, bpf_map* schedule, bpf_map* counts,
                         uint32_t points);

    engine::MapMemory memory_;
    engine::SliceUnits units_;
};

// The programs of bpf/progress.bpf.c, shared by all points of an experiment. Not thread-safe.
class Programs {
  public:
    // `has_device`: some point is a kDevice one.
    static Result<std::shared_ptr<Programs>> load(session::Session& session, uint32_t points,
                                                  bool has_device);

    progress_bpf& skeleton() { return *skeleton_; }
    session::Session& session() { return session_; }
    const engine::Features& features() const { return features_; }
    // What probes of progress points lead to.
    int at_site() const;
    // The number of a new site; kUnsupported when there are too many.
    Result<uint32_t> add_site(const sb_progress_site& site);
    void change_site(uint32_t number, const sb_progress_site& site);

    // A per-CPU counter, or all of them from there on, summed up.
    uint64_t sum(bpf_map* map, uint32_t key) const;
    // As ProgressPoint's, of all points at once.
    bool clear_slices();
    // Units of a point in a slice of the session's schedule; nullopt when it has none.
    std::optional<engine::SliceProgress> take_slice(uint64_t slice, uint32_t point);
    // Calls that could not be timed. When the table of calls is full, as by calls that an exception
    // ended, the older half of it is dropped here.
    uint64_t lost_calls();

    // What happened at a kDevice point since it was asked last.
    std::vector<sb_device_event> take_device_events(uint32_t point) { return ring_->take(point); }
    // That did not fit, of all points so far.
    uint64_t lost_device_events() const;

    explicit Programs(session::Session& session)
        : session_(session), features_(session.features()) {}

  private:
    void drop_older_calls();

    session::Session& session_;
    const engine::Features& features_; // the session's
    engine::BpfSkeleton<progress_bpf> skeleton_;
    std::optional<SliceCounter> by_slice_; // after the programs
    std::unique_ptr<DeviceRing> ring_;
    uint32_t sites_ = 0;
    uint64_t lost_before_ = 0;
};

} // namespace speedbump::experiment
