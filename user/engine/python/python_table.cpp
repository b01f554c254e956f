// SPDX-License-Identifier: MIT
#include "engine/python/python_table.h"

#include <fcntl.h>
#include <sys/mman.h>

#include <algorithm>
#include <climits>
#include <map>
#include <optional>
#include <utility>

#include "engine/shared_memory.h"

namespace speedbump::engine {

namespace {

constexpr uint64_t kSlotBudget = 64u << 20; // address space; pages that nobody writes cost nothing
constexpr uint64_t kMinSlots = 64;

// What one process can be said to have lost in a year: more is no number but an attack.
constexpr uint64_t kMaxNanoseconds = uint64_t{1} << 55;

uint64_t load(const __u64& value) {
    return __atomic_load_n(&value, __ATOMIC_RELAXED);
}

nanoseconds time_of(const __u64& value) {
    return nanoseconds(std::min(load(value), kMaxNanoseconds));
}

} // namespace

Result<std::unique_ptr<PythonTable>> PythonTable::create(uint32_t lines, uint32_t columns) {
    const uint64_t slots = std::clamp<uint64_t>(kSlotBudget / sb_slot_bytes(lines, columns),
                                                kMinSlots, SB_TABLE_MAX_SLOTS);
    std::unique_ptr<PythonTable> table(new PythonTable());
    table->lines_ = lines;
    table->slots_ = static_cast<uint32_t>(slots);
    table->columns_ = columns;
    const uint64_t counters_bytes = sb_counters_bytes(lines, columns, table->slots_);
    if (lines > SB_MAX_TARGETS || columns > SB_MAX_COLUMNS || counters_bytes > SB_TABLE_MAX_BYTES)
        return make_error(ErrorKind::kUnsupported,
                          "the targets file has too many lines for Python targets");

    auto settings =
        make_shared_memory("speedbump-settings", sb_settings_bytes(lines, columns),
                           PROT_READ | PROT_WRITE, F_SEAL_FUTURE_WRITE, table->settings_fd_);
    if (!settings) return std::move(settings).error();
    table->settings_ = *settings;
    table->settings() = {};
    table->settings().magic = SB_TABLE_MAGIC;
    table->settings().version = SB_TABLE_VERSION;
    table->settings().target_count = lines;
    table->settings().slot_count = table->slots_;
    table->settings().columns = columns;

    auto counters =
        make_shared_memory("speedbump-counters", counters_bytes, PROT_READ, 0, table->counters_fd_);
    if (!counters) return std::move(counters).error();
    table->counters_ = *counters;
    if (columns > 0) table->make_schedule();
    if (auto taken = owned_by_this_thread().take(table->settings().owner); !taken)
        return std::move(taken).error();
    return table;
}

PythonTable::~PythonTable() {
    if (settings_ != nullptr) {
        __atomic_store_n(&settings().armed, 0u, __ATOMIC_RELAXED);
        __atomic_store_n(&settings().closed, 1u, __ATOMIC_RELEASE);
        // Else the kernel would look at unmapped memory when this thread ends.
        if (std::exchange(settings().owner, 0u) != 0) owned_by_this_thread().give_up();
        munmap(settings_, sb_settings_bytes(lines_, columns_));
    }
    if (counters_ != nullptr)
        munmap(const_cast<void*>(counters_), sb_counters_bytes(lines_, columns_, slots_));
}

void PythonTable::arm(bool armed) {
    __atomic_store_n(&settings().armed, armed ? armed_as_ : 0u, __ATOMIC_RELEASE);
}

void PythonTable::set_grouping(uint64_t number) {
    uint32_t armed = armed_as_;
    armed_as_ = SB_ARMED(number);
    // Unless it is disarmed, which a signal may do just now.
    __atomic_compare_exchange_n(&settings().armed, &armed, armed_as_, false, __ATOMIC_RELEASE,
                                __ATOMIC_RELAXED);
}

void PythonTable::configure(uint32_t line, const TargetSettings& target_settings,
                            uint64_t window_origin_ns) {
    auto* targets = reinterpret_cast<sb_target*>(&settings() + 1);
    write_target(targets[line], target_settings, window_origin_ns, {});
}

const sb_slot* PythonTable::slot(uint32_t index) const {
    return reinterpret_cast<const sb_slot*>(static_cast<const char*>(counters_) +
                                            sb_slot_offset(lines_, columns_, index));
}

void PythonTable::make_schedule() {
    auto* const memory = static_cast<char*>(settings_) + sb_schedule_offset(lines_);
    auto* const shared = reinterpret_cast<sb_schedule*>(memory);
    const auto ring = [this](size_t index) -> const sb_slice_counts* {
        const sb_slot* const counted = slot(static_cast<uint32_t>(index));
        if (index != 0 && __atomic_load_n(&counted->writer, __ATOMIC_ACQUIRE) == 0) return nullptr;
        return reinterpret_cast<const sb_slice_counts*>(reinterpret_cast<const char*>(counted) +
                                                        sb_slot_slices_offset(lines_));
    };
    schedule_ = std::make_unique<Schedule>(*shared, reinterpret_cast<__u64*>(shared + 1), columns_,
                                           slots_, ring);
}

std::vector<Counts> PythonTable::read_counts(const ProcessOf& process_of) const {
    std::map<std::pair<uint32_t, pid_t>, Counts> sums;
    for (uint32_t index = 0; index < slots_; ++index) {
        const sb_slot* const slot = this->slot(index);
        const uint64_t writer = __atomic_load_n(&slot->writer, __ATOMIC_ACQUIRE);
        if (writer == 0 && index != 0) continue;
        const auto* counts = reinterpret_cast<const sb_counts*>(slot + 1);
        std::optional<pid_t> process;
        for (uint32_t line = 0; line < lines_; ++line) {
            const uint64_t hits = load(counts[line].hits);
            if (hits == 0) continue;
            if (!process) {
                const auto pid = static_cast<uint32_t>(writer);
                const bool is_pid = index != 0 && pid != 0 && pid <= INT_MAX;
                process = is_pid ? process_of(static_cast<uint32_t>(writer >> 32),
                                              static_cast<pid_t>(pid))
                                 : 0;
            }
            Counts& sum = sums[{line, *process}];
            sum.target = line;
            sum.process = *process;
            sum += {.hits = hits,
                    .delays = load(counts[line].delays),
                    .requested = time_of(counts[line].requested_ns),
                    .measured = time_of(counts[line].measured_ns)};
        }
    }
    std::vector<Counts> result;
    for (const auto& [key, counts] : sums) result.push_back(counts);
    return result;
}

uint64_t PythonTable::lost_counts() const {
    return load(static_cast<const sb_counters*>(counters_)->lost_counts);
}

} // namespace speedbump::engine
