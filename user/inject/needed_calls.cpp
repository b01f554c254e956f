// SPDX-License-Identifier: MIT
#include <fcntl.h>
#include <linux/futex.h>
#include <linux/membarrier.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/syscall.h>

#include "inject/machine.h"
#include "inject/payload.h"
#include "inject/seccomp_filter.h"

namespace speedbump::inject {

// How it is known: recorded with the raw_syscalls tracepoints, for each Python and its way of
// hooking, and read from the sources of what runs there: payload_code.h, pyext/src, CPython's
// locks, and of glibc 2.17 to 2.42 pthread_create(), pthread_getattr_np(), malloc() and dlopen().
// What a version or a setting of these (GLIBC_TUNABLES) does another way is listed too, as long as
// a refusal for it would not meet programs that never make the call: what glibc does without goes
// by `kMayFail`. tests/runtime/inject (ExactlyTheNeededCalls) fails when one is missing: it
// attaches to programs that would be killed for any call that is not here.
const std::vector<NeededCall>& needed_calls() {
    constexpr uint64_t kPrivate = MAP_PRIVATE | MAP_ANONYMOUS;
    constexpr uint64_t kData = PROT_READ | PROT_WRITE;
    constexpr uint64_t kCode = PROT_READ | PROT_EXEC;
    constexpr uint64_t kFile = MAP_PRIVATE | MAP_DENYWRITE;
    constexpr uint64_t kNoFile = ~uint64_t{0};
    constexpr uint64_t kThread = CLONE_VM | CLONE_FS | CLONE_FILES | CLONE_SIGHAND | CLONE_THREAD |
                                 CLONE_SYSVSEM | CLONE_SETTLS | CLONE_PARENT_SETTID |
                                 CLONE_CHILD_CLEARTID;
    constexpr uint64_t kGuardInstall = 102;      // MADV_GUARD_INSTALL, absent in older headers
    constexpr uint64_t kNameMemory = 0x53564d41; // PR_SET_VMA
    constexpr bool kMayFail = true;
    static const std::vector<NeededCall> calls = {
        // The borrowed thread (the payload), and pthread_create() on it.
        {"rt_sigprocmask", SYS_rt_sigprocmask, {SIG_SETMASK}},
        {"rt_sigreturn", SYS_rt_sigreturn, {}},
        {"mmap", SYS_mmap, {0, kRegionSize, kData, kPrivate | MAP_FIXED_NOREPLACE, kNoFile}},
        {"mprotect to executable", SYS_mprotect, {0, kDataOffset, kCode}},
        {"madvise", SYS_madvise, {0, kRegionSize, MADV_DONTFORK}, kMayFail},
        {"madvise", SYS_madvise, {0, kForkedSize, MADV_DOFORK}, kMayFail},
        {"madvise", SYS_madvise, {0, kForkedSize, MADV_DONTFORK}, kMayFail},
        {"sigaltstack", SYS_sigaltstack, {}},
        {"mmap", SYS_mmap, {0, kThreadStack, PROT_NONE, kPrivate | MAP_STACK, kNoFile}},
        {"mprotect", SYS_mprotect, {0, kThreadStack, kData}},
        // From 2.42 on the guard is not a mapping of its own.
        {"mmap", SYS_mmap, {0, kThreadStack, kData, kPrivate | MAP_STACK, kNoFile}},
        {"madvise", SYS_madvise, {0, 4096, kGuardInstall}, kMayFail},
        {"madvise", SYS_madvise, {0, kThreadStack, MADV_NOHUGEPAGE}, kMayFail},
        {"prctl to name memory", SYS_prctl, {kNameMemory}, kMayFail},
        {"clone3", SYS_clone3, {}},
        {"clone", SYS_clone, {kThread}},
        {"rt_sigpending", SYS_rt_sigpending, {}, kMayFail},
        {"rt_sigaction", SYS_rt_sigaction, {}, kMayFail},
        {"munmap", SYS_munmap, {0, kRegionSize}},
        {"restart_syscall", SYS_restart_syscall, {}},
        // The new thread, until it runs Python.
        {"rseq", SYS_rseq, {}, kMayFail},
        {"set_robust_list", SYS_set_robust_list, {}, kMayFail},
        {"nanosleep", SYS_nanosleep, {}, kMayFail},
        {"gettid", SYS_gettid, {}},
        {"socketpair", SYS_socketpair, {AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC}},
        {"ppoll", SYS_ppoll, {}},
        {"recvmsg", SYS_recvmsg, {0, 0, MSG_CMSG_CLOEXEC | MSG_DONTWAIT}},
        {"close", SYS_close, {}},
        {"futex", SYS_futex, {0, FUTEX_WAIT_PRIVATE}},
        {"futex", SYS_futex, {0, FUTEX_WAKE_PRIVATE}},
        {"futex", SYS_futex, {0, FUTEX_WAIT_BITSET | FUTEX_PRIVATE_FLAG}},
        // malloc() there, and what glibc asks about the machine for it.
        {"mmap", SYS_mmap, {0, 128 << 20, PROT_NONE, kPrivate | MAP_NORESERVE, kNoFile}},
        {"mmap", SYS_mmap, {0, 1 << 20, kData, kPrivate, kNoFile}},
        {"brk", SYS_brk, {}, kMayFail},
        {"sched_getaffinity", SYS_sched_getaffinity, {}, kMayFail},
        {"prlimit64", SYS_prlimit64, {0, RLIMIT_STACK}, kMayFail}, // hook_eval.cpp, too
        {"sched_yield", SYS_sched_yield, {}, kMayFail},
        {"getrandom", SYS_getrandom, {}, kMayFail},
        {"mremap", SYS_mremap, {}, kMayFail},
        // dlopen() of the core and its libraries.
        {"openat", SYS_openat, {static_cast<uint64_t>(AT_FDCWD), 0, O_RDONLY | O_CLOEXEC}},
        {"read", SYS_read, {}},
        {"pread64", SYS_pread64, {}},
        {"fstat", SYS_fstat, {}},
        {"newfstatat", SYS_newfstatat, {}},
        {"mmap of a file", SYS_mmap, {0, 4096, PROT_READ, kFile}},
        {"mmap of a file to execute", SYS_mmap, {0, 4096, kCode, kFile | MAP_FIXED}},
        {"mmap of a file", SYS_mmap, {0, 4096, kData, kFile | MAP_FIXED}},
        {"mprotect", SYS_mprotect, {0, 4096, PROT_READ}},
        // The core: the session, its table, a delay, the end.
        {"getpid", SYS_getpid, {}},
        {"eventfd2", SYS_eventfd2, {}},
        {"fcntl for the table's seals", SYS_fcntl, {0, F_GET_SEALS}},
        {"mmap of the table", SYS_mmap, {0, 4096, kData, MAP_SHARED}},
        {"mmap of the table's settings", SYS_mmap, {0, 4096, PROT_READ, MAP_SHARED}},
        {kPollName, kPollCall, {}},
        {"recvmsg", SYS_recvmsg, {0, 0, MSG_CMSG_CLOEXEC}},
        {"recvfrom", SYS_recvfrom, {}},
        {"sendto", SYS_sendto, {0, 0, 0, MSG_NOSIGNAL}},
        {"write", SYS_write, {}},
        {"clock_gettime", SYS_clock_gettime, {}},
        {"madvise", SYS_madvise, {0, kThreadStack, MADV_DONTNEED}, kMayFail},
        {"exit", SYS_exit, {}},
    };
    return calls;
}

const std::vector<NeededCall>& calls_without_proc() {
    static const std::vector<NeededCall> calls = [] {
        std::vector<NeededCall> all = needed_calls();
        all.push_back({"unshare", SYS_unshare, {CLONE_FS}});
        all.push_back({"fchdir", SYS_fchdir, {}});
        // dlopen() of a relative path asks where it is, and looks itself, as nothing leads there.
        all.push_back({"getcwd", SYS_getcwd, {}});
        all.push_back({"getdents64", SYS_getdents64, {}});
        all.push_back({"lseek", SYS_lseek, {}});
        all.push_back({"fcntl for the mode of a file", SYS_fcntl, {0, F_GETFL}});
        return all;
    }();
    return calls;
}

const std::vector<NeededCall>& mapper_calls() {
    constexpr bool kMayFail = true; // it is answered, and refused, with the errno
    static const std::vector<NeededCall> calls = [] {
        std::vector<NeededCall> all = needed_calls();
        all.push_back({"membarrier",
                       SYS_membarrier,
                       {MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED_SYNC_CORE},
                       kMayFail});
        all.push_back(
            {"membarrier", SYS_membarrier, {MEMBARRIER_CMD_PRIVATE_EXPEDITED_SYNC_CORE}, kMayFail});
        all.push_back({"prctl for the clock", SYS_prctl, {PR_GET_TSC}, kMayFail});
        all.push_back({"prctl for the name of a thread", SYS_prctl, {PR_GET_NAME}, kMayFail});
        all.push_back({"mmap to execute",
                       SYS_mmap,
                       {0, 1 << 20, PROT_READ | PROT_EXEC,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, ~uint64_t{0}},
                       kMayFail});
        all.push_back({"madvise", SYS_madvise, {0, 4096, MADV_WIPEONFORK}, kMayFail});
        return all;
    }();
    return calls;
}

} // namespace speedbump::inject
