// SPDX-License-Identifier: MIT
#include "util/apart.h"

#include <fcntl.h>
#include <linux/sched.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cstring>
#include <fstream>
#include <sstream>
#include <string>

#include "util/fd.h"

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
        std::ifstream file("/proc/self/stat");
        std::string line;
        std::getline(file, line);
        const size_t name_end = line.rfind(')');
        if (name_end == std::string::npos) return Range{};
        std::istringstream words(line.substr(name_end + 1));
        std::string skipped;
        for (int field = 3; field < 48; ++field) words >> skipped;
        uintptr_t begin = 0;
        uintptr_t end = 0;
        words >> begin >> end;
        if (!words || begin == 0 || end <= begin) return Range{};
        return Range{reinterpret_cast<char*>(begin), reinterpret_cast<char*>(end)};
    }();
    return range;
}

// A child of fork(), where that is allowed in another cgroup.
pid_t start_child(const Fd& cgroup, uint64_t flags) {
    clone_args arguments = {};
    arguments.flags = flags;
    if (cgroup.valid()) {
        arguments.flags |= CLONE_INTO_CGROUP;
        arguments.cgroup = static_cast<uint64_t>(cgroup.get());
        const long pid = ::syscall(SYS_clone3, &arguments, sizeof arguments);
        if (pid >= 0) return static_cast<pid_t>(pid);
    }
    return static_cast<pid_t>(::syscall(SYS_clone, flags, 0, 0, 0, 0));
}

bool write_to(const char* path, const char* text) {
    const int file = ::open(path, O_WRONLY | O_CLOEXEC);
    if (file < 0) return false;
    const ssize_t written = ::write(file, text, std::strlen(text));
    ::close(file);
    return written > 0;
}

void step_aside(const char* name, const Range& arguments, bool is_killed_first) {
    ::setsid();
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
    const Fd& cgroup = top_cgroup();
    const Range arguments = command_line();
    static const bool is_killed_first = [] {
        int score = 0;
        return static_cast<bool>(std::ifstream("/proc/self/oom_score_adj") >> score) && score > 0;
    }();
    const pid_t pid = start_child(cgroup, flags);
    if (pid == 0) step_aside(name, arguments, is_killed_first);
    return pid;
}

} // namespace speedbump
