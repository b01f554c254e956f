// SPDX-License-Identifier: MIT
#include "table.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <utility>

namespace speedbump::python {
namespace {

// Whether a memfd has all of the seals, and is at least that large. A file that is sealed against
// shrinking stays so, and no access to its mapping faults.
bool is_sealed(int fd, int wanted, uint64_t bytes) {
    const int seals = ::fcntl(fd, F_GET_SEALS);
    struct stat status {};
    return seals >= 0 && (seals & wanted) == wanted && ::fstat(fd, &status) == 0 &&
           static_cast<uint64_t>(status.st_size) >= bytes;
}

Error damaged() {
    return make_error(ErrorKind::kInvalid, "the table is damaged, or of another version");
}

} // namespace

Table::Table(Table&& other) noexcept {
    *this = std::move(other);
}

Table& Table::operator=(Table&& other) noexcept {
    if (this != &other) {
        unmap();
        settings_ = std::exchange(other.settings_, {});
        counters_ = std::exchange(other.counters_, {});
        target_count_ = other.target_count_;
        slot_count_ = other.slot_count_;
        columns_ = other.columns_;
    }
    return *this;
}

Table::~Table() {
    unmap();
}

void Table::unmap() {
    for (Mapping* mapping : {&settings_, &counters_}) {
        if (mapping->memory != nullptr) ::munmap(mapping->memory, mapping->bytes);
        *mapping = {};
    }
}

Result<void> Table::map_parts(int flags, int settings_fd, int counters_fd,
                              int settings_protection) {
    if (target_count_ > SB_MAX_TARGETS || slot_count_ == 0 || slot_count_ > SB_TABLE_MAX_SLOTS ||
        columns_ > SB_MAX_COLUMNS ||
        sb_counters_bytes(target_count_, columns_, slot_count_) > SB_TABLE_MAX_BYTES) {
        return make_error(ErrorKind::kInvalid, "too many targets for one table");
    }
    const auto map = [flags](size_t bytes, int protection, int fd) -> Mapping {
        void* memory = ::mmap(nullptr, bytes, protection, flags, fd, 0);
        return memory == MAP_FAILED ? Mapping{} : Mapping{memory, bytes};
    };
    settings_ = map(sb_settings_bytes(target_count_, columns_), settings_protection, settings_fd);
    if (settings_.memory == nullptr) return errno_error("mmap of the table's settings", errno);
    counters_ = map(sb_counters_bytes(target_count_, columns_, slot_count_), PROT_READ | PROT_WRITE,
                    counters_fd);
    if (counters_.memory == nullptr) return errno_error("mmap of the table's counters", errno);
    return {};
}

Result<Table> Table::make_private(uint32_t target_count, uint32_t slot_count) {
    Table table;
    table.target_count_ = target_count;
    table.slot_count_ = slot_count;
    auto mapped =
        table.map_parts(MAP_SHARED | MAP_ANONYMOUS | MAP_NORESERVE, -1, -1, PROT_READ | PROT_WRITE);
    if (!mapped) return mapped.error();
    auto* settings = static_cast<sb_settings*>(table.settings_.memory);
    settings->magic = SB_TABLE_MAGIC;
    settings->version = SB_TABLE_VERSION;
    settings->target_count = target_count;
    settings->slot_count = slot_count;
    settings->armed = SB_ARMED(0);
    return table;
}

Result<Table> Table::map(int settings_fd, int counters_fd) {
    sb_settings settings{};
    if (::pread(settings_fd, &settings, sizeof settings, 0) != sizeof settings ||
        settings.magic != SB_TABLE_MAGIC || settings.version != SB_TABLE_VERSION)
        return damaged();
    Table table;
    table.target_count_ = settings.target_count;
    table.slot_count_ = settings.slot_count;
    table.columns_ = settings.columns;
    auto mapped = table.map_parts(MAP_SHARED, settings_fd, counters_fd, PROT_READ);
    if (!mapped) return mapped.error();
    if (!is_sealed(settings_fd, F_SEAL_SHRINK | F_SEAL_FUTURE_WRITE, table.settings_.bytes) ||
        !is_sealed(counters_fd, F_SEAL_SHRINK, table.counters_.bytes))
        return damaged();
    return table;
}

sb_slot* Table::slot(uint32_t index) const {
    return reinterpret_cast<sb_slot*>(static_cast<std::byte*>(counters_.memory) +
                                      sb_slot_offset(target_count_, columns_, index));
}

const sb_schedule* Table::schedule() const {
    if (columns_ == 0) return nullptr;
    return reinterpret_cast<const sb_schedule*>(static_cast<const std::byte*>(settings_.memory) +
                                                sb_schedule_offset(target_count_));
}

sb_slot* Table::claim(uint64_t writer) const {
    for (uint32_t index = 1; index < slot_count(); ++index) {
        sb_slot* candidate = slot(index);
        uint64_t owner = __atomic_load_n(&candidate->writer, __ATOMIC_ACQUIRE);
        if (owner == 0) {
            __u64 free = 0;
            if (__atomic_compare_exchange_n(&candidate->writer, &free, writer, false,
                                            __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE))
                owner = writer;
        }
        uint32_t idle = 0;
        if (owner == writer && __atomic_compare_exchange_n(&candidate->busy, &idle, 1u, false,
                                                           __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE)) {
            return candidate;
        }
    }
    return slot(0);
}

} // namespace speedbump::python
