// SPDX-License-Identifier: MIT
#pragma once

#include <cstdint>
#include <memory>

#include "abi.h"
#include "delay.skel.h"
#include "engine/map_memory.h"
#include "engine/schedule.h"
#include "util/result.h"

namespace speedbump::engine {

// The schedule of the BPF engine: its maps' memory.
class BpfSchedule {
  public:
    // Before the programs are loaded.
    static void make_room(delay_bpf& programs, uint32_t columns);
    // Of loaded programs.
    static Result<std::unique_ptr<BpfSchedule>> open(const delay_bpf& programs, uint32_t columns);

    Schedule& schedule() { return *schedule_; }

  private:
    MapMemory header_, doses_, counts_;
    uint32_t columns_ = 0;
    std::unique_ptr<Schedule> schedule_;
};

} // namespace speedbump::engine
