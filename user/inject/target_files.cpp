// SPDX-License-Identifier: MIT
#include "inject/target_files.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <linux/magic.h>
#include <linux/mount.h>
#include <sched.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/statfs.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <cstddef>
#include <cstring>
#include <optional>
#include <thread>

#include "util/file.h"

namespace speedbump::inject {
namespace {

Fd open_root(pid_t pid) {
    return Fd(::open(fmt::format("/proc/{}/root", pid).c_str(), O_PATH | O_DIRECTORY | O_CLOEXEC));
}

bool is_same_file(const Fd& a, const Fd& b) {
    struct stat one {};
    struct stat other {};
    return fstat(a.get(), &one) == 0 && fstat(b.get(), &other) == 0 && one.st_dev == other.st_dev &&
           one.st_ino == other.st_ino;
}

bool has_proc(const Fd& root) {
    const Fd self = open_below(root, "/proc/self", O_PATH | O_NOFOLLOW);
    struct statfs info {};
    return self.valid() && fstatfs(self.get(), &info) == 0 && info.f_type == PROC_SUPER_MAGIC;
}

// A file system in memory that is mounted nowhere.
Result<Fd> make_detached_directory() {
    const Fd context(static_cast<int>(syscall(SYS_fsopen, "tmpfs", FSOPEN_CLOEXEC)));
    if (!context.valid()) return errno_error("fsopen tmpfs", errno);
    if (syscall(SYS_fsconfig, context.get(), FSCONFIG_SET_STRING, "mode", "0755", 0) != 0 ||
        syscall(SYS_fsconfig, context.get(), FSCONFIG_CMD_CREATE, nullptr, nullptr, 0) != 0)
        return errno_error("fsconfig tmpfs", errno);
    Fd directory(static_cast<int>(syscall(SYS_fsmount, context.get(), FSMOUNT_CLOEXEC,
                                          MOUNT_ATTR_NODEV | MOUNT_ATTR_NOSUID)));
    if (!directory.valid()) return errno_error("fsmount tmpfs", errno);
    return directory;
}

Result<void> copy_into(const Fd& directory, const std::string& name, const Fd& file) {
    const Fd copy(::openat(directory.get(), name.c_str(),
                           O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600));
    if (!copy.valid()) return errno_error("create " + name, errno);
    char buffer[65536];
    for (off_t at = 0;;) {
        const ssize_t got = pread(file.get(), buffer, sizeof(buffer), at);
        if (got == 0) break;
        if (got < 0 || ::write(copy.get(), buffer, static_cast<size_t>(got)) != got)
            return errno_error("copy the core", errno);
        at += got;
    }
    // Behind the back of the umask.
    if (fchmod(copy.get(), 0555) != 0) return errno_error("chmod " + name, errno);
    return {};
}

bool is_own_network(const Fd& name_space) {
    const Fd own(::open("/proc/self/ns/net", O_RDONLY | O_CLOEXEC));
    return own.valid() && is_same_file(own, name_space);
}

} // namespace

Result<std::string> make_token() {
    uint64_t words[2] = {};
    if (getrandom(words, sizeof(words), 0) != sizeof(words)) return errno_error("getrandom", errno);
    return fmt::format("{:016x}{:016x}", words[0], words[1]);
}

Result<CorePlace> place_core(pid_t pid, const std::string& path, const Fd& core) {
    CorePlace place;
    const Fd root = open_root(pid);
    if (!root.valid()) return errno_error(fmt::format("open /proc/{}/root", pid), errno);
    if (path.starts_with('/')) {
        const Fd there = open_below(root, path, O_PATH);
        if (there.valid() && is_same_file(there, core)) {
            place.path = path;
            return place;
        }
    }
    if (has_proc(root)) return place;
    Result<Fd> directory = make_detached_directory();
    if (!directory)
        return std::move(directory.error())
            .with_context(fmt::format("process {}: there is no /proc in its root, so the core "
                                      "has to be brought there",
                                      pid));
    Result<std::string> token = make_token();
    if (!token) return std::move(token.error());
    const std::string name = *token + ".so";
    if (Result<void> copied = copy_into(*directory, name, core); !copied)
        return std::move(copied.error()).with_context(fmt::format("process {}", pid));
    place.directory = std::move(*directory);
    place.path = "./" + name;
    return place;
}

Result<TargetScript> TargetScript::find_place(pid_t pid) {
    const Fd root = open_root(pid);
    if (!root.valid()) return errno_error(fmt::format("open /proc/{}/root", pid), errno);
    TargetScript script;
    script.directory_ = open_below(root, "/tmp", O_PATH | O_DIRECTORY);
    if (!script.directory_.valid()) return errno_error("open its /tmp", errno);
    Result<std::string> token = make_token();
    if (!token) return std::move(token.error());
    script.name_ = ".speedbump-" + *token + ".py";
    script.path_ = "/tmp/" + script.name_;
    return script;
}

Result<void> TargetScript::write(std::string_view text) const {
    const Fd file(::openat(directory_.get(), name_.c_str(),
                           O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0400));
    if (!file.valid()) return errno_error("create a script in its /tmp", errno);
    if (::write(file.get(), text.data(), text.size()) != static_cast<ssize_t>(text.size()) ||
        fchmod(file.get(), 0444) != 0)
        return errno_error("write a script in its /tmp", errno);
    return {};
}

TargetScript::~TargetScript() {
    if (directory_.valid() && !name_.empty()) ::unlinkat(directory_.get(), name_.c_str(), 0);
}

Result<Fd> listen_abstract(pid_t pid, const std::string& name) {
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    if (name.size() + 1 > sizeof(address.sun_path))
        return make_error(ErrorKind::kInvalid, "the socket's name is too long");
    std::memcpy(address.sun_path + 1, name.data(), name.size());
    const auto size = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size());
    const std::string place = fmt::format("/proc/{}/ns/net", pid);
    const Fd name_space(::open(place.c_str(), O_RDONLY | O_CLOEXEC));
    if (!name_space.valid()) return errno_error("open " + place, errno);

    Fd listener;
    std::optional<Error> error;
    const auto listen_here = [&] {
        listener = Fd(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
        if (!listener.valid() ||
            bind(listener.get(), reinterpret_cast<sockaddr*>(&address), size) != 0 ||
            listen(listener.get(), 4) != 0)
            error = errno_error("listen on a socket", errno);
    };
    if (is_own_network(name_space)) {
        listen_here();
    } else { // a thread's name space is its own; a socket stays where it was made
        std::thread([&] {
            if (setns(name_space.get(), CLONE_NEWNET) != 0)
                error = errno_error("enter " + place, errno);
            else
                listen_here();
        }).join();
    }
    if (error) return std::move(*error);
    return listener;
}

} // namespace speedbump::inject
