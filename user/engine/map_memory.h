// SPDX-License-Identifier: MIT
#pragma once

#include <bpf/libbpf.h>
#include <sys/mman.h>

#include <cerrno>
#include <cstddef>
#include <utility>

#include "util/result.h"

namespace speedbump::engine {

// The entries of a BPF array that can be mapped. Move-only.
class MapMemory {
  public:
    MapMemory() = default;
    MapMemory(MapMemory&& other) noexcept
        : memory_(std::exchange(other.memory_, nullptr)), bytes_(other.bytes_) {}
    MapMemory& operator=(MapMemory&& other) noexcept {
        std::swap(memory_, other.memory_);
        std::swap(bytes_, other.bytes_);
        return *this;
    }
    ~MapMemory() {
        if (memory_ != nullptr) munmap(memory_, bytes_);
    }

    // `what` is for the error. Children do not get it: the kernel would copy the entries of its
    // pages (of the table of targets and the counters 1,280) for every one that makes probes.
    static Result<MapMemory> of(const bpf_map* map, int protection, const char* what) {
        MapMemory mapped;
        mapped.bytes_ = size_t{bpf_map__value_size(map)} * bpf_map__max_entries(map);
        void* const memory =
            mmap(nullptr, mapped.bytes_, protection, MAP_SHARED, bpf_map__fd(map), 0);
        if (memory == MAP_FAILED) return errno_error(what, errno);
        mapped.memory_ = memory;
        madvise(memory, mapped.bytes_, MADV_DONTFORK);
        return mapped;
    }

    template <typename Entry>
    Entry* as() const {
        return static_cast<Entry*>(memory_);
    }

  private:
    void* memory_ = nullptr;
    size_t bytes_ = 0;
};

} // namespace speedbump::engine
