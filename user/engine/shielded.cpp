// SPDX-License-Identifier: MIT
#include "engine/shielded.h"

#include <sched.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/types.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstddef>
#include <new>

#include "util/apart.h"

namespace speedbump::engine {

namespace {

constexpr size_t kStackBytes = 8192; // of a task that closes descriptors and does nothing else
constexpr size_t kMaxAtOnce = 256;

// Memory that a child's writes are seen in.
template <typename T>
class Shared {
  public:
    explicit Shared(auto value) {
        void* page =
            ::mmap(nullptr, sizeof(T), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
        if (page != MAP_FAILED) value_ = new (page) T(value);
    }
    ~Shared() {
        if (value_) ::munmap(value_, sizeof(T));
    }
    Shared(const Shared&) = delete;
    Shared& operator=(const Shared&) = delete;
    T* get() const { return value_; }

  private:
    T* value_ = nullptr;
};

// Runs `work` in a process apart and waits for it. False when there is none to be had.
bool run(int (*work)(void*), void* argument) {
    // Its handlers are this program's: none may run there.
    sigset_t all = {};
    sigset_t before = {};
    ::sigfillset(&all);
    ::pthread_sigmask(SIG_SETMASK, &all, &before);
    const pid_t pid = fork_apart("probe-keeper", CLONE_FILES | CLONE_VFORK);
    if (pid == 0) ::_exit(work(argument));
    ::pthread_sigmask(SIG_SETMASK, &before, nullptr);
    if (pid < 0) return false;
    while (::waitpid(pid, nullptr, __WALL) < 0 && errno == EINTR) {
    }
    return true;
}

struct Closing {
    const std::vector<int>* descriptors;
    std::atomic<size_t>* next; // shared between processes

    void close_rest() const {
        for (size_t i = (*next)++; i < descriptors->size(); i = (*next)++)
            ::close((*descriptors)[i]);
    }
};

int close_rest(void* closing) {
    static_cast<Closing*>(closing)->close_rest();
    return 0;
}

// Each release waits for an RCU grace period of its own (uprobe_unregister_sync(); for perf events
// 0.25 s was seen), but those that wait at the same time share it.
int close_together(void* closing) {
    const size_t extra =
        std::min(static_cast<Closing*>(closing)->descriptors->size(), kMaxAtOnce) - 1;
    void* stacks = ::mmap(nullptr, extra * kStackBytes + 1, PROT_READ | PROT_WRITE,
                          MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    for (size_t i = 1; i <= extra && stacks != MAP_FAILED; ++i) {
        // At a task limit: fewer at a time.
        if (::clone(close_rest, static_cast<std::byte*>(stacks) + i * kStackBytes,
                    CLONE_VM | CLONE_FILES, closing) < 0)
            break;
    }
    close_rest(closing);
    while (::waitpid(-1, nullptr, __WALL) > 0 || errno == EINTR) {
    }
    return 0;
}

} // namespace

namespace detail {

int run_shielded(int (*work)(void*), void* argument) {
    struct Job {
        int (*work)(void*);
        void* argument;
        int* result;
    };
    const Shared<int> result(-EAGAIN);
    Job job{work, argument, result.get()};
    const auto child = [](void* shared_job) {
        const Job& own = *static_cast<Job*>(shared_job);
        *own.result = own.work(own.argument);
        return 0;
    };
    if (!job.result || !run(child, &job)) return work(argument);
    return *job.result;
}

} // namespace detail

void close_shielded(const std::vector<int>& descriptors) {
    if (descriptors.empty()) return;
    const Shared<std::atomic<size_t>> next(size_t{0});
    std::atomic<size_t> own{0};
    Closing closing{&descriptors, next.get() ? next.get() : &own};
    if (next.get()) run(close_together, &closing);
    closing.close_rest(); // what a child that was not to be had, or was killed, has left over
}

} // namespace speedbump::engine
