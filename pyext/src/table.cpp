// SPDX-License-Identifier: MIT
#include "table.h"

#include <sys/mman.h>
#include <sys/stat.h>

#include <utility>

namespace speedbump::python {
namespace {

uint64_t round_up(uint64_t value) {
    return (value + 63) & ~uint64_t{63};
}

uint64_t slot_bytes(uint64_t target_count) {
    return round_up(sizeof(sb_slot) + target_count * sizeof(sb_counts));
}

// The offsets and the size that belong to the counts in the header.
void lay_out(sb_table_header& header) {
    header.slot_bytes = static_cast<uint32_t>(slot_bytes(header.target_count));
    header.targets_offset = round_up(sizeof(sb_table_header));
    header.turns_offset =
        round_up(header.targets_offset + uint64_t{header.target_count} * sizeof(sb_target));
    header.slots_offset = header.turns_offset + uint64_t{header.target_count} * sizeof(sb_turn);
    header.bytes = header.slots_offset + uint64_t{header.slot_count} * header.slot_bytes;
}

bool fits(uint64_t offset, uint64_t count, uint64_t size, uint64_t bytes) {
    return offset % 64 == 0 && offset <= bytes && count * size <= bytes - offset;
}

bool is_sound(const sb_table_header& header, uint64_t bytes) {
    return header.magic == SB_TABLE_MAGIC && header.version == SB_TABLE_VERSION &&
           header.bytes <= bytes && header.target_count <= SB_MAX_TARGETS &&
           header.slot_count >= 1 && header.slot_bytes % 64 == 0 &&
           header.slot_bytes >= slot_bytes(header.target_count) &&
           header.targets_offset >= sizeof(sb_table_header) &&
           fits(header.targets_offset, header.target_count, sizeof(sb_target), header.bytes) &&
           fits(header.turns_offset, header.target_count, sizeof(sb_turn), header.bytes) &&
           fits(header.slots_offset, header.slot_count, header.slot_bytes, header.bytes);
}

} // namespace

Table::Table(Table&& other) noexcept {
    *this = std::move(other);
}

Table& Table::operator=(Table&& other) noexcept {
    if (this != &other) {
        unmap();
        header_ = std::exchange(other.header_, nullptr);
        targets_ = std::exchange(other.targets_, nullptr);
        turns_ = std::exchange(other.turns_, nullptr);
        bytes_ = std::exchange(other.bytes_, 0);
    }
    return *this;
}

Table::~Table() {
    unmap();
}

void Table::unmap() {
    if (header_ != nullptr) ::munmap(header_, bytes_);
    header_ = nullptr;
}

void Table::set(void* memory) {
    header_ = static_cast<sb_table_header*>(memory);
    auto* bytes = static_cast<std::byte*>(memory);
    targets_ = reinterpret_cast<sb_target*>(bytes + header_->targets_offset);
    turns_ = reinterpret_cast<sb_turn*>(bytes + header_->turns_offset);
}

Result<Table> Table::make_private(uint32_t target_count, uint32_t slot_count) {
    sb_table_header header{};
    header.magic = SB_TABLE_MAGIC;
    header.version = SB_TABLE_VERSION;
    header.armed = 1;
    header.target_count = target_count;
    header.slot_count = slot_count;
    lay_out(header);
    if (target_count > SB_MAX_TARGETS || header.bytes > SB_TABLE_MAX_BYTES) {
        return make_error(ErrorKind::kInvalid, "too many targets for one table");
    }
    void* memory = ::mmap(nullptr, header.bytes, PROT_READ | PROT_WRITE,
                          MAP_SHARED | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory == MAP_FAILED) return errno_error("mmap of the table", errno);
    Table table;
    table.bytes_ = header.bytes;
    *static_cast<sb_table_header*>(memory) = header;
    table.set(memory);
    return table;
}

Result<Table> Table::map(int fd) {
    struct stat status {};
    if (::fstat(fd, &status) != 0) return errno_error("fstat of the table", errno);
    const auto size = static_cast<uint64_t>(status.st_size);
    if (size < sizeof(sb_table_header) || size > SB_TABLE_MAX_BYTES) {
        return make_error(ErrorKind::kInvalid, "the table has an impossible size");
    }
    void* memory = ::mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (memory == MAP_FAILED) return errno_error("mmap of the table", errno);
    Table table;
    table.bytes_ = size;
    table.header_ = static_cast<sb_table_header*>(memory);
    if (!is_sound(*table.header_, size)) {
        return make_error(ErrorKind::kInvalid, "the table is damaged or of another version");
    }
    table.set(memory);
    return table;
}

sb_slot* Table::slot(uint32_t index) const {
    auto* bytes = reinterpret_cast<std::byte*>(header_);
    return reinterpret_cast<sb_slot*>(bytes + header_->slots_offset +
                                      uint64_t{index} * header_->slot_bytes);
}

sb_slot* Table::claim(uint32_t tgid) const {
    for (uint32_t index = 1; index < slot_count(); ++index) {
        sb_slot* candidate = slot(index);
        uint32_t owner = __atomic_load_n(&candidate->tgid, __ATOMIC_ACQUIRE);
        if (owner == 0 && __atomic_compare_exchange_n(&candidate->tgid, &owner, tgid, false,
                                                      __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE)) {
            owner = tgid;
        }
        uint32_t idle = 0;
        if (owner == tgid && __atomic_compare_exchange_n(&candidate->busy, &idle, 1u, false,
                                                         __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE)) {
            return candidate;
        }
    }
    return slot(0);
}

} // namespace speedbump::python
