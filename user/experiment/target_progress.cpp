// SPDX-License-Identifier: MIT
#include "experiment/target_progress.h"

#include <algorithm>
#include <cstdint>
#include <set>
#include <utility>
#include <vector>

#include "engine/features.h"
#include "targets/matcher.h"

namespace speedbump::experiment {

namespace {

// The native targets that go without functions which the progress point of a line of the file has.
std::vector<std::string> without_functions_of(size_t line, const Members& members,
                                              const targets::TargetsFile& file,
                                              const session::Snapshot& snapshot) {
    const targets::TargetLine& own = file.lines[line];
    std::vector<std::string> names;
    for (size_t other = 0; other < file.lines.size(); ++other) {
        const targets::TargetLine& one = file.lines[other];
        if (other == line || one.exclude || one.runtime != own.runtime) continue;
        const bool is_taken = std::any_of(members.begin(), members.end(), [&](uint32_t index) {
            const session::Target& function = snapshot.targets[index];
            const bool is_main = own.container.text == "exe";
            return targets::binary_matches(one.container, {function.container, "", is_main}) &&
                   targets::matches(one.name, function.name);
        });
        if (is_taken) names.push_back(one.original);
    }
    return names;
}

} // namespace

Result<ProgressLines> add_progress_lines(const Request& request, targets::TargetsFile& file) {
    ProgressLines progress;
    const bool has_native = std::any_of(
        request.progress.begin(), request.progress.end(),
        [](const ProgressSpec& spec) { return spec.kind == ProgressSpec::Kind::kNative; });
    const bool has_jumps_only = has_native &&
                                request.session.engine == session::EngineChoice::kInprocess &&
                                !engine::require_attach_rights();
    for (size_t point = 0; point < request.progress.size(); ++point) {
        const ProgressSpec::Kind kind = request.progress[point].kind;
        const bool is_jump = kind == ProgressSpec::Kind::kNative && has_jumps_only;
        if (kind != ProgressSpec::Kind::kPython && !is_jump) continue;
        progress.has_jumps |= is_jump;
        auto line = line_of(request.progress[point]);
        if (!line) return std::move(line).error();
        // The last line decides: a second one would take the functions of an equal target, of which
        // the last one has them.
        const auto same = std::find_if(
            file.lines.rbegin(), file.lines.rend(),
            [&](const targets::TargetLine& other) { return other.original == line->original; });
        if (same != file.lines.rend() &&
            (same->options.pid || same->options.caller || same->options.thread))
            return make_error(ErrorKind::kUsage,
                              request.progress[point].text +
                                  ": its line of the targets file takes only some of its calls")
                .with_hint("leave pid=, caller= and thread= off that line, and off the @defaults");
        progress.lines[point] = same != file.lines.rend()
                                    ? static_cast<size_t>(file.lines.rend() - same) - 1
                                    : file.lines.size();
        if (same != file.lines.rend()) continue;
        line->options.delay = nanoseconds(0);
        file.lines.push_back(std::move(*line));
    }
    return progress;
}

Result<TargetProgress> find_progress_targets(const Request& request, const ProgressLines& progress,
                                             session::Session& session,
                                             const std::function<void(const std::string&)>& warn) {
    const session::Snapshot snapshot = session.snapshot();
    TargetProgress found;
    for (const auto& [point, line] : progress.lines) {
        const std::string& text = request.progress[point].text;
        std::string why = "is in none of the processes";
        bool is_skipped = false;
        std::set<std::pair<std::string, std::string>> left_out;
        for (const session::SkippedTarget& skipped : snapshot.skipped) {
            if (skipped.line_index != line) continue;
            is_skipped = true;
            left_out.emplace(skipped.container, skipped.name);
            why = skipped.name + ": " + skipped.reason;
            warn(text + " does not count " + why);
        }
        Members& members = found[point];
        for (uint32_t index = 0; index < snapshot.targets.size(); ++index) {
            const session::Target& target = snapshot.targets[index];
            if (target.line_index == line && !left_out.contains({target.container, target.name}))
                members.push_back(index);
        }
        if (request.progress[point].kind == ProgressSpec::Kind::kNative)
            for (const std::string& name :
                 without_functions_of(line, members, session.file(), snapshot))
                warn(text + " counts functions that " + name +
                     " names, too: they are no part of that target");
        if (!members.empty()) continue;
        return make_error(is_skipped ? ErrorKind::kUnsupported : ErrorKind::kNotFound, why)
            .with_context("progress point " + text);
    }
    return found;
}

} // namespace speedbump::experiment
