// SPDX-License-Identifier: MIT
#include "inject/target_lock.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <sys/vfs.h>

#include <cerrno>
#include <cstdint>
#include <optional>
#include <string>
#include <thread>

#include "inject/process_state.h"
#include "util/control_directory.h"

namespace speedbump::inject {
namespace {

constexpr int64_t kOffsetMask = INT64_MAX;

// What a process has to itself on this host: the inode of its pidfds from 6.9 on, else when it was
// started and its PID. Two of one key would only take turns.
std::optional<int64_t> key_of(pid_t pid, const Fd& pid_fd) {
    constexpr long kPidFs = 0x50494446; // PID_FS_MAGIC
    constexpr int kPidBits = 22;
    struct statfs system {};
    struct stat info {};
    if (fstatfs(pid_fd.get(), &system) == 0 && system.f_type == kPidFs &&
        fstat(pid_fd.get(), &info) == 0)
        return static_cast<int64_t>(info.st_ino) & kOffsetMask;
    const std::optional<uint64_t> start = read_start_ticks(pid);
    if (!start) return std::nullopt;
    return static_cast<int64_t>(*start << kPidBits | static_cast<uint64_t>(pid)) & kOffsetMask;
}

Result<Fd> open_lock_file() {
    Result<std::string> path = control_directory();
    if (!path) return std::move(path.error());
    Result<Fd> directory = open_control_directory(*path, true);
    if (!directory) return std::move(directory.error());
    Fd file(
        ::openat(directory->get(), "attach.lock", O_RDWR | O_CREAT | O_NOFOLLOW | O_CLOEXEC, 0600));
    if (!file.valid()) return errno_error("open " + *path + "/attach.lock", errno);
    return file;
}

} // namespace

Result<Fd> lock_target(pid_t pid, const Fd& pid_fd,
                       std::chrono::steady_clock::time_point deadline) {
    Result<Fd> file = open_lock_file();
    if (!file) return std::move(file.error()).with_context("lock a process");
    const std::optional<int64_t> key = key_of(pid, pid_fd);
    if (!key) return errno_error(fmt::format("process {}", pid), ESRCH);
    struct flock lock {};
    lock.l_type = F_WRLCK;
    lock.l_whence = SEEK_SET;
    lock.l_start = *key;
    lock.l_len = 1;
    while (fcntl(file->get(), F_OFD_SETLK, &lock) != 0) {
        if (errno != EAGAIN && errno != EACCES && errno != EINTR)
            return errno_error(fmt::format("lock process {}", pid), errno);
        if (std::chrono::steady_clock::now() > deadline)
            return make_error(ErrorKind::kTimeout,
                              fmt::format("process {}: another attach is under way", pid));
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    return std::move(*file);
}

} // namespace speedbump::inject
