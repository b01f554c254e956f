// SPDX-License-Identifier: MIT
#include "lifecycle/signals.h"

#include <fcntl.h>
#include <sched.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cerrno>

#include "util/clock.h"

namespace speedbump::lifecycle {

namespace {

// A handler has no other way to its state.
std::atomic<int> stop_signal_seen{0};
std::atomic<uint64_t> stop_seen_ns{0}; // when; 0: not yet
std::atomic<int> pipe_end{-1};
std::atomic<pid_t> forward_to{0};
std::array<std::atomic<uint32_t*>, 4> to_zero;
std::atomic<int> zeroing{0}; // handlers that may hold one of these
static_assert(std::atomic<int>::is_always_lock_free && std::atomic<uint64_t>::is_always_lock_free);

// Who asks once may be heard twice: a launcher (sudo, timeout) passes on what the terminal has sent
// to it and to this program.
constexpr uint64_t kSameRequest = 500'000'000; // ns

constexpr std::array<int, 3> kStop = {SIGINT, SIGTERM, SIGHUP};
constexpr std::array<int, 5> kOthers = {SIGQUIT, SIGUSR1, SIGUSR2, SIGCONT, SIGCHLD};

bool asks_to_stop(int signal) {
    return signal == SIGINT || signal == SIGTERM || signal == SIGHUP;
}

void handle(int signal, siginfo_t* info, void*) {
    const int saved_errno = errno;
    const pid_t child = forward_to;
    const bool sent_to_us_alone = info->si_code <= 0;
    if (child > 0 && signal != SIGCHLD && sent_to_us_alone) ::kill(child, signal);
    if (asks_to_stop(signal)) {
        const uint64_t now = monotonic_ns();
        uint64_t before = 0;
        if (stop_seen_ns.compare_exchange_strong(before, now)) {
            stop_signal_seen = signal;
            ++zeroing;
            for (const auto& word : to_zero)
                if (uint32_t* const at = word) __atomic_store_n(at, 0u, __ATOMIC_RELEASE);
            --zeroing;
        } else if (now >= before + kSameRequest) {
            ::_exit(128 + signal);
        }
    }
    const char byte = 0;
    // a full pipe is readable already
    [[maybe_unused]] const ssize_t written = ::write(pipe_end, &byte, 1);
    errno = saved_errno;
}

Result<void> set_handler(int signal) {
    struct sigaction action = {};
    if (signal == SIGHUP) {
        if (::sigaction(signal, nullptr, &action) == 0 && action.sa_handler == SIG_IGN) return {};
        action = {};
    }
    action.sa_sigaction = handle;
    action.sa_flags = SA_SIGINFO | (signal == SIGCHLD ? SA_NOCLDSTOP : 0);
    sigemptyset(&action.sa_mask);
    if (::sigaction(signal, &action, nullptr) != 0) return errno_error("sigaction", errno);
    return {};
}

} // namespace

Result<Signals> Signals::install() {
    std::array<int, 2> ends = {};
    if (::pipe2(ends.data(), O_CLOEXEC | O_NONBLOCK) != 0) return errno_error("pipe", errno);
    Signals signals;
    signals.read_end_ = Fd(ends[0]);
    signals.write_end_ = Fd(ends[1]);
    pipe_end = ends[1];
    stop_signal_seen = 0;
    stop_seen_ns = 0;
    for (const int signal : kStop) {
        if (auto done = set_handler(signal); !done) return std::move(done).error();
    }
    return signals;
}

Result<Signals> Signals::install_and_forward(pid_t child) {
    forward_to = child;
    auto signals = install();
    if (!signals) return signals;
    for (const int signal : kOthers) {
        if (auto done = set_handler(signal); !done) return std::move(done).error();
    }
    return signals;
}

Signals::~Signals() {
    if (!write_end_.valid()) return;
    for (const int signal : kStop) ::signal(signal, SIG_DFL);
    for (const int signal : kOthers) ::signal(signal, SIG_DFL);
    pipe_end = -1;
    forward_to = 0;
}

void Signals::drain() {
    std::array<char, 64> bytes;
    while (::read(read_end_.get(), bytes.data(), bytes.size()) > 0) {
    }
}

int Signals::stop_signal() const {
    return stop_signal_seen;
}

void Signals::zero_on_stop(std::span<uint32_t* const> words) {
    for (size_t i = 0; i < to_zero.size(); ++i) to_zero[i] = i < words.size() ? words[i] : nullptr;
    while (zeroing != 0) ::sched_yield(); // the memory of those before may go now
    if (stop_signal_seen == 0) return;
    for (uint32_t* const word : words) __atomic_store_n(word, 0u, __ATOMIC_RELEASE);
}

void Signals::stop_forwarding() {
    forward_to = 0;
}

} // namespace speedbump::lifecycle
