// SPDX-License-Identifier: MIT
#include "engine/python_table.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <map>

namespace speedbump::engine {

namespace {

constexpr uint64_t kAlignment = 64;
constexpr uint64_t kSlotBudget = 64u << 20; // address space; pages that nobody writes cost nothing
constexpr uint64_t kMinSlots = 64, kMaxSlots = 4096;

constexpr uint64_t aligned(uint64_t value) {
    return (value + kAlignment - 1) / kAlignment * kAlignment;
}

static_assert(sizeof(pthread_mutex_t) <= sizeof(sb_table_header::owner));

} // namespace

PythonTable::PythonTable(Fd fd, void* memory) : fd_(std::move(fd)), memory_(memory) {}

Result<std::unique_ptr<PythonTable>> PythonTable::create(uint32_t lines) {
    sb_table_header header{};
    header.magic = SB_TABLE_MAGIC;
    header.version = SB_TABLE_VERSION;
    header.target_count = lines;
    header.slot_bytes = static_cast<uint32_t>(aligned(sizeof(sb_slot) + lines * sizeof(sb_counts)));
    header.slot_count =
        static_cast<uint32_t>(std::clamp(kSlotBudget / header.slot_bytes, kMinSlots, kMaxSlots));
    header.targets_offset = aligned(sizeof(header));
    header.turns_offset = aligned(header.targets_offset + lines * sizeof(sb_target));
    header.slots_offset = aligned(header.turns_offset + lines * sizeof(sb_turn));
    header.bytes = header.slots_offset + uint64_t{header.slot_count} * header.slot_bytes;
    if (header.bytes > SB_TABLE_MAX_BYTES)
        return make_error(ErrorKind::kUnsupported,
                          "the targets file has too many lines for Python targets");

    Fd fd(memfd_create("speedbump", MFD_CLOEXEC));
    if (!fd.valid()) return errno_error("memfd_create of the session's table", errno);
    if (ftruncate(fd.get(), static_cast<off_t>(header.bytes)) != 0)
        return errno_error("size the session's table", errno);
    void* memory = mmap(nullptr, header.bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd.get(), 0);
    if (memory == MAP_FAILED) return errno_error("map the session's table", errno);
    *static_cast<sb_table_header*>(memory) = header;

    auto* owner = reinterpret_cast<pthread_mutex_t*>(static_cast<sb_table_header*>(memory)->owner);
    pthread_mutexattr_t attributes;
    pthread_mutexattr_init(&attributes);
    pthread_mutexattr_setpshared(&attributes, PTHREAD_PROCESS_SHARED);
    pthread_mutexattr_setrobust(&attributes, PTHREAD_MUTEX_ROBUST);
    int error = pthread_mutex_init(owner, &attributes);
    if (error == 0) error = pthread_mutex_lock(owner);
    pthread_mutexattr_destroy(&attributes);
    if (error != 0) {
        munmap(memory, header.bytes);
        return errno_error("lock the session's table", error);
    }
    return std::unique_ptr<PythonTable>(new PythonTable(std::move(fd), memory));
}

PythonTable::~PythonTable() {
    __atomic_store_n(&header().armed, 0u, __ATOMIC_RELAXED);
    __atomic_store_n(&header().closed, 1u, __ATOMIC_RELEASE);
    // Else the kernel would look at unmapped memory when this thread ends.
    pthread_mutex_unlock(reinterpret_cast<pthread_mutex_t*>(header().owner));
    munmap(memory_, header().bytes);
}

void PythonTable::arm(bool armed) {
    __atomic_store_n(&header().armed, armed ? 1u : 0u, __ATOMIC_RELEASE);
}

void PythonTable::configure(uint32_t line, const TargetSettings& settings,
                            uint64_t window_origin_ns) {
    write_target(at<sb_target>(header().targets_offset)[line], settings, window_origin_ns, false);
}

std::vector<Counts> PythonTable::read_counts() const {
    std::map<std::pair<uint32_t, uint32_t>, Counts> sums;
    for (uint32_t index = 0; index < header().slot_count; ++index) {
        const auto* slot =
            at<const sb_slot>(header().slots_offset + uint64_t{index} * header().slot_bytes);
        const uint32_t tgid = __atomic_load_n(&slot->tgid, __ATOMIC_ACQUIRE);
        if (tgid == 0 && index != 0) continue;
        const auto* counts = reinterpret_cast<const sb_counts*>(slot + 1);
        for (uint32_t line = 0; line < header().target_count; ++line) {
            const auto load = [](const __u64& value) {
                return __atomic_load_n(&value, __ATOMIC_RELAXED);
            };
            const uint64_t hits = load(counts[line].hits);
            if (hits == 0) continue;
            Counts& sum = sums[{line, tgid}];
            sum.target = line;
            sum.process = static_cast<pid_t>(tgid);
            sum.hits += hits;
            sum.delays += load(counts[line].delays);
            sum.requested += nanoseconds(load(counts[line].requested_ns));
            sum.measured += nanoseconds(load(counts[line].measured_ns));
        }
    }
    std::vector<Counts> result;
    for (const auto& [key, counts] : sums) result.push_back(counts);
    return result;
}

uint64_t PythonTable::lost_counts() const {
    return __atomic_load_n(&header().lost_counts, __ATOMIC_RELAXED);
}

} // namespace speedbump::engine
