// SPDX-License-Identifier: MIT
#include "util/control_directory.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>

namespace speedbump {

namespace {

constexpr const char* kOfRoot = "/run/speedbump";

Result<void> make_directory(const std::string& path) {
    // A root that holds little but one program has no /run.
    if (path == kOfRoot && ::mkdir("/run", 0755) != 0 && errno != EEXIST)
        return errno_error("mkdir /run", errno);
    if (::mkdir(path.c_str(), 0700) != 0 && errno != EEXIST)
        return errno_error("mkdir " + path, errno);
    return {};
}

} // namespace

Result<std::string> control_directory() {
    if (::geteuid() == 0) return std::string(kOfRoot);
    const char* runtime = std::getenv("XDG_RUNTIME_DIR");
    if (runtime == nullptr || runtime[0] != '/') {
        return make_error(ErrorKind::kUnsupported, "XDG_RUNTIME_DIR names no directory")
            .with_hint("export XDG_RUNTIME_DIR=/run/user/$(id -u)");
    }
    return std::string(runtime) + "/speedbump";
}

Result<Fd> open_control_directory(const std::string& path, bool create) {
    if (create) {
        if (auto made = make_directory(path); !made) return made.error();
    }
    Fd directory(::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
    if (!directory.valid()) {
        // a symbolic link is ENOTDIR under O_DIRECTORY, and ELOOP without it
        if (errno == ENOTDIR || errno == ELOOP) {
            return make_error(ErrorKind::kPermission, path + " is not a directory")
                .with_hint("see what it is, and remove it: ls -ld " + path);
        }
        return errno_error("open " + path, errno);
    }
    struct stat status = {};
    if (::fstat(directory.get(), &status) != 0) return errno_error("fstat " + path, errno);
    if (status.st_uid != ::geteuid()) {
        return make_error(ErrorKind::kPermission,
                          path + " belongs to user " + std::to_string(status.st_uid))
            .with_hint("see who made it, and remove it: ls -ld " + path);
    }
    if ((status.st_mode & 077) != 0) {
        return make_error(ErrorKind::kPermission, path + " is open to other users")
            .with_hint("chmod 700 " + path);
    }
    return directory;
}

std::string path_in(const Fd& directory, const std::string& name) {
    return "/proc/self/fd/" + std::to_string(directory.get()) + "/" + name;
}

} // namespace speedbump
