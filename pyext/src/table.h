// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <cstdint>

#include "abi.h"
#include "util/result.h"

namespace speedbump::python {

// A mapping of the table of abi.h. Move-only; unmaps on destruction. Forked children keep it. Other
// processes write to the counters: where things lie is kept here, and read nowhere else.
class Table {
  public:
    Table() = default;
    Table(Table&& other) noexcept;
    Table& operator=(Table&& other) noexcept;
    Table(const Table&) = delete;
    Table& operator=(const Table&) = delete;
    ~Table();

    // A table of this process and its future children only, armed, without an owner.
    static Result<Table> make_private(uint32_t target_count, uint32_t slot_count);
    // Maps a loader's table by its two descriptors (which stay the caller's), the settings for
    // reading only; refuses one that is not sealed, or not of this version.
    static Result<Table> map(int settings_fd, int counters_fd);

    bool valid() const { return settings_.memory != nullptr; }
    const sb_settings* settings() const { return static_cast<sb_settings*>(settings_.memory); }
    const sb_target* targets() const { return reinterpret_cast<const sb_target*>(settings() + 1); }
    // Of a private table only: a loader's is not writable.
    sb_target* own_targets() const { return const_cast<sb_target*>(targets()); }
    sb_counters* counters() const { return static_cast<sb_counters*>(counters_.memory); }
    sb_turn* turns() const { return reinterpret_cast<sb_turn*>(counters() + 1); }
    // nullptr when there are no columns; their delays lie behind it.
    const sb_schedule* schedule() const;
    uint32_t columns() const { return columns_; }
    uint32_t target_count() const { return target_count_; }
    uint32_t slot_count() const { return slot_count_; }
    sb_slot* slot(uint32_t index) const;
    static sb_counts* counts_of(sb_slot* slot) { return reinterpret_cast<sb_counts*>(slot + 1); }

    // A slot for one writer of a process (SB_WRITER()): one that another writer of it gave up, or a
    // free one, or slot 0, which is shared and written with atomics. Any thread.
    sb_slot* claim(uint64_t writer) const;

  private:
    struct Mapping {
        void* memory = nullptr;
        size_t bytes = 0;
    };
    // Takes what it has mapped so far along when it fails.
    Result<void> map_parts(int flags, int settings_fd, int counters_fd, int settings_protection);
    void unmap();

    Mapping settings_;
    Mapping counters_;
    uint32_t target_count_ = 0;
    uint32_t slot_count_ = 0;
    uint32_t columns_ = 0;
};

// Whether the session is over for good: closed, or its owner died.
inline bool is_over(const sb_settings& settings) {
    return __atomic_load_n(&settings.closed, __ATOMIC_RELAXED) != 0 ||
           (__atomic_load_n(&settings.owner, __ATOMIC_RELAXED) & SB_TABLE_OWNER_DIED) != 0;
}

// `as`: SB_ARMED() of the grouping in place here.
inline bool is_armed(const sb_settings& settings, uint32_t as) {
    return __atomic_load_n(&settings.armed, __ATOMIC_RELAXED) == as && !is_over(settings);
}

} // namespace speedbump::python
