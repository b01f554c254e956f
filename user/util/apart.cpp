// SPDX-License-Identifier: MIT
#include "util/apart.h"

#include <fcntl.h>
#include <linux/sched.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <fstream>
#include <sstream>
#include <string>

#include "util/fd.h"
#include "util/proc.h"

namespace speedbump {

namespace {

// The top of the cgroup hierarchy, as far as it can be seen from here: no limit and no kill of a
// service reaches what is in there, nor of a container, unless this program is in its cgroup
// namespace: then what is seen as the top is the container's own. Invalid where there is no cgroup
// v2.
const Fd& top_cgroup() {
    static const Fd directory = [] {
        std::ifstream mounts("/proc/self/mountinfo");
        for (std::string line; std::getline(mounts, line);) {
            if (line.find(" - cgroup2 ") == std::string::npos) continue;
            std::istringstream words(line);
            std::string place;
            for (int i = 0; i < 5; ++i) words >> place;
            return Fd(::open(place.c_str(), O_PATH | O_DIRECTORY | O_CLOEXEC));
        }
        return Fd();
    }();
    return directory;
}

struct Range {
    char* begin = nullptr;
    char* end = nullptr;
};

// Where this program's command line lies, which /proc shows from there. Empty if unknown.
Range command_line() {
    static const Range range = [] {
        constexpr size_t kBegin = 48, kEnd = 49; // fields
        const auto stat = read_stat("/proc/self/stat");
        const uintptr_t begin = stat ? stat->field(kBegin) : 0;
        const uintptr_t end = stat ? stat->field(kEnd) : 0;
        if (begin == 0 || end <= begin) return Range{};
        return Range{reinterpret_cast<char*>(begin), reinterpret_cast<char*>(end)};
    }();
    return range;
}

// A child of fork() in another cgroup; -1 where that is not allowed.
pid_t start_in(const Fd& cgroup, uint64_t flags) {
    clone_args arguments = {};
    arguments.flags = flags | CLONE_INTO_CGROUP;
    arguments.cgroup = static_cast<uint64_t>(cgroup.get());
    return static_cast<pid_t>(::syscall(SYS_clone3, &arguments, sizeof arguments));
}

// Whether a child can begin in the top cgroup and live. Linux 6.18 kills one whose parent is in a
// cgroup that was killed before the parent entered it: cgroup_css_set_fork() compares the count of
// kills of the one cgroup with that of the other.
bool can_start_at_top() {
    static const bool can = [] {
        if (!top_cgroup().valid()) return false;
        const pid_t pid = start_in(top_cgroup(), 0);
        if (pid == 0) ::_exit(0);
        int status = 0;
        while (pid > 0 && ::waitpid(pid, &status, __WALL) < 0 && errno == EINTR) {
        }
        return pid > 0 && !WIFSIGNALED(status);
    }();
    return can;
}

pid_t start_child(uint64_t flags) {
    if (can_start_at_top()) {
        const pid_t pid = start_in(top_cgroup(), flags);
        if (pid >= 0) return pid;
    }
    return static_cast<pid_t>(::syscall(SYS_clone, flags, 0, 0, 0, 0));
}

bool write_to(const char* path, const char* text, int directory = AT_FDCWD) {
    const int file = ::openat(directory, path, O_WRONLY | O_CLOEXEC);
    if (file < 0) return false;
    const ssize_t written = ::write(file, text, std::strlen(text));
    ::close(file);
    return written > 0;
}

void step_aside(const char* name, const Range& arguments, bool is_killed_first) {
    // Not a session of its own: the kernel shares the CPUs between sessions first
    // (sched_autogroup), and a new one waits long for its share beside a busy one that has a high
    // priority.
    ::setpgid(0, 0);
    // Only then, as a move waits for every fork and exit of the machine.
    if (!can_start_at_top() && top_cgroup().valid())
        write_to("cgroup.procs", "0", top_cgroup().get());
    ::prctl(PR_SET_NAME, name);
    const size_t length = std::strlen(name) + 1;
    const auto room = static_cast<size_t>(arguments.end - arguments.begin);
    if (room >= length) {
        std::memset(arguments.begin, 0, room);
        std::memcpy(arguments.begin, name, length);
    }
    // This takes CAP_SYS_RESOURCE; without it a program that is to be killed first stays that no
    // more.
    if (!write_to("/proc/self/oom_score_adj", "-1000") && is_killed_first)
        write_to("/proc/self/oom_score_adj", "0");
}

} // namespace

pid_t fork_apart(const char* name, uint64_t flags) {
    const Range arguments = command_line();
    static const bool is_killed_first = [] {
        int score = 0;
        return static_cast<bool>(std::ifstream("/proc/self/oom_score_adj") >> score) && score > 0;
    }();
    const pid_t pid = start_child(flags);
    if (pid == 0) step_aside(name, arguments, is_killed_first);
    return pid;
}

} // namespace speedbump
