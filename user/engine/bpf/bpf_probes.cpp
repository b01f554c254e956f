// SPDX-License-Identifier: MIT
#include <utility>

#include "engine/bpf/bpf_engine.h"

// The probes of the BPF engine as a session holds them.
namespace speedbump::engine {

namespace {

struct HeldLinks : Attachment {
    explicit HeldLinks(Links held) : links(std::move(held)) {}
    Links links;
};

std::string path_of(const FileProbes& probes) {
    return "/proc/self/fd/" + std::to_string(probes.file);
}

std::vector<Probe> list_of(const FileProbes& probes) {
    return {probes.probes.begin(), probes.probes.end()};
}

} // namespace

Result<Attached> BpfEngine::attach(const FileProbes& probes, std::optional<pid_t> only,
                                   std::vector<RefusedProbe>& refused) {
    auto links = only ? attach_narrow(path_of(probes), list_of(probes), *only, refused, probes.set)
                      : attach_wide(path_of(probes), list_of(probes), refused, probes.set);
    if (!links) return std::move(links).error();
    return Attached(std::make_unique<HeldLinks>(std::move(*links)));
}

std::vector<Attached> BpfEngine::attach_each(const FileProbes& probes,
                                             const std::vector<pid_t>& pids) {
    std::vector<Attached> all;
    for (Links& links : attach_narrow(path_of(probes), list_of(probes), pids, probes.set))
        all.push_back(links.empty() ? nullptr : std::make_unique<HeldLinks>(std::move(links)));
    return all;
}

void BpfEngine::release(std::vector<Attached> attachments) {
    std::vector<Links> links;
    for (const Attached& one : attachments)
        if (one) links.push_back(std::move(static_cast<HeldLinks&>(*one).links));
    Links::release_all(std::move(links));
}

} // namespace speedbump::engine
