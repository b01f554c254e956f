// SPDX-License-Identifier: MIT
#include "engine/inprocess/table.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <optional>
#include <utility>

#include "engine/shared_memory.h"
#include "util/clock.h"

namespace speedbump::engine::inprocess {

uint64_t Ticks::at(uint64_t monotonic) const {
    const auto since = static_cast<int64_t>(monotonic - origin_ns);
    return origin_ticks +
           static_cast<uint64_t>(static_cast<int64_t>(static_cast<double>(since) * per_ns));
}

nanoseconds Ticks::duration(uint64_t ticks) const {
    constexpr uint64_t kMost = uint64_t{1} << 57; // more than a year is no number but an attack
    return nanoseconds(static_cast<int64_t>(static_cast<double>(std::min(ticks, kMost)) / per_ns));
}

namespace {

// The slack of timers is 50 us, for a thread that has asked for none, and waking up takes some.
constexpr double kWakeNs = 150'000;
constexpr uint32_t kMostRings = 64;
constexpr uint64_t kMostCommonBytes = uint64_t{64} << 20;

// As many rings as CPUs: each is written by one, but where several share one.
Extent extent_of(uint32_t columns) {
    Extent extent{columns, 1};
    const auto cpus = static_cast<uint32_t>(std::max(1L, sysconf(_SC_NPROCESSORS_CONF)));
    while (extent.rings < std::min(cpus, kMostRings)) extent.rings *= 2;
    while (extent.rings > 1 && common_bytes(extent) > kMostCommonBytes) extent.rings /= 2;
    return extent;
}

} // namespace

Result<std::unique_ptr<Table>> Table::create(const Ticks& ticks, uint32_t columns) {
    std::unique_ptr<Table> table(new Table());
    table->ticks_ = ticks;
    table->extent_ = extent_of(columns);
    if (auto mapped = table->map(); !mapped) return std::move(mapped).error();
    table->settings().ticks_per_ns =
        static_cast<uint64_t>(ticks.per_ns * static_cast<double>(uint64_t{1} << kTickShift));
    table->settings().wake_ticks = static_cast<uint64_t>(ticks.per_ns * kWakeNs);
    table->set_clock();
    return table;
}

Result<void> Table::map() {
    auto memory = make_shared_memory("speedbump-hooks", settings_bytes(extent_),
                                     PROT_READ | PROT_WRITE, F_SEAL_FUTURE_WRITE, fd_);
    if (!memory) return std::move(memory).error();
    memory_ = *memory;
    struct stat info {};
    if (fstat(fd_.get(), &info) != 0) return errno_error("stat the session's table", errno);
    inode_ = info.st_ino;
    auto common =
        make_shared_memory("speedbump-common", common_bytes(extent_), PROT_READ, 0, common_fd_);
    if (!common) return std::move(common).error();
    common_ = static_cast<const std::byte*>(*common);
    if (extent_.columns == 0) return {};
    auto* const shared =
        reinterpret_cast<sb_schedule*>(static_cast<std::byte*>(memory_) + schedule_offset());
    const auto* const slices = reinterpret_cast<const sb_slice_counts*>(common_ + slices_offset());
    schedule_ = std::make_unique<Schedule>(
        *shared, reinterpret_cast<__u64*>(shared + 1), extent_.columns, extent_.rings,
        [slices, cells = size_t{SB_RING_SLICES} * extent_.columns](size_t ring) {
            return slices + ring * cells;
        });
    return {};
}

Result<void> Table::own() {
    std::optional<Error> failure;
    owner_ = std::thread([this, &failure] {
        auto taken = owned_by_this_thread().take(settings().owner);
        std::unique_lock lock(mutex_);
        if (!taken) failure = std::move(taken).error();
        has_tried_ = true;
        changed_.notify_all();
        changed_.wait(lock, [this] { return is_over_; });
        // Else the kernel would look at unmapped memory when this thread ends.
        if (std::exchange(settings().owner, 0u) != 0) owned_by_this_thread().give_up();
    });
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return has_tried_; });
    if (failure) return std::move(*failure);
    return {};
}

Table::~Table() {
    if (common_ != nullptr) munmap(const_cast<std::byte*>(common_), common_bytes(extent_));
    if (memory_ == nullptr) return;
    arm(false);
    if (owner_.joinable()) {
        {
            const std::lock_guard lock(mutex_);
            is_over_ = true;
        }
        changed_.notify_all();
        owner_.join();
    }
    munmap(memory_, settings_bytes(extent_));
}

