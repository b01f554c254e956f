// SPDX-License-Identifier: MIT
#include "engine/shielded.h"

#include <sched.h>
#include <signal.h>
#include <sys/types.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstddef>

namespace speedbump::engine::detail {

namespace {

struct Job {
    int (*work)(void*);
    void* argument;
};

int child(void* job) {
    ::setsid(); // out of reach of what is sent to the process group
    return static_cast<Job*>(job)->work(static_cast<Job*>(job)->argument);
}

} // namespace

void run_shielded(int (*work)(void*), void* argument) {
    Job job{work, argument};
    alignas(16) std::byte stack[32768];
    // Its handlers are this program's: none may run there.
    sigset_t all = {};
    sigset_t before = {};
    ::sigfillset(&all);
    ::pthread_sigmask(SIG_SETMASK, &all, &before);
    // No signal at its end: nobody but this function waits for it.
    const pid_t pid =
        ::clone(child, stack + sizeof(stack), CLONE_VM | CLONE_FILES | CLONE_VFORK, &job);
    ::pthread_sigmask(SIG_SETMASK, &before, nullptr);
    if (pid < 0) {
        work(argument);
        return;
    }
    while (::waitpid(pid, nullptr, __WALL) < 0 && errno == EINTR) {
    }
}

} // namespace speedbump::engine::detail
