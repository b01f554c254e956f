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
// Pieces of work for one process: when this program is killed it soon has no more to do.
constexpr size_t kMaxInOne = 256;

// Values that a child's writes are seen in; none where there is no memory.
template <typename T>
class Shared {
  public:
    Shared(size_t count, auto value) : size_(count * sizeof(T)) {
        void* memory =
            ::mmap(nullptr, size_, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
        if (memory == MAP_FAILED) return;
        values_ = static_cast<T*>(memory);
        for (size_t i = 0; i < count; ++i) new (values_ + i) T(value);
    }
    ~Shared() {
        if (values_) ::munmap(values_, size_);
    }
    Shared(const Shared&) = delete;
    Shared& operator=(const Shared&) = delete;
    T* get() const { return values_; }

  private:
    size_t size_;
    T* values_ = nullptr;
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

// Each release waits for an RCU grace period of its own (uprobe_unregister_sync()), but those that
// wait at the same time share it. Those of perf events don't: they wait under a lock of the
// kernel's (perf_uprobe_destroy(); 0.1 to 0.25 s each were seen).
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

namespace {

// Some pieces of work, and where their results go.
struct Job {
    int (*work)(void*, size_t);
    void* argument;
    size_t begin, end;
    int* results; // of each, from the first piece of all on
};

int do_job(void* job) {
    const Job& own = *static_cast<Job*>(job);
    for (size_t i = own.begin; i < own.end; ++i) own.results[i] = own.work(own.argument, i);
    return 0;
}

} // namespace

std::vector<int> run_shielded(int (*work)(void*, size_t), void* argument, size_t count) {
    std::vector<int> results(count, -EAGAIN);
    if (count == 0) return results;
    const Shared<int> shared(count, -EAGAIN);
    for (size_t begin = 0; begin < count; begin += kMaxInOne) {
        Job job{work, argument, begin, std::min(begin + kMaxInOne, count),
                shared.get() ? shared.get() : results.data()};
        if (!shared.get() || !run(do_job, &job)) do_job(&job);
    }
    if (shared.get()) std::copy_n(shared.get(), count, results.begin());
    return results;
}

} // namespace detail

void close_shielded(const std::vector<int>& descriptors) {
    if (descriptors.empty()) return;
    const Shared<std::atomic<size_t>> next(1, size_t{0});
    std::atomic<size_t> own{0};
    Closing closing{&descriptors, next.get() ? next.get() : &own};
    if (next.get()) run(close_together, &closing);
    closing.close_rest(); // what a child that was not to be had, or was killed, has left over
}

} // namespace speedbump::engine
