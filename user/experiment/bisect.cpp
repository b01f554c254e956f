// SPDX-License-Identifier: MIT
#include "experiment/bisect.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <iterator>
#include <set>
#include <utility>

#include "experiment/analysis.h"

namespace speedbump::experiment {

namespace {

using targets::Runtime;

constexpr size_t kTried = 8; // groups that are delayed on a rung
constexpr size_t kFollowed = 3;
constexpr size_t kFewestBlocks = 4, kBlocks = 8; // of a rung
constexpr size_t kMostBlocks = 24;               // of one that has shown nothing yet
constexpr size_t kMostRungs = 24;
// What may be as much is looked into: ns of the period for each ns that a call is delayed by.
constexpr double kDoubtful = 0.2;
constexpr size_t kShownFunctions = 20;
constexpr auto kCountFor = std::chrono::seconds(1);

constexpr uint32_t kNoTarget = UINT32_MAX;

std::string plural(size_t count, const char* what) {
    return fmt::format("{} {}{}", count, what, count == 1 ? "" : "s");
}

bool is_python(const Ladder& ladder, const Group& group) {
    return ladder.functions()[group.functions.front()].runtime == Runtime::kPython;
}

// Two are enough to see whether a group matters.
void thin_out(std::vector<nanoseconds>& doses) {
    if (doses.size() > 2) doses = {doses[(doses.size() - 1) / 2], doses.back()};
}

// Whether something in it may matter that was not shown to. The criticality of a group is a mean
// over its calls: that of one serial function is a hundredth of it where a hundred calls that
// nobody waits for are in the same group. What counts is the effect of a delay per call.
bool is_in_doubt(const TargetResult& result, const Target& target) {
    if (result.blocks == 0 || result.verdict == Verdict::kMatters) return false;
    const double calls = target.function_count > 1 ? std::max(1.0, result.calls_per_unit) : 1;
    return !(result.shape.slope.interval.high * calls < kDoubtful);
}

// Whether the blocks so far are enough, at any look: nothing is in doubt, or, after some more, one
// matters. Where nothing was shown, the answer is not that nothing matters.
bool is_told(const Document& document) {
    bool is_one_in_doubt = false, does_one_matter = false;
    const Results results = analyse(document);
    for (const TargetResult& target : results.progress[0].targets) {
        is_one_in_doubt |= is_in_doubt(target, document.targets[target.target]);
        does_one_matter |= target.verdict == Verdict::kMatters;
    }
    return !is_one_in_doubt || (document.blocks.size() >= kBlocks && does_one_matter);
}

// Whether the guards have left it no delay: what is too slow to be measured as a whole may be
// measured in parts.
bool is_given_up(const Target& target) {
    return target.doses.empty() &&
           std::any_of(target.notes.begin(), target.notes.end(), [](const std::string& note) {
               return note.find("was given up") != std::string::npos;
           });
}

} // namespace

// All that the lines name. What can't be taken apart becomes fixed_.
Ladder Bisect::find_functions() {
    const session::Snapshot snapshot = subject_.session().snapshot();
    const auto& lines = subject_.session().file().lines;
    std::vector<LadderFunction> functions;
    std::set<size_t> python; // lines
    for (size_t target = 0; target < document_.targets.size(); ++target) {
        const std::vector<uint32_t>& group = subject_.groups()[target];
        if (group.empty()) continue;
        const session::Target& first = snapshot.targets[group.front()];
        const targets::Options& options = lines[first.line_index].options;
        const bool is_python = first.runtime == Runtime::kPython;
        // Settings of a line are those of all its functions, wherever they are.
        const bool is_whole = is_python && (options.pid || options.every.value_or(1) > 1);
        if (document_.targets[target].role == Role::kPositive || is_whole) {
            fixed_.push_back({document_.targets[target], group});
            if (is_whole) fixed_.back().target.notes.push_back("has options: not taken apart");
        } else if (is_python) {
            python.insert(first.line_index);
        } else {
            for (const uint32_t index : group) {
                const session::Target& found = snapshot.targets[index];
                functions.push_back({Runtime::kNative, found.container, found.name, ""});
                targets_.push_back(index);
            }
        }
    }
    std::set<std::pair<std::string, std::string>> known; // one of each name over all processes
    for (const engine::PythonMatch& match : snapshot.python_matches) {
        if (!python.contains(match.line) || !known.emplace(match.module, match.name).second)
            continue;
        functions.push_back({Runtime::kPython, match.module, match.name, match.file});
        targets_.push_back(kNoTarget);
    }
    lines_.assign(python.begin(), python.end());
    return Ladder(std::move(functions));
}

// Gives each Python group, of which there are no more than spares, a target of the session.
void Bisect::tell_apart(const Ladder& ladder, const std::vector<Group>& groups) {
    if (lines_.empty()) return;
    GroupLines lines = ladder.lines(groups);
    if (!lines.unsure.empty())
        notes_.push_back(plural(lines.unsure.size(), "function") +
                         " can be told apart from others by no pattern, and may count as theirs");
    const auto& spares = subject_.spares();
    engine::Regrouping regrouping;
    regrouping.lines = lines_;
    for (const size_t group : lines.group_of)
        regrouping.line_of.push_back(group == GroupLines::kNone ? 0 : spares[group].line);
    regrouping.groups = std::move(lines.lines);
    for (size_t function = 0; function < targets_.size(); ++function)
        if (ladder.functions()[function].runtime == Runtime::kPython)
            targets_[function] = kNoTarget;
    for (size_t group = 0; group < groups.size(); ++group)
        for (const size_t function : groups[group].functions)
            targets_[function] = spares[group].target;
    if (auto done = subject_.session().regroup(std::move(regrouping)); !done)
        subject_.stop() = Stop{"bisect: " + done.error().message, false};
}

void Bisect::set_targets(const Ladder& ladder, const std::vector<Group>& groups, bool is_last) {
    std::vector<Target> targets;
    std::vector<std::vector<uint32_t>> session_groups;
    for (const Group& group : groups) {
        Target target;
        target.name = group.name;
        target.function_count = group.functions.size();
        std::set<uint32_t> members;
        for (const size_t index : group.functions) {
            const LadderFunction& function = ladder.functions()[index];
            if (target.functions.size() < kShownFunctions)
                target.functions.push_back(function.container + ":" + function.name);
            if (targets_[index] != kNoTarget) members.insert(targets_[index]);
        }
        targets.push_back(std::move(target));
        session_groups.emplace_back(members.begin(), members.end());
    }
    for (const Fixed& fixed : fixed_) {
        if (!is_last) break;
        targets.push_back(fixed.target);
        session_groups.push_back(fixed.group);
    }
    subject_.regroup(std::move(targets), std::move(session_groups));
}

// Of these groups those that are called at all, joined where they are many.
std::vector<Group> Bisect::choose(const Ladder& ladder, const std::vector<Group>& groups) {
    std::vector<Group> python, counted;
    for (const Group& group : groups)
        (is_python(ladder, group) ? python : counted).push_back(group);
    const size_t spares = subject_.spares().size();
    if (python.size() > spares)
        python = ladder.join(python, std::vector<double>(python.size(), 0), spares);
    tell_apart(ladder, python);
    counted.insert(counted.end(), std::make_move_iterator(python.begin()),
                   std::make_move_iterator(python.end()));
    set_targets(ladder, counted, false);
    if (subject_.stop()) return {};
    const nanoseconds length = std::max<nanoseconds>(kCountFor, 2 * subject_.arm_length());
    const auto slice = subject_.measure({ArmKind::kProbe, 0, {}}, length);
    if (!slice) return {};
    std::vector<Group> called;
    std::vector<double> weights;
    size_t idle_groups = 0, idle_functions = 0;
    for (size_t i = 0; i < counted.size(); ++i) {
        if (slice->calls[i] > 0) {
            called.push_back(std::move(counted[i]));
            weights.push_back(static_cast<double>(slice->calls[i]));
        } else {
            ++idle_groups;
            idle_functions += counted[i].functions.size();
        }
    }
    if (idle_groups > 0)
        notes_.push_back(fmt::format("{} of {} were not called within {:.1f} s, and are left out",
                                     plural(idle_groups, "group"),
                                     plural(idle_functions, "function"),
                                     std::chrono::duration<double>(length).count()));
    return ladder.join(std::move(called), weights, kTried);
}

void Bisect::measure() {
    for (size_t target = 0; target < document_.targets.size(); ++target) {
        if (subject_.stop()) return;
        means_.choose_doses(target);
        thin_out(document_.targets[target].doses);
    }
    for (size_t block = 1; block <= kMostBlocks && !subject_.stop(); ++block) {
        means_.run_block();
        if (block >= kFewestBlocks && is_told(document_)) return;
    }
}

// Those of the groups tried that are worth being taken apart: what matters, then what is in doubt
// and may matter much, as a wrong step down costs only time. The rung has it.
std::vector<Group> Bisect::follow(const std::vector<Group>& tried) {
    Rung rung;
    document_.stopped = "blocks"; // so many on each rung, or told before
    const Results results = analyse(document_);
    document_.stopped.clear();
    std::vector<Group> followed;
    std::vector<std::string> aside;
    std::vector<TargetResult> ranked = results.progress[0].targets;
    const auto stands_out = [&](const TargetResult& result) {
        return result.verdict == Verdict::kMatters || result.shape.shape == Shape::kHinge ||
               is_given_up(document_.targets[result.target]);
    };
    std::stable_partition(ranked.begin(), ranked.end(), stands_out);
    for (const TargetResult& result : ranked) {
        const Target& target = document_.targets[result.target];
        if (!stands_out(result) && !is_in_doubt(result, target)) continue;
        if (followed.size() == kFollowed) {
            aside.push_back(target.name);
            continue;
        }
        followed.push_back(tried[result.target]);
        rung.followed.push_back(result.target);
    }
    if (!aside.empty())
        notes_.push_back(
            fmt::format("not taken apart, though they may matter: {}", fmt::join(aside, ", ")));
    if (followed.empty()) return followed;
    rung.targets = document_.targets;
    rung.blocks = document_.blocks;
    rung.notes = std::exchange(notes_, {});
    document_.rungs.push_back(std::move(rung));
    return followed;
}

void Bisect::run() {
    const Ladder ladder = find_functions();
    std::vector<Group> groups = ladder.first();
    for (size_t number = 1; !subject_.stop(); ++number) {
        std::vector<Group> tried = choose(ladder, groups);
        if (subject_.stop()) break;
        const bool is_last =
            number > kMostRungs || std::all_of(tried.begin(), tried.end(), [&](const Group& group) {
                return ladder.is_single(group);
            });
        set_targets(ladder, tried, is_last);
        if (document_.targets.empty()) {
            subject_.stop() = Stop{"bisect: none of the functions was called", false};
            break;
        }
        if (is_last) break; // they are what is measured from here on
        hooks_.say(fmt::format("bisect: rung {}, {}", number, plural(tried.size(), "group")));
        measure();
        if (subject_.stop()) break;
        const std::vector<Group> followed = follow(tried);
        if (followed.empty())
            subject_.stop() = Stop{"bisect: no group of functions was shown to matter", true};
        groups = ladder.below(followed);
    }
    for (const std::string& note : notes_) document_.warnings.push_back("bisect: " + note);
}

} // namespace speedbump::experiment