void Table::arm(bool armed) {
    __atomic_store_n(&settings().armed, armed ? 1u : 0u, __ATOMIC_RELEASE);
    for (const uint32_t target : configured_) set_state(target);
}

void Table::set_state(uint32_t target) {
    auto* const states =
        reinterpret_cast<uint32_t*>(static_cast<std::byte*>(memory_) + states_offset());
    const HookState state = state_of(targets()[target], settings().armed != 0);
    __atomic_store_n(&states[target], static_cast<uint32_t>(state), __ATOMIC_RELEASE);
}

void Table::set_clock() {
    if (settings().clock != 0) measure_again();
    const auto store = [](uint64_t& to, uint64_t value) {
        __atomic_store_n(&to, value, __ATOMIC_RELAXED);
    };
    const uint32_t next = settings().clock + 1;
    HookClock& clock = settings().clocks[next & 1];
    // Not before whoever still reads this one can see that it has changed.
    __atomic_thread_fence(__ATOMIC_SEQ_CST);
    store(clock.origin_ticks, ticks_.origin_ticks);
    store(clock.origin_ns, on_host_clock(ticks_.origin_ns));
    store(clock.ns_per_tick,
          static_cast<uint64_t>(static_cast<double>(uint64_t{1} << kNsShift) / ticks_.per_ns));
    __atomic_store_n(&settings().clock, next, __ATOMIC_RELEASE);
}

// Windows lie where they lay by the monotonic clock, also where one of the clocks has stood still.
void Table::measure_again() {
    const Ticks before = std::exchange(ticks_, ticks_.measured_again());
    const uint64_t shift = ticks_.origin_ticks - before.at(ticks_.origin_ns);
    for (const uint32_t target : windowed_)
        for (uint64_t* edge : {&targets()[target].start_ticks, &targets()[target].end_ticks})
            if (*edge != 0) __atomic_store_n(edge, *edge + shift, __ATOMIC_RELAXED);
}

Result<uint64_t> Table::thread_number(const std::optional<targets::Pattern>& thread) {
    if (!thread) return uint64_t{0};
    const auto known = std::find(threads_.begin(), threads_.end(), thread->text);
    if (known != threads_.end()) return static_cast<uint64_t>(known - threads_.begin()) + 1;
    HookThread entry{thread->text.size(), {}};
    if (threads_.size() == kMaxThreads || entry.length > sizeof entry.pattern)
        return make_error(
            ErrorKind::kUnsupported,
            fmt::format("no more than {} different thread= can be told apart", kMaxThreads));
    thread->text.copy(entry.pattern, sizeof entry.pattern);
    reinterpret_cast<HookThread*>(static_cast<std::byte*>(memory_) +
                                  threads_offset())[threads_.size()] = entry;
    threads_.push_back(thread->text);
    return threads_.size();
}

Result<void> Table::configure(uint32_t target, const TargetSettings& wanted, uint64_t armed_at_ns) {
    const auto thread = thread_number(wanted.thread);
    if (!thread) return thread.error();
    HookTarget& entry = targets()[target];
    const auto store = [](uint64_t& to, uint64_t value) {
        __atomic_store_n(&to, value, __ATOMIC_RELAXED);
    };
    const auto start = static_cast<uint64_t>(wanted.start.count());
    const auto duration = static_cast<uint64_t>(wanted.duration.count());
    const bool has_window = armed_at_ns != 0;
    if (has_window && (start != 0 || duration != 0))
        windowed_.insert(target);
    else
        windowed_.erase(target);
    store(entry.start_ticks, has_window && start != 0 ? ticks_.at(armed_at_ns + start) : 0);
    store(entry.end_ticks,
          has_window && duration != 0 ? ticks_.at(armed_at_ns + start + duration) : 0);
    store(entry.every, wanted.every);
    store(entry.thread, *thread);
    __atomic_store_n(&entry.sleeps, wanted.mode == targets::Mode::kSleep ? 1u : 0u,
                     __ATOMIC_RELAXED);
    store(entry.delay_ns, wanted.column ? SB_SCHEDULED | *wanted.column
                                        : static_cast<uint64_t>(wanted.delay.count()));
    __atomic_store_n(&entry.enabled, wanted.enabled ? 1u : 0u, __ATOMIC_RELEASE);
    configured_.insert(target);
    set_state(target);
    return {};
}

} // namespace speedbump::engine::inprocess
