// SPDX-License-Identifier: MIT
#include "inject/target_lock.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <optional>
#include <string>
#include <thread>

#include "inject/process_state.h"
#include "util/control_directory.h"

namespace speedbump::inject {
namespace {

// Bytes of each process: the first is the lock, the others a queue. Who wants it takes the last of
// them and moves up, so that who has just had it is behind those who wait, and nobody waits for
// more than their turns. The kernel keeps no order: the quickest has a lock that is free.
constexpr int64_t kBytes = 16;
constexpr int64_t kKeyMask = INT64_MAX / kBytes;
// In a row, a millisecond apart: who is next takes it at the first.
constexpr int kLooksAtFree = 200;

// What a process has to itself on this host: the inode of its pidfds from 6.9 on, else when it was
// started and its PID. Two of one key would only take turns.
std::optional<int64_t> key_of(pid_t pid, const Fd& pid_fd) {
    constexpr long kPidFs = 0x50494446; // PID_FS_MAGIC
    constexpr int kPidBits = 22;
    struct statfs system {};
    struct stat info {};
    if (fstatfs(pid_fd.get(), &system) == 0 && system.f_type == kPidFs &&
        fstat(pid_fd.get(), &info) == 0)
        return static_cast<int64_t>(info.st_ino) & kKeyMask;
    const std::optional<uint64_t> start = read_start_ticks(pid);
    if (!start) return std::nullopt;
    return static_cast<int64_t>(*start << kPidBits | static_cast<uint64_t>(pid)) & kKeyMask;
}

struct flock lock_of(int64_t byte, short type) {
    struct flock lock {};
    lock.l_type = type;
    lock.l_whence = SEEK_SET;
    lock.l_start = byte;
    lock.l_len = 1;
    return lock;
}

// 0, or an errno.
int set_lock(const Fd& file, int64_t byte, short type) {
    struct flock lock = lock_of(byte, type);
    return fcntl(file.get(), F_OFD_SETLK, &lock) == 0 ? 0 : errno;
}

bool is_free(const Fd& file, int64_t byte) {
    struct flock lock = lock_of(byte, F_WRLCK);
    return fcntl(file.get(), F_OFD_GETLK, &lock) == 0 && lock.l_type == F_UNLCK;
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
    const int64_t first = *key * kBytes;
    int looks_at_free = 0;
    for (int64_t place = kBytes; place > 0;) { // kBytes: not in the queue yet
        // Who is ahead and stands still, as in a frozen cgroup, does not take what is free.
        const bool is_passed_over = place > 1 && looks_at_free >= kLooksAtFree;
        const int64_t next = is_passed_over ? 0 : place - 1;
        const int error = set_lock(*file, first + next, F_WRLCK);
        if (error == 0) {
            if (place < kBytes) set_lock(*file, first + place, F_UNLCK);
            place = next;
            looks_at_free = 0;
            continue;
        }
        if (error != EAGAIN && error != EACCES && error != EINTR)
            return errno_error(fmt::format("lock process {}", pid), error);
        if (std::chrono::steady_clock::now() > deadline)
            return make_error(ErrorKind::kTimeout,
                              fmt::format("process {}: another attach is under way", pid));
        looks_at_free = is_free(*file, first) ? looks_at_free + 1 : 0;
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    return std::move(*file);
}

Result<Turn> Turn::of(pid_t pid) {
    Fd pid_fd(static_cast<int>(::syscall(SYS_pidfd_open, pid, 0)));
    if (!pid_fd.valid()) return errno_error(fmt::format("process {}", pid), errno);
    return Turn(pid, std::move(pid_fd));
}

Result<Turn> Turn::take(pid_t pid, Clock::time_point deadline) {
    Result<Turn> turn = of(pid);
    if (!turn) return turn;
    Result<Fd> lock = lock_target(pid, turn->pid_fd_, deadline);
    if (!lock) return std::move(lock).error();
    turn->lock_ = std::move(*lock);
    return turn;
}

Result<Turn> Turn::take_if_any(pid_t pid, Clock::time_point deadline) {
    Result<Turn> turn = of(pid);
    if (!turn) return turn;
    Result<Fd> lock = lock_target(pid, turn->pid_fd_, deadline);
    if (!lock && lock.error().kind == ErrorKind::kTimeout) return std::move(lock).error();
    if (lock) turn->lock_ = std::move(*lock);
    return turn;
}

} // namespace speedbump::inject
