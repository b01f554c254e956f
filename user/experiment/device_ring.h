// SPDX-License-Identifier: MIT
#pragma once

#include <map>
#include <memory>
#include <vector>

#include "../bpf/progress.h"
#include "engine/libbpf.h"
#include "util/result.h"

namespace speedbump::experiment {

// The events of bpf/progress.bpf.c, sorted by the progress points that share them. Not thread-safe.
class DeviceRing {
  public:
    // Of the loaded programs' ring. The object stays where it is.
    static Result<std::unique_ptr<DeviceRing>> open(const bpf_map* events);
    DeviceRing(const DeviceRing&) = delete;
    DeviceRing& operator=(const DeviceRing&) = delete;

    // What has happened at one point since it was asked last, in its order.
    std::vector<sb_device_event> take(uint32_t progress);

  private:
    DeviceRing() = default;
    static int on_event(void* self, void* data, size_t size);

    engine::BpfRing ring_;
    std::map<uint32_t, std::vector<sb_device_event>> events_;
    size_t left_ = 0; // that may be taken at once
};

} // namespace speedbump::experiment
