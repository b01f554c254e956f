// SPDX-License-Identifier: MIT
#include "engine/inprocess/table.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <optional>
#include <utility>

#include "engine/inprocess/trampoline.h"
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

Result<std::unique_ptr<Table>> Table::create(const Ticks& ticks) {
    std::unique_ptr<Table> table(new Table());
    table->ticks_ = ticks;
    auto memory = make_shared_memory("speedbump-hooks", settings_bytes(), PROT_READ | PROT_WRITE,
                                     F_SEAL_FUTURE_WRITE, table->fd_);
    if (!memory) return std::move(memory).error();
    table->memory_ = *memory;
    struct stat info {};
    if (fstat(table->fd_.get(), &info) != 0) return errno_error("stat the session's table", errno);
    table->inode_ = info.st_ino;
    table->settings().ticks_per_ns =
        static_cast<uint64_t>(ticks.per_ns * static_cast<double>(uint64_t{1} << kTickShift));
    return table;
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
    munmap(memory_, settings_bytes());
}

void Table::arm(bool armed) {
    __atomic_store_n(&settings().armed, armed ? 1u : 0u, __ATOMIC_RELEASE);
}

void Table::configure(uint32_t target, const TargetSettings& wanted, uint64_t armed_at_ns) {
    HookTarget& entry = targets()[target];
    const auto store = [](uint64_t& to, uint64_t value) {
        __atomic_store_n(&to, value, __ATOMIC_RELAXED);
    };
    const auto start = static_cast<uint64_t>(wanted.start.count());
    const auto duration = static_cast<uint64_t>(wanted.duration.count());
    const bool has_window = armed_at_ns != 0;
    store(entry.start_ticks, has_window && start != 0 ? ticks_.at(armed_at_ns + start) : 0);
    store(entry.end_ticks,
          has_window && duration != 0 ? ticks_.at(armed_at_ns + start + duration) : 0);
    store(entry.delay_ns, static_cast<uint64_t>(wanted.delay.count()));
    __atomic_store_n(&entry.enabled, wanted.enabled ? 1u : 0u, __ATOMIC_RELEASE);
}

} // namespace speedbump::engine::inprocess
