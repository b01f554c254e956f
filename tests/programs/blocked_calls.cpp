// SPDX-License-Identifier: MIT
// Waits for moments in one kind of system call, again and again, and looks at each result: of the
// calls that an attach may interrupt (user/inject/blocking_call.cpp). A process of its own gives
// what is waited for, once what it gave before was taken.
//
//   blocked_calls        names the kinds, a line each
//   blocked_calls KIND   "ready", and at SIGTERM "ROUNDS WRONG"; WRONG is of how many the result
//   was
#include <fcntl.h>
#include <linux/futex.h>
#include <poll.h>
#include <pty.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/inotify.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/select.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/timerfd.h>
#include <sys/uio.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <termios.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <functional>
#include <map>
#include <string>

namespace {

volatile sig_atomic_t over = 0;
volatile long steps = 0;

constexpr long kMoment = 200'000; // ns
constexpr int kEpollMs = 5;

// What the two processes share.
struct Shared {
    std::atomic<uint32_t> taken; // numbers of the giver's
    std::atomic<uint32_t> word;  // the number that was given last, for a futex
};
Shared* shared;

[[noreturn]] void die(const char* what) {
    std::perror(what);
    std::exit(1);
}

int checked(long result, const char* what) {
    if (result < 0) die(what);
    return static_cast<int>(result);
}

int64_t now_ns() {
    timespec now{};
    clock_gettime(CLOCK_MONOTONIC, &now);
    return int64_t{now.tv_sec} * 1'000'000'000 + now.tv_nsec;
}

// Has another process give the numbers 1, 2, ... by `give`, each a moment after the one before it
// was taken. It ends with this one.
void have_given(const std::function<void(uint32_t)>& give) {
    const pid_t parent = getpid();
    if (checked(fork(), "fork") != 0) return;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    std::srand(static_cast<unsigned>(parent));
    for (uint32_t number = 1; getppid() == parent; ++number) {
        while (shared->taken != number - 1) usleep(20);
        usleep(static_cast<useconds_t>(std::rand() % 300));
        give(number);
    }
    std::_Exit(0);
}

// One round: waits once, and says whether what came is right.
using Round = std::function<bool()>;

// For something of the giver's: `number_of` waits for it and tells its number.
Round takes(const std::function<uint32_t()>& number_of) {
    return [number_of] {
        const uint32_t number = number_of();
        return number == ++shared->taken;
    };
}

// For a time-out of so many ns: `wait` is to last that long, and to return this.
Round times_out(int64_t least, long wanted, const std::function<long()>& wait) {
    return [=] {
        const int64_t begun = now_ns();
        const long result = wait();
        return result == wanted && now_ns() - begun >= least;
    };
}

struct Ends {
    int read, write;
};

Ends make_pipe() {
    int ends[2];
    checked(pipe(ends), "pipe");
    return {ends[0], ends[1]};
}

Ends make_sockets(int type) {
    int ends[2];
    checked(socketpair(AF_UNIX, type, 0, ends), "socketpair");
    return {ends[0], ends[1]};
}

// The giver writes its numbers there.
int given(Ends ends) {
    have_given(
        [ends](uint32_t number) { checked(write(ends.write, &number, sizeof number), "write"); });
    return ends.read;
}

// By a call that reads into this; as a number, 0 when it fails.
uint32_t number_by(const std::function<long(uint32_t*)>& call) {
    uint32_t number = 0;
    return call(&number) == static_cast<long>(sizeof number) ? number : 0;
}

Round reads(int fd) {
    return takes([fd] {
        return number_by([fd](uint32_t* number) { return read(fd, number, sizeof *number); });
    });
}

// Waits until a descriptor can be read, by `wait`, which returns 1 then.
Round becomes_ready(int fd, const std::function<long(int)>& wait) {
    return takes([=]() -> uint32_t {
        if (wait(fd) != 1) return 0;
        return number_by([fd](uint32_t* number) { return read(fd, number, sizeof *number); });
    });
}

Round polls(long time_out_ns) {
    const int fd = given(make_pipe());
    return becomes_ready(fd, [time_out_ns](int one) {
        pollfd wanted{one, POLLIN, 0};
        const timespec limit{3600, time_out_ns};
        return syscall(SYS_ppoll, &wanted, 1, time_out_ns != 0 ? &limit : nullptr, nullptr, 0);
    });
}

int epoll_of(int fd) {
    const int epoll = checked(epoll_create1(0), "epoll_create1");
    epoll_event event{EPOLLIN, {}};
    checked(epoll_ctl(epoll, EPOLL_CTL_ADD, fd, &event), "epoll_ctl");
    return epoll;
}

Round epolls(int time_out_ms) {
    const int fd = given(make_pipe()), epoll = epoll_of(fd);
    return becomes_ready(fd, [epoll, time_out_ms](int) {
        epoll_event event{};
        return syscall(SYS_epoll_pwait, epoll, &event, 1, time_out_ms, nullptr, 8);
    });
}

Round sleeps(clockid_t clock, int flags) {
    return times_out(kMoment, 0, [=] {
        timespec time{0, kMoment};
        if (flags == TIMER_ABSTIME) {
            const int64_t end = now_ns() + kMoment;
            time = {end / 1'000'000'000, end % 1'000'000'000};
        }
        return syscall(SYS_clock_nanosleep, clock, flags, &time, nullptr);
    });
}

Round waits_for_child(bool by_waitid) {
    return [by_waitid] {
        static int number = 0;
        number = (number + 1) % 100;
        const pid_t child = checked(fork(), "fork");
        if (child == 0) {
            usleep(100);
            std::_Exit(number);
        }
        if (by_waitid) {
            siginfo_t info{};
            const long result = syscall(SYS_waitid, P_PID, child, &info, WEXITED, nullptr);
            return result == 0 && info.si_pid == child && info.si_status == number;
        }
        int status = 0;
        const long result = syscall(SYS_wait4, child, &status, 0, nullptr);
        return result == child && WIFEXITED(status) && WEXITSTATUS(status) == number;
    };
}

Round futex_is_woken() {
    have_given([](uint32_t number) {
        shared->word = number;
        syscall(SYS_futex, &shared->word, FUTEX_WAKE, 1, nullptr, nullptr, 0);
    });
    return takes([]() -> uint32_t {
        const uint32_t taken = shared->taken;
        while (shared->word == taken && over == 0)
            if (syscall(SYS_futex, &shared->word, FUTEX_WAIT_BITSET, taken, nullptr, nullptr,
                        FUTEX_BITSET_MATCH_ANY) != 0 &&
                errno != EAGAIN)
                return 0;
        return shared->word;
    });
}

Round futex_times_out() {
    return times_out(kMoment, ETIMEDOUT, []() -> long {
        const int64_t end = now_ns() + kMoment;
        const timespec time{end / 1'000'000'000, end % 1'000'000'000};
        static uint32_t word = 0;
        return syscall(SYS_futex, &word, FUTEX_WAIT_BITSET | FUTEX_PRIVATE_FLAG, 0, &time, nullptr,
                       FUTEX_BITSET_MATCH_ANY) == 0
                   ? 0
                   : errno;
    });
}

// Of all of them: how often it has ended by now.
Round reads_a_timer() {
    const int timer = checked(timerfd_create(CLOCK_MONOTONIC, 0), "timerfd_create");
    const itimerspec each{{0, kMoment}, {0, kMoment}};
    const int64_t begun = now_ns();
    checked(timerfd_settime(timer, 0, &each, nullptr), "timerfd_settime");
    return [=, all = int64_t{0}]() mutable {
        uint64_t ended = 0;
        if (read(timer, &ended, sizeof ended) != sizeof ended) return false;
        all += static_cast<int64_t>(ended);
        const int64_t due = (now_ns() - begun) / kMoment;
        return ended > 0 && all <= due;
    };
}

Round reads_events() {
    const int events = checked(eventfd(0, 0), "eventfd");
    have_given([events](uint32_t number) {
        const uint64_t value = number;
        checked(write(events, &value, sizeof value), "write");
    });
    return takes([events]() -> uint32_t {
        uint64_t value = 0;
        return read(events, &value, sizeof value) == sizeof value ? static_cast<uint32_t>(value)
                                                                  : 0;
    });
}

// The giver sends signals with its numbers, which are blocked.
sigset_t given_signals() {
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, SIGRTMIN);
    sigprocmask(SIG_BLOCK, &set, nullptr);
    const pid_t here = getpid();
    have_given([here](uint32_t number) {
        sigval value{};
        value.sival_int = static_cast<int>(number);
        checked(sigqueue(here, SIGRTMIN, value), "sigqueue");
    });
    return set;
}

