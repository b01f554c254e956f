// SPDX-License-Identifier: MIT
#include "control/guard.h"

#include <fcntl.h>
#include <unistd.h>

namespace speedbump::control {

void remove_control_files(const Fd& directory, const std::string& path,
                          const std::vector<std::string>& names) {
    for (const std::string& name : names) ::unlinkat(directory.get(), name.c_str(), 0);
    ::rmdir(path.c_str()); // fails while another session has a socket in it
}

Result<Heir> start_control_guard(const Fd& directory, const std::string& path,
                                 const std::vector<std::string>& names) {
    return Heir::start("sb-guard", {directory.get()},
                       [&] { remove_control_files(directory, path, names); });
}

} // namespace speedbump::control
