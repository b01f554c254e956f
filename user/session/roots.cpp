// SPDX-License-Identifier: MIT
#include "session/roots.h"

#include <linux/magic.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <fstream>
#include <sstream>

#include "abi.h"
#include "process/ownership.h"
#include "util/proc.h"

namespace speedbump::session {

namespace {

Result<uint32_t> find_root(pid_t pid, const std::vector<tree::ListedProcess>& processes,
                           uint32_t own_tgid) {
    const std::string number = std::to_string(pid);
    const auto found = std::find_if(processes.begin(), processes.end(),
                                    [&](const auto& process) { return process.pid == pid; });
    if (found == processes.end()) {
        const std::string leader = status_field(pid, "Tgid");
        if (!leader.empty() && leader != number)
            return make_error(ErrorKind::kNotFound,
                              number + " is a thread of process " + leader + ", not a process")
                .with_hint("use --pid " + leader);
        return make_error(ErrorKind::kNotFound, "no process " + number)
            .with_hint("it may have ended; pgrep -a NAME lists running ones");
    }
    if (found->tgid == own_tgid)
        return make_error(ErrorKind::kUsage, number + " is this speedbump itself");
    if (found->kernel_thread)
        return make_error(ErrorKind::kNotFound, number + " (" + found->command +
                                                    ") is a kernel thread: it runs no user code");
    if (auto ours = process::require_ours({&pid, 1}); !ours) return std::move(ours).error();
    if (status_field(pid, "State").rfind('Z', 0) == 0 && !has_lost_main_thread(pid))
        return make_error(ErrorKind::kNotFound,
                          number + " (" + found->command +
                              ") is a zombie: it has ended and waits for its parent to collect it");
    return found->tgid;
}

std::string cgroup2_mount() {
    std::ifstream mounts("/proc/self/mounts");
    for (std::string line; std::getline(mounts, line);) {
        std::istringstream fields(line);
        std::string device, directory, type;
        fields >> device >> directory >> type;
        if (type == "cgroup2") return directory;
    }
    return "";
}

} // namespace

Result<Roots> find_roots(const SessionOptions& options, const targets::TargetsFile& file,
                         const std::vector<tree::ListedProcess>& processes, uint32_t own_tgid) {
    if (options.cgroup && getuid() != 0)
        return make_error(ErrorKind::kPermission,
                          "--cgroup takes in whoever is in there: that needs root")
            .with_hint("run as root (sudo), or name processes of your own with --pid");
    Roots roots;
    for (const pid_t pid : options.pids) {
        auto tgid = find_root(pid, processes, own_tgid);
        if (!tgid) return std::move(tgid).error();
        roots.bits[*tgid] |= kSessionRoot;
    }
    for (const targets::TargetLine& line : file.lines) {
        if (line.exclude || !line.options.pid) continue;
        const pid_t pid = *line.options.pid;
        if (roots.mask_of_pid.contains(pid)) continue;
        const auto bit = static_cast<unsigned>(roots.mask_of_pid.size() + 2);
        if (bit >= SB_MAX_ROOTS)
            return make_error(ErrorKind::kTargetsFile, file.path + ": more than " +
                                                           std::to_string(SB_MAX_ROOTS - 2) +
                                                           " different pid= values");
        auto tgid = find_root(pid, processes, own_tgid);
        if (!tgid)
            return std::move(tgid).error().with_context(file.path + ":" +
                                                        std::to_string(line.line_number) +
                                                        ": pid=" + std::to_string(pid));
        roots.mask_of_pid[pid] = uint64_t{1} << bit;
        roots.bits[*tgid] |= uint64_t{1} << bit;
    }
    if (roots.bits.empty() && !options.cgroup)
        return make_error(ErrorKind::kUsage, "no process given")
            .with_hint("name one with --pid PID or --cgroup PATH, or pid=N on the targets' lines");
    return roots;
}

Result<uint64_t> cgroup_id(const std::string& path) {
    std::string full = path;
    struct statfs file_system {};
    const bool absolute = !path.empty() && path.front() == '/';
    if (!absolute || statfs(path.c_str(), &file_system) != 0) {
        const std::string mount = cgroup2_mount();
        if (mount.empty())
            return make_error(ErrorKind::kUnsupported, "no cgroup v2 hierarchy is mounted")
                .with_hint("mount -t cgroup2 none /sys/fs/cgroup/unified");
        full = mount + (absolute ? "" : "/") + path;
    }
    if (statfs(full.c_str(), &file_system) != 0) return errno_error("cgroup " + full, errno);
    if (file_system.f_type != CGROUP2_SUPER_MAGIC)
        return make_error(ErrorKind::kUsage, full + " is not a directory of a cgroup v2 hierarchy")
            .with_hint("grep cgroup2 /proc/mounts shows where it is mounted");
    struct stat status {};
    if (stat(full.c_str(), &status) != 0) return errno_error("cgroup " + full, errno);
    return status.st_ino; // kernfs: the inode number is the node's id on 64-bit machines
}

} // namespace speedbump::session
