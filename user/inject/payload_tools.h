// SPDX-License-Identifier: MIT
#pragma once

#include <sys/syscall.h>

#include <csignal>
#include <cstdint>

// For the files whose code is copied into targets (payload.h); payload_x86_64.h and
// payload_aarch64.h have what is left out here.
#define PAYLOAD __attribute__((section("speedbump_payload"), used, noinline))
#define PAYLOAD_INLINE static inline __attribute__((always_inline))

namespace {

PAYLOAD_INLINE long raw_call(long number, long a = 0, long b = 0, long c = 0, long d = 0,
                             long e = 0, long f = 0);

struct KernelTime {
    long seconds;
    long nanoseconds;
};

struct KernelPollFd {
    int fd;
    short events;
    short revents;
};

PAYLOAD_INLINE void pause_ns(long nanoseconds) {
    KernelTime time{0, nanoseconds};
    raw_call(SYS_nanosleep, reinterpret_cast<long>(&time), 0);
}

// Whether the other end of a socket is gone; the data that waits is left alone.
PAYLOAD_INLINE bool hung_up(int fd) {
    KernelPollFd poll_fd{fd, 0x2000 /* POLLRDHUP */, 0};
    KernelTime none{0, 0};
    long ready = raw_call(SYS_ppoll, reinterpret_cast<long>(&poll_fd), 1,
                          reinterpret_cast<long>(&none), 0, 8);
    return ready > 0;
}

template <typename F>
PAYLOAD_INLINE F* function(uint64_t address) {
    return reinterpret_cast<F*>(address);
}

constexpr uint64_t kNoHandler = 1; // SIG_DFL and SIG_IGN interrupt nothing

struct KernelAction {
    uint64_t handler, flags, restorer, mask;
};

PAYLOAD_INLINE KernelAction action_of(long signal) {
    KernelAction action{0, 0, 0, 0};
    raw_call(SYS_rt_sigaction, signal, 0, reinterpret_cast<long>(&action), 8);
    return action;
}

// Whether no call fails with EINTR because of a signal.
PAYLOAD_INLINE bool all_handlers_restart() {
    bool all = true;
    for (long number = 1; number <= 64; ++number) {
        const KernelAction action = action_of(number);
        if (action.handler > kNoHandler && !(action.flags & SA_RESTART)) all = false;
    }
    return all;
}

} // namespace