Round waits_for_signals() {
    return takes([set = given_signals()]() -> uint32_t {
        siginfo_t info{};
        return syscall(SYS_rt_sigtimedwait, &set, &info, nullptr, 8) == SIGRTMIN
                   ? static_cast<uint32_t>(info.si_value.sival_int)
                   : 0;
    });
}

Round reads_signals() {
    const sigset_t set = given_signals();
    const int signals = checked(signalfd(-1, &set, 0), "signalfd");
    return takes([signals]() -> uint32_t {
        signalfd_siginfo info{};
        return read(signals, &info, sizeof info) == sizeof info
                   ? static_cast<uint32_t>(info.ssi_int)
                   : 0;
    });
}

// The name of a file that is made and removed again says which one it is.
Round reads_changes_of_files() {
    char folder[] = "blocked-calls-XXXXXX"; // where it was started
    if (mkdtemp(folder) == nullptr) die("mkdtemp");
    const int notices = checked(inotify_init1(0), "inotify_init1");
    checked(inotify_add_watch(notices, folder, IN_CREATE), "inotify_add_watch");
    have_given([path = std::string(folder)](uint32_t number) {
        const std::string name = path + "/" + std::to_string(number);
        close(checked(open(name.c_str(), O_CREAT | O_WRONLY, 0600), "open"));
        unlink(name.c_str());
    });
    return takes([notices]() -> uint32_t {
        alignas(inotify_event) char buffer[512];
        if (read(notices, buffer, sizeof buffer) < static_cast<long>(sizeof(inotify_event)))
            return 0;
        inotify_event event;
        std::memcpy(&event, buffer, sizeof event);
        return static_cast<uint32_t>(std::atol(buffer + sizeof event));
    });
}

