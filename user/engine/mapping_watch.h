// SPDX-License-Identifier: MIT
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "tree/process_tree.h"
#include "util/result.h"

namespace speedbump::engine {

// Hears of every new executable mapping (mmap, exec, mprotect) through the kernel's own side-band
// records (perf_event_open(2): PERF_RECORD_MMAP2 of a dummy software event on each CPU): no process
// is polled, and no function call or system call of anyone gets slower.
//
// The kernel also tells of every fork and exit to whoever asks for mappings. A wake-up for each
// would make a fork slower by a tenth, so in a storm of them the watch goes over, as network
// drivers do, to records that wake nobody: moderated() says that drain() has to be called by the
// clock.
class MappingWatch final : public tree::MappingRecords {
  public:
    // Needs CAP_PERFMON.
    static Result<std::unique_ptr<MappingWatch>> open();
    ~MappingWatch() override;

    int fd() const override;
    bool moderated() const override;
    // `lost` is set when records were dropped, or those of a CPU that went offline or came online
    // may be missing. Such CPUs are watched again from then on, which wants a call every second or
    // so.
    std::vector<tree::NewMapping> drain(bool& lost) override;

  private:
    struct Impl;
    struct Events;
    explicit MappingWatch(std::unique_ptr<Impl> impl);
    std::unique_ptr<Impl> impl_;
};

} // namespace speedbump::engine
