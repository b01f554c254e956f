// SPDX-License-Identifier: MIT
#include "process/sightings.h"

#include <fcntl.h>
#include <fmt/format.h>

#include <algorithm>
#include <string_view>
#include <utility>

#include "util/fd.h"
#include "util/file.h"

namespace speedbump::process {
namespace {

constexpr size_t kMaxPaths = 64; // of one file: it may have 65,000 links

void add_path(std::vector<std::string>& paths, std::string path) {
    if (paths.size() < kMaxPaths && std::ranges::find(paths, path) == paths.end())
        paths.push_back(std::move(path));
}

} // namespace

std::vector<Alias> aliases_below(const std::string& root,
                                 const std::vector<std::string>& prefixes) {
    std::vector<Alias> aliases;
    for (const std::string& prefix : prefixes) {
        const Fd fd = open_below(root, prefix, O_PATH);
        if (!fd.valid()) continue;
        const std::string real = path_of_descriptor(fd);
        if (!real.empty() && real != prefix) aliases.push_back({real, prefix});
    }
    return aliases;
}

std::map<FileKey, SeenFile> files_with_code(pid_t pid, const std::vector<Mapping>& mappings,
                                            const std::vector<Alias>& aliases,
                                            IfuncResolver& ifuncs) {
    const std::string root_link = fmt::format("/proc/{}/root", pid);
    const std::string executable = read_link(fmt::format("/proc/{}/exe", pid));
    const std::string root = root_of(pid);
    std::map<FileKey, SeenFile> seen;
    for (const Mapping& mapping : mappings) {
        if (!mapping.executable) continue;
        auto [found, is_new] =
            seen.try_emplace({mapping.device, mapping.inode},
                             SeenFile{&mapping, Sighting{{}, false, root_link, &ifuncs}});
        found->second.code_bytes += mapping.end - mapping.start;
        Sighting& sighting = found->second.sighting;
        add_path(sighting.paths, path_within(root, mapping.path));
        add_path(sighting.paths, mapping.path);
        for (const Alias& alias : aliases) {
            const std::string_view path = mapping.path;
            if (!path.starts_with(alias.real) || mapping.deleted) continue;
            const std::string_view rest = path.substr(alias.real.size());
            if (rest.empty() || rest.front() == '/')
                add_path(sighting.paths, alias.named + std::string(rest));
        }
        const std::string full = mapping.path + std::string(mapping.deleted ? kDeleted : "");
        if (full == executable) sighting.is_main_executable = true;
    }
    return seen;
}

} // namespace speedbump::process
