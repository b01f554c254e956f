// SPDX-License-Identifier: MIT
#include "engine/mapping_watch.h"

#include <bpf/libbpf.h>
#include <linux/perf_event.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "engine/event_pulse.h"
#include "util/clock.h"
#include "util/event_loop.h"
#include "util/fd.h"

namespace speedbump::engine {

namespace {

constexpr size_t kRingPages = 64; // a power of two; 256 KiB hold some 2,000 mappings
// So many forks and exits within a period begin a storm, so few end it.
constexpr size_t kStormBegins = 100, kStormEnds = 20;
constexpr auto kPeriod = std::chrono::milliseconds(500);

// One CPU's perf ring buffer; empty while the CPU is offline.
struct Ring {
    Fd fd;
    void* memory = nullptr;
    size_t page_size = 0;
    EventPulse pulse;

    Ring() = default;
    Ring(Ring&& other) noexcept { *this = std::move(other); }
    Ring& operator=(Ring&& other) noexcept {
        std::swap(fd, other.fd);
        std::swap(memory, other.memory);
        std::swap(page_size, other.page_size);
        std::swap(pulse, other.pulse);
        return *this;
    }
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
    bool wake; // each record wakes the reader
    bool enabled = false;
    std::vector<Ring> rings; // by CPU

    // Of one CPU, enabled like the others; false: it is offline.
    Result<bool> open(int cpu);
    void enable(bool on) {
        enabled = on;
        for (Ring& ring : rings) {
            if (!ring.fd.valid()) continue;
            ioctl(ring.fd.get(), on ? PERF_EVENT_IOC_ENABLE : PERF_EVENT_IOC_DISABLE, 0);
            ring.pulse.begin();
        }
    }
    void drain(std::vector<tree::NewMapping>& found, size_t& others, bool& lost);
};

struct MappingWatch::Impl {
    Fd epoll;
    Events prompt{true, false, {}}, quiet{false, false, {}};
    bool moderated = false;
    size_t others = 0; // forks and exits in this period
    Clock::time_point period_began = Clock::now();
    Clock::time_point checked = Clock::now();

    // Both events of a CPU; false: it is offline.
    Result<bool> open(int cpu);
    void close(int cpu);
    void mend(bool& lost);
};

MappingWatch::MappingWatch(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
MappingWatch::~MappingWatch() = default;

int MappingWatch::fd() const {
    return impl_->epoll.get();
}
bool MappingWatch::moderated() const {
    return impl_->moderated;
}

Result<bool> MappingWatch::Events::open(int cpu) {
    perf_event_attr attributes{};
    attributes.size = sizeof(attributes);
    attributes.type = PERF_TYPE_SOFTWARE;
    attributes.config = PERF_COUNT_SW_DUMMY;
    attributes.read_format = EventPulse::kReadFormat;
    attributes.disabled = enabled ? 0 : 1;
    attributes.mmap = 1;
    attributes.mmap2 = 1;
    attributes.watermark = 1;
    const auto page_size = static_cast<size_t>(sysconf(_SC_PAGESIZE));
    attributes.wakeup_watermark = wake ? 1 : static_cast<uint32_t>(kRingPages * page_size / 2);

    Ring ring;
    ring.page_size = page_size;
    ring.fd = Fd(static_cast<int>(
        syscall(SYS_perf_event_open, &attributes, -1, cpu, -1, PERF_FLAG_FD_CLOEXEC)));
    if (!ring.fd.valid()) {
        if (errno == ENODEV) return false;
        return errno_error("perf_event_open of mapping records on CPU " + std::to_string(cpu),
                           errno);
    }
    void* memory = mmap(nullptr, (kRingPages + 1) * ring.page_size, PROT_READ | PROT_WRITE,
                        MAP_SHARED, ring.fd.get(), 0);
    if (memory == MAP_FAILED) return errno_error("mmap of the perf ring buffer", errno);
    ring.memory = memory;
    rings[static_cast<size_t>(cpu)] = std::move(ring);
    return true;
}

Result<bool> MappingWatch::Impl::open(int cpu) {
    for (Events* events : {&prompt, &quiet}) {
        auto opened = events->open(cpu);
        if (opened && *opened) {
            const int fd = events->rings[static_cast<size_t>(cpu)].fd.get();
            const auto watched = watch_descriptor(epoll, fd);
            if (watched) continue;
            opened = errno_error("epoll_ctl of the perf event", watched.error().error_number);
        }
        close(cpu); // none or both
        return opened;
    }
    return true;
}

void MappingWatch::Impl::close(int cpu) {
    for (Events* events : {&prompt, &quiet}) {
        Ring& ring = events->rings[static_cast<size_t>(cpu)];
        if (ring.fd.valid()) epoll_ctl(epoll.get(), EPOLL_CTL_DEL, ring.fd.get(), nullptr);
        ring = Ring();
    }
}

// Opens the events of CPUs that went or came again.
void MappingWatch::Impl::mend(bool& lost) {
    if (Clock::now() - checked < kEventCheckPeriod) return;
    checked = Clock::now();
    Events& used = moderated ? quiet : prompt;
    for (int cpu = 0; cpu < static_cast<int>(used.rings.size()); ++cpu) {
        Ring& ring = used.rings[static_cast<size_t>(cpu)];
        if (ring.fd.valid()) {
            if (!ring.pulse.has_stopped(ring.fd.get())) continue;
            close(cpu);
            lost = true;
        }
        // What can't be opened is missing until it can: that is to be made up for each time.
        if (auto opened = open(cpu); !opened || *opened) lost = true;
    }
}

Result<std::unique_ptr<MappingWatch>> MappingWatch::open() {
    auto impl = std::make_unique<Impl>();
    auto epoll = make_epoll();
    if (!epoll) return std::move(epoll).error();
    impl->epoll = std::move(*epoll);
    const int cpus = libbpf_num_possible_cpus();
    if (cpus < 1) return errno_error("count the CPUs", -cpus);
    impl->prompt.rings.resize(static_cast<size_t>(cpus));
    impl->quiet.rings.resize(static_cast<size_t>(cpus));
    for (int cpu = 0; cpu < cpus; ++cpu)
        if (auto opened = impl->open(cpu); !opened) return std::move(opened).error();
    impl->prompt.enable(true);
    return std::unique_ptr<MappingWatch>(new MappingWatch(std::move(impl)));
}

void MappingWatch::Events::drain(std::vector<tree::NewMapping>& found, size_t& others, bool& lost) {
    std::vector<char> record;
    for (Ring& ring : rings) {
        if (!ring.fd.valid()) continue;
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

std::vector<tree::NewMapping> MappingWatch::drain(bool& lost) {
    std::vector<tree::NewMapping> found;
    impl_->prompt.drain(found, impl_->others, lost);
    impl_->quiet.drain(found, impl_->others, lost);
    impl_->mend(lost);

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