Round reads_lines() {
    int terminal = -1, program = -1;
    checked(openpty(&terminal, &program, nullptr, nullptr, nullptr), "openpty");
    termios modes{};
    tcgetattr(program, &modes);
    modes.c_lflag &= ~static_cast<tcflag_t>(ECHO);
    tcsetattr(program, TCSANOW, &modes);
    have_given([terminal](uint32_t number) {
        const std::string line = std::to_string(number) + "\n";
        checked(write(terminal, line.data(), line.size()), "write");
    });
    return takes([program]() -> uint32_t {
        char line[64] = {};
        return read(program, line, sizeof line - 1) > 0 ? static_cast<uint32_t>(std::atol(line))
                                                        : 0;
    });
}

Round accepts() {
    const int listener = checked(socket(AF_UNIX, SOCK_STREAM, 0), "socket");
    sockaddr_un address{AF_UNIX, {}};
    socklen_t size = sizeof address.sun_family;
    checked(bind(listener, reinterpret_cast<sockaddr*>(&address), size), "bind"); // any free name
    size = sizeof address;
    getsockname(listener, reinterpret_cast<sockaddr*>(&address), &size);
    checked(listen(listener, 8), "listen");
    have_given([address, size](uint32_t number) {
        const int fd = checked(socket(AF_UNIX, SOCK_STREAM, 0), "socket");
        checked(connect(fd, reinterpret_cast<const sockaddr*>(&address), size), "connect");
        checked(write(fd, &number, sizeof number), "write");
        close(fd);
    });
    return takes([listener]() -> uint32_t {
        const long fd = syscall(SYS_accept4, listener, nullptr, nullptr, 0);
        if (fd < 0) return 0;
        uint32_t number = 0;
        const bool is_whole = read(static_cast<int>(fd), &number, sizeof number) == sizeof number;
        close(static_cast<int>(fd));
        return is_whole ? number : 0;
    });
}

Round receives_messages(int type) {
    const int fd = given(make_sockets(type));
    return takes([fd] {
        return number_by([fd](uint32_t* number) {
            iovec part{number, sizeof *number};
            msghdr message{};
            message.msg_iov = &part;
            message.msg_iovlen = 1;
            return syscall(SYS_recvmsg, fd, &message, 0);
        });
    });
}

Round receives(int type) {
    const int fd = given(make_sockets(type));
    return takes([fd] {
        return number_by([fd](uint32_t* number) {
            return syscall(SYS_recvfrom, fd, number, sizeof *number, 0, nullptr, nullptr);
        });
    });
}

Round reads_into_parts() {
    const int fd = given(make_pipe());
    return takes([fd] {
        return number_by([fd](uint32_t* number) {
            char* bytes = reinterpret_cast<char*>(number);
            const iovec parts[] = {{bytes, 1}, {bytes + 1, 3}};
            return readv(fd, parts, 2);
        });
    });
}

