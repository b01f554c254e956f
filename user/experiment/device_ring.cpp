// SPDX-License-Identifier: MIT
#include "experiment/device_ring.h"

#include <bpf/libbpf.h>

#include <cerrno>
#include <cstring>

namespace speedbump::experiment {

namespace {

// More than the ring holds: a target that goes on filling it does not keep its reader for ever.
constexpr size_t kAtOnce = SB_DEVICE_RING_BYTES / sizeof(sb_device_event);

} // namespace

Result<std::unique_ptr<DeviceRing>> DeviceRing::open(const bpf_map* events) {
    std::unique_ptr<DeviceRing> ring(new DeviceRing());
    ring->ring_.reset(ring_buffer__new(bpf_map__fd(events), on_event, ring.get(), nullptr));
    if (!ring->ring_) return errno_error("open the ring of device events", errno);
    return ring;
}

int DeviceRing::on_event(void* self, void* data, size_t size) {
    auto& ring = *static_cast<DeviceRing*>(self);
    sb_device_event event;
    if (size < sizeof(event)) return 0;
    std::memcpy(&event, data, sizeof(event));
    ring.events_[event.progress].push_back(event);
    return --ring.left_ > 0 ? 0 : -EAGAIN; // which ends ring_buffer__consume()
}

std::vector<sb_device_event> DeviceRing::take(uint32_t progress) {
    left_ = kAtOnce;
    ring_buffer__consume(ring_.get());
    return std::exchange(events_[progress], {});
}

} // namespace speedbump::experiment
