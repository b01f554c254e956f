// SPDX-License-Identifier: MIT
#include "engine/mapping_watch.h"

#include <linux/perf_event.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>

#include "util/clock.h"
#include "util/fd.h"

namespace speedbump::engine {

namespace {

constexpr size_t kRingPages = 64; // a power of two; 256 KiB hold some 2,000 mappings
// So many forks and exits within a period begin a storm, so few end it.
constexpr size_t kStormBegins = 100, kStormEnds = 20;
constexpr auto kPeriod = std::chrono::milliseconds(500);

// One CPU's perf ring buffer.
struct Ring {
    Fd fd;
    void* memory = nullptr;
    size_t page_size = 0;

    Ring() = default;
    Ring(Ring&& other) noexcept
        : fd(std::move(other.fd)),
          memory(std::exchange(other.memory, nullptr)),
          page_size(other.page_size) {}
    Ring& operator=(Ring&&) = delete;
    ~Ring() {
        if (memory) munmap(memory, (kRingPages + 1) * page_size);
    }
};

// The head of PERF_RECORD_MMAP2, include/uapi/linux/perf_event.h.
struct Mmap2Record {
    perf_event_header header;
    uint32_t pid, tid;
    uint64_t address, length, page_offset;
    uint32_t major, minor;
    uint64_t inode, inode_generation;
    uint32_t protection, flags;
};

} // namespace

// The same event on each CPU.
struct MappingWatch::Events {
    std::vector<Ring> rings;

    // Opens them disabled; `wake`: each record wakes the reader.
    Result<void> open(bool wake);
    void enable(bool on) {
        for (Ring& ring : rings)
            ioctl(ring.fd.get(), on ? PERF_EVENT_IOC_ENABLE : PERF_EVENT_IOC_DISABLE, 0);
    }
    void drain(std::vector<NewMapping>& found, size_t& others, bool& lost);
};

struct MappingWatch::Impl {
    Fd epoll;
    Events prompt, quiet;
    bool moderated = false;
    size_t others = 0; // forks and exits in this period
    Clock::time_point period_began = Clock::now();
};

MappingWatch::MappingWatch(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
MappingWatch::~MappingWatch() = default;

int MappingWatch::fd() const {
    return impl_->epoll.get();
}
bool MappingWatch::moderated() const {
    return impl_->moderated;
}

Result<void> MappingWatch::Events::open(bool wake) {
    perf_event_attr attributes{};
    attributes.size = sizeof(attributes);
    attributes.type = PERF_TYPE_SOFTWARE;
    attributes.config = PERF_COUNT_SW_DUMMY;
    attributes.disabled = 1;
    attributes.mmap = 1;
    attributes.mmap2 = 1;
    attributes.watermark = 1;
    const auto page_size = static_cast<size_t>(sysconf(_SC_PAGESIZE));
    attributes.wakeup_watermark = wake ? 1 : static_cast<uint32_t>(kRingPages * page_size / 2);

    const long cpus = sysconf(_SC_NPROCESSORS_CONF);
    for (int cpu = 0; cpu < cpus; ++cpu) {
        Ring ring;
        ring.page_size = page_size;
        ring.fd = Fd(static_cast<int>(
            syscall(SYS_perf_event_open, &attributes, -1, cpu, -1, PERF_FLAG_FD_CLOEXEC)));
        if (!ring.fd.valid()) {
            if (errno == ENODEV) continue; // an offline CPU
            return errno_error("perf_event_open of mapping records on CPU " + std::to_string(cpu),
                               errno);
        }
        void* memory = mmap(nullptr, (kRingPages + 1) * ring.page_size, PROT_READ | PROT_WRITE,
                            MAP_SHARED, ring.fd.get(), 0);
        if (memory == MAP_FAILED) return errno_error("mmap of the perf ring buffer", errno);
        ring.memory = memory;
        rings.push_back(std::move(ring));
    }
    return {};
}

Result<std::unique_ptr<MappingWatch>> MappingWatch::open() {
    auto impl = std::make_unique<Impl>();
    impl->epoll = Fd(epoll_create1(EPOLL_CLOEXEC));
    if (!impl->epoll.valid()) return errno_error("epoll_create1", errno);
    if (auto opened = impl->prompt.open(true); !opened) return std::move(opened).error();
    if (auto opened = impl->quiet.open(false); !opened) return std::move(opened).error();
    for (const Events* events : {&impl->prompt, &impl->quiet}) {
        for (const Ring& ring : events->rings) {
            epoll_event event{};
            event.events = EPOLLIN;
            if (epoll_ctl(impl->epoll.get(), EPOLL_CTL_ADD, ring.fd.get(), &event) != 0)
                return errno_error("epoll_ctl of the perf event", errno);
        }
    }
    impl->prompt.enable(true);
    return std::unique_ptr<MappingWatch>(new MappingWatch(std::move(impl)));
}

void MappingWatch::Events::drain(std::vector<NewMapping>& found, size_t& others, bool& lost) {
    std::vector<char> record;
    for (Ring& ring : rings) {
        auto* page = static_cast<perf_event_mmap_page*>(ring.memory);
        const char* data = static_cast<const char*>(ring.memory) + ring.page_size;
        const uint64_t size = kRingPages * ring.page_size;
        const uint64_t head = __atomic_load_n(&page->data_head, __ATOMIC_ACQUIRE);
        uint64_t tail = page->data_tail;
        const auto copy = [&](void* to, uint64_t from, size_t length) {
            const uint64_t at = from % size;
            const size_t first = std::min<uint64_t>(length, size - at);
            std::memcpy(to, data + at, first);
            std::memcpy(static_cast<char*>(to) + first, data, length - first);
        };
        while (tail < head) {
            perf_event_header header;
            copy(&header, tail, sizeof(header));
            if (header.size < sizeof(header)) break; // never written by the kernel
            if (header.type == PERF_RECORD_LOST) lost = true;
            if (header.type == PERF_RECORD_FORK || header.type == PERF_RECORD_EXIT) ++others;
            if (header.type == PERF_RECORD_MMAP2 && header.size > sizeof(Mmap2Record)) {
                record.assign(header.size + 1u, 0);
                copy(record.data(), tail, header.size);
                Mmap2Record mapping;
                std::memcpy(&mapping, record.data(), sizeof(mapping));
                found.push_back({static_cast<pid_t>(mapping.pid), mapping.inode,
                                 record.data() + sizeof(mapping)});
            }
            tail += header.size;
        }
        __atomic_store_n(&page->data_tail, tail, __ATOMIC_RELEASE);
    }
}

std::vector<NewMapping> MappingWatch::drain(bool& lost) {
    std::vector<NewMapping> found;
    impl_->prompt.drain(found, impl_->others, lost);
    impl_->quiet.drain(found, impl_->others, lost);

    const auto now = Clock::now();
    const bool period_over = now - impl_->period_began >= kPeriod;
    const bool storm = impl_->others >= kStormBegins;
    if (!impl_->moderated && storm) {
        impl_->quiet.enable(true); // both for a moment: none is missed
        impl_->prompt.enable(false);
        impl_->moderated = true;
    } else if (impl_->moderated && period_over && impl_->others < kStormEnds) {
        impl_->prompt.enable(true);
        impl_->quiet.enable(false);
        impl_->moderated = false;
    }
    if (period_over || storm) {
        impl_->others = 0;
        impl_->period_began = now;
    }
    return found;
}

} // namespace speedbump::engine
