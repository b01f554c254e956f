// SPDX-License-Identifier: MIT
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "../bpf/progress.h"
#include "engine/features.h"
#include "engine/libbpf.h"
#include "progress.skel.h"
#include "session/session.h"
#include "util/result.h"

namespace speedbump::experiment {

// The programs of bpf/progress.bpf.c, shared by all points of an experiment. Not thread-safe.
class Programs {
  public:
    static Result<std::shared_ptr<Programs>> load(session::Session& session);

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
    // Calls that could not be timed. When the table of calls is full, as by calls that an exception
    // ended, the older half of it is dropped here.
    uint64_t lost_calls();

    explicit Programs(session::Session& session)
        : session_(session), features_(session.features()) {}

  private:
    void drop_older_calls();

    session::Session& session_;
    const engine::Features& features_; // the session's
    engine::BpfSkeleton<progress_bpf> skeleton_;
    uint32_t sites_ = 0;
    uint64_t lost_before_ = 0;
};

} // namespace speedbump::experiment
