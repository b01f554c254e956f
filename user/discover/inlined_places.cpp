// SPDX-License-Identifier: MIT
#include "discover/inlined_places.h"

#include <algorithm>
#include <chrono>
#include <set>
#include <utility>

#include "process/file_identity.h"
#include "process/maps.h"
#include "process/remote_elf.h"
#include "targets/matcher.h"
#include "util/log.h"

namespace speedbump::discover {

namespace {

constexpr std::chrono::milliseconds kInlinedLimit(5000); // for the debug information of a file

} // namespace

std::vector<InlinedPlace> find_inlined(const std::vector<pid_t>& pids,
                                       const targets::TargetsFile& file) {
    std::vector<InlinedPlace> all;
    std::set<process::FileKey> done;
    for (const pid_t pid : pids) {
        const auto modules = process::load_modules(pid);
        const auto mappings = process::read_maps(pid);
        if (!modules || !mappings) continue; // it ended
        for (const process::Mapping& mapping : *mappings) {
            if (!mapping.executable || !done.insert({mapping.device, mapping.inode}).second)
                continue;
            targets::BinaryIdentity identity{mapping.path, "", false};
            for (const process::RemoteModule& module : *modules)
                if (module.contains_code(mapping.start)) {
                    identity.soname = module.soname();
                    identity.is_main_executable = module.is_executable();
                }
            std::vector<const targets::TargetLine*> lines;
            for (const targets::TargetLine& line : file.lines)
                if (targets::binary_matches(line.container, identity)) lines.push_back(&line);
            if (lines.empty()) continue;
            const auto is_wanted = [&lines](const std::vector<std::string_view>& names) {
                return std::any_of(lines.begin(), lines.end(), [&names](const auto* line) {
                    return targets::symbol_matches(*line, {names, 0});
                });
            };
            const auto fd = process::open_mapped_file(pid, mapping);
            if (!fd) continue;
            const elf::DebugSearch search{"/proc/" + std::to_string(pid) + "/root",
                                          elf::DebugSearch{}.directories};
            auto inlined =
                elf::find_inlined(fd->get(), mapping.path, search, is_wanted, kInlinedLimit);
            if (!inlined) {
                log::warning(inlined.error().message);
                continue;
            }
            for (elf::InlinedFunction& function : *inlined)
                all.push_back({mapping.path, std::move(function)});
        }
    }
    return all;
}

} // namespace speedbump::discover