Round selects(bool has_limit) {
    const int fd = given(make_pipe());
    return becomes_ready(fd, [has_limit](int one) {
        fd_set set;
        FD_ZERO(&set);
        FD_SET(one, &set);
        timespec limit{3600, 0}; // the kernel writes to it what is left
        return syscall(SYS_pselect6, one + 1, &set, nullptr, nullptr, has_limit ? &limit : nullptr,
                       nullptr);
    });
}

const std::map<std::string, std::function<Round()>> kKinds = {
    {"accept4", accepts},
    {"clock_nanosleep", [] { return sleeps(CLOCK_MONOTONIC, 0); }},
    {"clock_nanosleep-until", [] { return sleeps(CLOCK_MONOTONIC, TIMER_ABSTIME); }},
    {"epoll_pwait", [] { return epolls(-1); }},
    {"epoll_pwait-limit", [] { return epolls(3'600'000); }},
    {"epoll_pwait-time",
     [] {
         const int epoll = epoll_of(make_pipe().read);
         // It counts in ms, and what is left is rounded.
         return times_out((kEpollMs - 1) * 1'000'000, 0, [epoll] {
             epoll_event event{};
             return syscall(SYS_epoll_pwait, epoll, &event, 1, kEpollMs, nullptr, 8);
         });
     }},
    {"epoll_pwait2",
     [] {
         const int fd = given(make_pipe()), epoll = epoll_of(fd);
         return becomes_ready(fd, [epoll](int) {
             epoll_event event{};
             return syscall(SYS_epoll_pwait2, epoll, &event, 1, nullptr, nullptr, 8);
         });
     }},
    {"futex", futex_is_woken},
    {"futex-time", futex_times_out},
    {"nanosleep",
     [] {
         return times_out(kMoment, 0, [] {
             const timespec time{0, kMoment};
             return syscall(SYS_nanosleep, &time, nullptr);
         });
     }},
    {"ppoll", [] { return polls(0); }},
    {"ppoll-limit", [] { return polls(1); }},
    {"ppoll-time",
     [] {
         return times_out(kMoment, 0, [] {
             const timespec time{0, kMoment};
             return syscall(SYS_ppoll, nullptr, 0, &time, nullptr, 0);
         });
     }},
    {"pselect6", [] { return selects(false); }},
    {"pselect6-limit", [] { return selects(true); }},
    {"read-events", reads_events},
    {"read-files", reads_changes_of_files},
    {"read-lines", reads_lines},
    {"read-pipe", [] { return reads(given(make_pipe())); }},
    {"read-signals", reads_signals},
    {"read-socket", [] { return reads(given(make_sockets(SOCK_STREAM))); }},
    {"read-timer", reads_a_timer},
    {"readv", reads_into_parts},
    {"recvfrom", [] { return receives(SOCK_STREAM); }},
    {"recvfrom-datagram", [] { return receives(SOCK_DGRAM); }},
    {"recvmsg", [] { return receives_messages(SOCK_STREAM); }},
    {"recvmsg-packet", [] { return receives_messages(SOCK_SEQPACKET); }},
    {"rt_sigtimedwait", waits_for_signals},
    {"wait4", [] { return waits_for_child(false); }},
    {"waitid", [] { return waits_for_child(true); }},
};

} // namespace

// What is slowed.
extern "C" [[gnu::noinline]] void step() {
    steps = steps + 1;
}

int main(int count, char** words) {
    if (count < 2) {
        for (const auto& [name, make] : kKinds) std::printf("%s\n", name.c_str());
        return 0;
    }
    const auto kind = kKinds.find(words[1]);
    if (kind == kKinds.end()) return 2;
    void* memory =
        mmap(nullptr, sizeof(Shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) die("mmap");
    shared = new (memory) Shared{};
    const Round round = kind->second();
    struct sigaction end {};
    end.sa_handler = [](int) { over = 1; };
    sigaction(SIGTERM, &end, nullptr);
    std::printf("ready\n");
    std::fflush(stdout);
    long rounds = 0, wrong = 0;
    while (over == 0) {
        step();
        const bool is_right = round();
        if (over != 0) break; // which interrupts a call
        ++rounds;
        wrong += !is_right;
    }
    std::printf("%ld %ld\n", rounds, wrong);
    return 0;
}
