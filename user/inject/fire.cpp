// SPDX-License-Identifier: MIT
#include "inject/fire.h"

namespace speedbump::inject {

using process::RemoteModule;

std::optional<uint64_t> find_in_libc(const std::vector<RemoteModule>& modules,
                                     std::string_view name) {
    std::optional<uint64_t> found;
    for (const RemoteModule& module : modules) {
        if (!module.soname().starts_with("libc.so") &&
            !module.soname().starts_with("libpthread.so"))
            continue;
        if (std::optional<uint64_t> address = module.find(name)) found = address;
    }
    return found;
}

} // namespace speedbump::inject
