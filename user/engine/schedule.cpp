// SPDX-License-Identifier: MIT
#include "engine/schedule.h"

#include <algorithm>
#include <utility>

namespace speedbump::engine {

namespace {

// More than a slice can have seen is no count but an attack; sums of these can't overflow. A sum of
// times may be larger: that of 10^6 hits in a slice of 50 ms is 2.5e13 ns.
constexpr uint64_t kMaxGrowth = uint64_t{1} << 40;
constexpr uint64_t kMaxTimeGrowth = uint64_t{1} << 50;
constexpr nanoseconds kMaxTime{int64_t{1} << 61}; // of all rings, of which there may be thousands

void store(__u64& to, uint64_t value) {
    __atomic_store_n(&to, value, __ATOMIC_RELEASE);
}

// What a counter, which only grows, has grown by.
template <typename Number>
uint64_t grown(const __u64& counter, Number& taken, uint64_t most = kMaxGrowth) {
    const uint64_t now = __atomic_load_n(&counter, __ATOMIC_RELAXED);
    const uint64_t before = std::exchange(taken, now);
    return now > before ? std::min(now - before, most) : 0;
}

// The same of one of times, added to a sum.
template <typename Number>
void add_grown(nanoseconds& sum, const __u64& counter, Number& taken) {
    sum += nanoseconds(static_cast<int64_t>(grown(counter, taken, kMaxTimeGrowth)));
    sum = std::min(sum, kMaxTime);
}

} // namespace

Schedule::Schedule(sb_schedule& shared, __u64* doses, uint32_t columns, size_t rings, Ring ring)
    : shared_(shared), doses_(doses), columns_(columns), ring_(std::move(ring)), taken_(rings) {
    shared_.columns = columns;
}

void Schedule::clear() {
    end();
    std::vector<SliceCounts> ignored(columns_);
    for (uint64_t slice = 0; slice < SB_RING_SLICES; ++slice) take(slice, ignored);
}

void Schedule::begin(uint64_t start_ns, nanoseconds slice) {
    end(); // in the order that sb_slice_at() goes by
    store(shared_.start_ns, start_ns);
    store(shared_.slice_ns, static_cast<uint64_t>(slice.count()));
    next_ = 0;
}

void Schedule::add(std::span<const nanoseconds> doses) {
    for (uint32_t column = 0; column < columns_; ++column) {
        const auto dose = column < doses.size() ? static_cast<uint64_t>(doses[column].count()) : 0;
        store(doses_[sb_cell(next_, column, columns_)], std::min<uint64_t>(dose, SB_MAX_DELAY_NS));
    }
    store(shared_.end_slice, ++next_);
}

void Schedule::end() {
    store(shared_.end_slice, 0);
}

void Schedule::take(uint64_t slice, std::span<SliceCounts> sums) {
    for (size_t index = 0; index < taken_.size(); ++index) {
        const sb_slice_counts* const ring = ring_(index);
        std::vector<sb_slice_counts>& taken = taken_[index];
        // They are taken into use in their order: there may be thousands, and one writer.
        if (ring == nullptr && taken.empty()) break;
        if (ring == nullptr) continue;
        taken.resize(size_t{SB_RING_SLICES} * columns_);
        for (uint32_t column = 0; column < columns_; ++column) {
            const size_t cell = sb_cell(slice, column, columns_);
            sums[column].hits += grown(ring[cell].hits, taken[cell].hits);
            sums[column].delays += grown(ring[cell].delays, taken[cell].delays);
            add_grown(sums[column].since, ring[cell].since_ns, taken[cell].since_ns);
            add_grown(sums[column].measured, ring[cell].measured_ns, taken[cell].measured_ns);
            add_grown(sums[column].undelayed, ring[cell].undelayed_ns, taken[cell].undelayed_ns);
        }
    }
}

void SliceUnits::clear() {
    for (size_t cell = 0; cell < taken_.size(); ++cell) {
        grown(counts_[cell].units, taken_[cell].units);
        grown(counts_[cell].since_ns, taken_[cell].since_ns);
    }
}

SliceProgress SliceUnits::take(uint64_t slice, uint32_t point) {
    SliceProgress sum;
    const size_t ring = size_t{SB_RING_SLICES} * points_;
    for (size_t cell = sb_cell(slice, point, points_); cell < taken_.size(); cell += ring) {
        sum.units += grown(counts_[cell].units, taken_[cell].units);
        add_grown(sum.since, counts_[cell].since_ns, taken_[cell].since_ns);
    }
    return sum;
}

} // namespace speedbump::engine
