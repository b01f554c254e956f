// SPDX-License-Identifier: MIT
#include "stacks/sleep_watch.h"

#include <fcntl.h>
#include <linux/perf_event.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <string>

#include "util/page.h"

namespace speedbump::stacks {
namespace {

constexpr Clock::duration kFirstPause = std::chrono::microseconds(20);
constexpr Clock::duration kLongestPause = std::chrono::milliseconds(2);

} // namespace

void SleepWatch::Unmap::operator()(perf_event_mmap_page* page) const {
    munmap(page, kPage);
}

void SleepWatch::open() {
    was_opened_ = true;
    if (pid_ <= 0 || tid_ <= 0) return;
    perf_event_attr attributes{};
    attributes.size = sizeof(attributes);
    attributes.type = PERF_TYPE_SOFTWARE;
    attributes.config = PERF_COUNT_SW_DUMMY;
    attributes.exclude_kernel = 1;
    attributes.exclude_hv = 1;
    event_ = Fd(static_cast<int>(
        syscall(SYS_perf_event_open, &attributes, tid_, -1, -1, PERF_FLAG_FD_CLOEXEC)));
    if (!event_.valid()) return;
    const std::string path =
        "/proc/" + std::to_string(pid_) + "/task/" + std::to_string(tid_) + "/syscall";
    system_call_ = Fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
    if (!system_call_.valid()) return;
    void* page = mmap(nullptr, kPage, PROT_READ, MAP_SHARED, event_.get(), 0);
    if (page != MAP_FAILED) page_.reset(static_cast<perf_event_mmap_page*>(page));
}

// The kernel answers with a system call's number only after it saw the thread switched out
// (task_current_syscall), "running" or -1 (a page fault) otherwise.
bool SleepWatch::is_blocked() const {
    char text[16];
    const ssize_t size = pread(system_call_.get(), text, sizeof(text), 0);
    return size > 0 && text[0] >= '0' && text[0] <= '9';
}

uint32_t SleepWatch::asleep() {
    if (!was_opened_) open();
    if (!page_) return 0;
    // perf_event_update_userpage() adds 2 whenever the thread is switched in.
    const uint32_t count = __atomic_load_n(&page_->lock, __ATOMIC_ACQUIRE);
    if (count == asleep_at_) return count;
    const Clock::time_point now = Clock::now();
    if (count != looked_at_) {
        looked_at_ = count;
        pause_ = kFirstPause;
        next_look_ = now + pause_;
        return 0;
    }
    if (now < next_look_ || count % 2 != 0) return 0;
    pause_ = std::min(pause_ * 2, kLongestPause);
    next_look_ = now + pause_;
    if (!is_blocked() || __atomic_load_n(&page_->lock, __ATOMIC_ACQUIRE) != count) return 0;
    asleep_at_ = count;
    return count;
}

} // namespace speedbump::stacks
