// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <cstdint>

#include "abi.h"
#include "util/result.h"

namespace speedbump::python {

// A mapping of the table of abi.h. Move-only; unmaps on destruction. Forked children keep it.
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
    // Maps the table behind a descriptor (which stays the caller's) and checks all of its header.
    static Result<Table> map(int fd);

    bool valid() const { return header_ != nullptr; }
    sb_table_header* header() const { return header_; }
    sb_target* targets() const { return targets_; }
    sb_turn* turns() const { return turns_; }
    uint32_t target_count() const { return header_->target_count; }
    uint32_t slot_count() const { return header_->slot_count; }
    sb_slot* slot(uint32_t index) const;
    static sb_counts* counts_of(sb_slot* slot) { return reinterpret_cast<sb_counts*>(slot + 1); }

    // A slot for one writer of process `tgid`: one that another writer of it gave up, or a free
    // one, or slot 0, which is shared and written with atomics. Any thread.
    sb_slot* claim(uint32_t tgid) const;

  private:
    void set(void* memory);
    void unmap();

    sb_table_header* header_ = nullptr;
    sb_target* targets_ = nullptr;
    sb_turn* turns_ = nullptr;
    size_t bytes_ = 0;
};

// Whether the session is over for good: closed, or its owner died.
inline bool is_over(const sb_table_header& header) {
    return __atomic_load_n(&header.closed, __ATOMIC_RELAXED) != 0 ||
           (__atomic_load_n(&header.owner[0], __ATOMIC_RELAXED) & SB_TABLE_OWNER_DIED) != 0;
}

inline bool is_armed(const sb_table_header& header) {
    return __atomic_load_n(&header.armed, __ATOMIC_RELAXED) != 0 && !is_over(header);
}

} // namespace speedbump::python
