// SPDX-License-Identifier: MIT
#include "discover/survey_candidates.h"

#include <algorithm>
#include <iterator>
#include <tuple>
#include <utility>

namespace speedbump::discover {

namespace {

// Bytes of code up to which a file is read although no stack showed it: larger ones take time for
// functions that hardly anybody calls.
constexpr uint64_t kSmallFile = 1 << 20;

} // namespace

Result<void> SurveyCandidates::look_at(pid_t pid, const process::Resolver::WantsFile& wants) {
    const auto note = [&](const std::string& path, uint64_t code_bytes) {
        const bool is_wanted = wants(path, code_bytes);
        if (!is_wanted) not_wanted_.insert(path);
        return is_wanted;
    };
    auto findings = resolver_.look_at_process(
        pid, wants ? process::Resolver::WantsFile(note) : process::Resolver::WantsFile());
    if (!findings && findings.error().kind == ErrorKind::kNotFound) return {}; // it ended
    if (!findings) return std::move(findings).error();
    files_[pid] = std::move(findings->files);
    if (candidates_.empty())
        candidates_ = std::move(findings->candidates);
    else
        std::move(findings->candidates.begin(), findings->candidates.end(),
                  std::back_inserter(candidates_));
    std::move(findings->skipped.begin(), findings->skipped.end(), std::back_inserter(skipped_));
    return {};
}

process::Resolver::WantsFile SurveyCandidates::worth_reading(const stacks::Profile& seen) {
    std::set<std::string> paths;
    for (const auto& [key, use] : seen.native_functions()) paths.insert(key.path);
    if (paths.empty()) return nullptr; // there were no stacks to go by
    return [paths = std::move(paths)](const std::string& path, uint64_t code_bytes) {
        return code_bytes <= kSmallFile || paths.contains(path);
    };
}

void SurveyCandidates::keep_processes(const std::set<pid_t>& pids) {
    std::erase_if(files_, [&](const auto& one) { return !pids.contains(one.first); });
}

std::set<std::string> SurveyCandidates::paths() const {
    std::set<std::string> paths;
    for (const auto& [pid, files] : files_)
        for (const process::FileKey& key : files) paths.insert(resolver_.path(key));
    return paths;
}

SurveyCandidates::Ordered SurveyCandidates::take_ordered(const stacks::Profile& seen,
                                                         size_t max_unseen, size_t max) {
    struct RankedFile {
        size_t rank = SIZE_MAX;
        std::map<uint64_t, size_t> functions; // their ranks by the offsets of their entries
        bool is_watched = false;
    };
    std::map<std::string, RankedFile> by_path;
    size_t next = 0;
    for (const stacks::Profile::NativeKey* key : seen.busiest_native()) {
        RankedFile& file = by_path[key->path];
        file.rank = std::min(file.rank, next);
        file.functions.try_emplace(key->entry_offset, next++);
    }
    std::set<process::FileKey> watched;
    for (const auto& [pid, files] : files_) watched.insert(files.begin(), files.end());
    std::map<process::FileKey, RankedFile> by_file;
    const auto file_of = [&](const process::FileKey& key) -> const RankedFile& {
        const auto [found, is_new] = by_file.try_emplace(key);
        if (!is_new) return found->second;
        const auto ranked = by_path.find(resolver_.path(key));
        if (ranked != by_path.end()) found->second = ranked->second;
        found->second.is_watched = watched.contains(key);
        return found->second;
    };
    using Ranked = std::tuple<size_t, size_t, size_t>; // its own, its file's, where it is now
    std::vector<Ranked> order;
    Ordered ordered;
    for (size_t i = 0; i < candidates_.size(); ++i) {
        const process::Candidate& candidate = candidates_[i];
        const RankedFile& file = file_of(candidate.file);
        const auto own = file.functions.find(candidate.entry_offset);
        const size_t rank = own == file.functions.end() ? SIZE_MAX : own->second;
        if (file.is_watched)
            order.emplace_back(rank, file.rank, i);
        else if (rank != SIZE_MAX)
            ordered.elsewhere.emplace_back(resolver_.path(candidate.file), candidate.entry_offset);
        if (file.is_watched && rank != SIZE_MAX) ++ordered.seen;
    }
    const size_t most = max_unseen < max ? std::min(ordered.seen + max_unseen, max) : max;
    if (order.size() > most) {
        ordered.left_out = order.size() - most;
        std::nth_element(order.begin(), order.begin() + static_cast<std::ptrdiff_t>(most),
                         order.end());
        order.resize(most);
        ordered.seen = std::min(ordered.seen, most);
    }
    std::sort(order.begin(), order.end());
    for (const Ranked& one : order)
        ordered.candidates.push_back(std::move(candidates_[std::get<2>(one)]));
    candidates_ = {};
    return ordered;
}

std::set<FunctionPlace> seen_elsewhere(const stacks::Profile& seen, const std::set<pid_t>& pids) {
    const stacks::CallTree& tree = seen.tree();
    std::vector<bool> is_here(tree.frames().size());
    for (const auto& [place, count] : tree.counts()) {
        if (!pids.contains(tree.threads()[place.first].pid)) continue;
        for (uint32_t node = place.second; node != stacks::CallTree::kRoot;
             node = tree.nodes()[node].parent)
            is_here[tree.nodes()[node].frame] = true;
    }
    std::set<FunctionPlace> elsewhere;
    for (const auto& [key, use] : seen.native_functions())
        if (!is_here[use.frame]) elsewhere.emplace(key.path, key.entry_offset);
    return elsewhere;
}

} // namespace speedbump::discover
