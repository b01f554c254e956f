// SPDX-License-Identifier: MIT
#include "util/file.h"

#include <fcntl.h>
#include <linux/openat2.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cstdint>

namespace speedbump {

Fd open_below(const Fd& root, const std::string& path, int flags) {
    open_how how = {};
    how.flags = static_cast<uint64_t>(flags | O_CLOEXEC);
    how.resolve = RESOLVE_IN_ROOT | RESOLVE_NO_MAGICLINKS;
    return Fd(
        static_cast<int>(::syscall(SYS_openat2, root.get(), path.c_str(), &how, sizeof(how))));
}

Fd open_below(const std::string& root, const std::string& path, int flags) {
    if (root.empty()) return Fd(::open(path.c_str(), flags | O_CLOEXEC));
    const Fd directory(::open(root.c_str(), O_PATH | O_DIRECTORY | O_CLOEXEC));
    if (!directory.valid()) return Fd();
    return open_below(directory, path, flags);
}

} // namespace speedbump
