// SPDX-License-Identifier: MIT
#include "experiment/ladder.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <numeric>
#include <string_view>
#include <tuple>
#include <utility>

#include "targets/matcher.h"

namespace speedbump::experiment {

namespace {

using targets::Pattern;
using targets::Runtime;

constexpr uint32_t kPythonRoot = 0, kNativeRoot = 1;

// What is nested deeper is one step: a process may claim to have names of thousands of dots.
constexpr size_t kMaxSteps = 24;

// Calls `step` with each prefix of a dotted name that ends before a dot, the shortest first.
template <typename Step>
void for_each_prefix(std::string_view name, Step step) {
    size_t dot = name.find('.');
    for (size_t steps = 0; dot != name.npos && steps < kMaxSteps; ++steps) {
        step(name.substr(0, dot));
        dot = name.find('.', dot + 1);
    }
}

// A pattern for what begins with this text and a dot.
Pattern below_prefix(std::string_view text) {
    std::string pattern;
    for (const char c : text) {
        if (c == '*' || c == '?' || c == '[')
            pattern.append({'[', c, ']'});
        else
            pattern.push_back(c);
    }
    return {pattern + ".*", true};
}

Pattern exactly(std::string_view text) {
    return {std::string(text), false};
}

const Pattern kAnything{"*", true};

} // namespace

// --- the tree

class Ladder::Builder {
  public:
    explicit Builder(std::vector<Node>& nodes) : nodes_(nodes) {
        nodes_.push_back({Kind::kPython, "", "", {}, {}});
        nodes_.push_back({Kind::kNative, "", "", {}, {}});
    }

    void add(const LadderFunction& function, size_t index) {
        uint32_t node = kNativeRoot;
        if (function.runtime == Runtime::kNative) {
            node = child(node, Kind::kFile, function.container, "");
        } else {
            node = kPythonRoot;
            for_each_prefix(function.container, [&](std::string_view prefix) {
                node = child(node, Kind::kModule, prefix, "");
            });
            node = child(node, Kind::kModule, function.container, "");
            node = child(node, Kind::kNames, function.container, "");
            for_each_prefix(function.name, [&](std::string_view prefix) {
                node = child(node, Kind::kName, function.container, prefix);
            });
            node = child(node, Kind::kName, function.container, function.name);
        }
        node = child(node, Kind::kFunction, function.container, function.name);
        nodes_[node].functions.push_back(index);
    }

  private:
    uint32_t child(uint32_t parent, Kind kind, std::string_view container, std::string_view name) {
        const auto [place, is_new] =
            known_.try_emplace({kind, container, name}, static_cast<uint32_t>(nodes_.size()));
        if (is_new) {
            nodes_.push_back({kind, container, name, {}, {}});
            nodes_[parent].children.push_back(place->second);
        }
        return place->second;
    }

    std::vector<Node>& nodes_;
    std::map<std::tuple<Kind, std::string_view, std::string_view>, uint32_t> known_;
};

Ladder::Ladder(std::vector<LadderFunction> functions) : functions_(std::move(functions)) {
    Builder builder(nodes_);
    // In the order of their names: groups are then named and joined the same way each time.
    std::vector<size_t> order(functions_.size());
    std::iota(order.begin(), order.end(), size_t{0});
    std::sort(order.begin(), order.end(), [this](size_t a, size_t b) {
        const LadderFunction &left = functions_[a], &right = functions_[b];
        return std::tie(left.container, left.name, a) < std::tie(right.container, right.name, b);
    });
    for (const size_t index : order) builder.add(functions_[index], index);
}

// Past all that holds one thing only.
uint32_t Ladder::innermost(uint32_t node) const {
    while (nodes_[node].children.size() == 1) node = nodes_[node].children.front();
    return node;
}

std::string Ladder::name_of(uint32_t index) const {
    const Node& node = nodes_[index];
    switch (node.kind) {
        case Kind::kPython:
            return "*:*";
        case Kind::kModule:
            return fmt::format("{}.*:*", node.container);
        case Kind::kNames:
            return fmt::format("{}:*", node.container);
        case Kind::kName:
            return fmt::format("{}:{}.*", node.container, node.name);
        case Kind::kNative:
            return "+*:*";
        case Kind::kFile:
            return fmt::format("+{}:*", node.container);
        case Kind::kFunction:
            break;
    }
    const bool is_native = functions_[node.functions.front()].runtime == targets::Runtime::kNative;
    return fmt::format("{}{}:{}", is_native ? "+" : "", node.container, node.name);
}

void Ladder::collect(uint32_t node, std::vector<size_t>& functions) const {
    const Node& at = nodes_[node];
    functions.insert(functions.end(), at.functions.begin(), at.functions.end());
    for (const uint32_t child : at.children) collect(child, functions);
}

Group Ladder::group_of(uint32_t node) const {
    Group group;
    group.parts = {innermost(node)};
    group.name = name_of(group.parts.front());
    collect(node, group.functions);
    std::sort(group.functions.begin(), group.functions.end());
    return group;
}

std::vector<Group> Ladder::first() const {
    std::vector<Group> groups;
    if (!nodes_[kPythonRoot].children.empty()) groups.push_back(group_of(kPythonRoot));
    for (const uint32_t file : nodes_[kNativeRoot].children) groups.push_back(group_of(file));
    return groups;
}

bool Ladder::is_single(const Group& group) const {
    return group.parts.size() == 1 && nodes_[group.parts.front()].children.empty();
}

std::vector<Group> Ladder::below(const std::vector<Group>& groups) const {
    std::vector<Group> result;
    for (const Group& group : groups) {
        const Node& only = nodes_[group.parts.front()];
        const bool is_one = group.parts.size() == 1 && !only.children.empty();
        for (const uint32_t part : is_one ? only.children : group.parts)
            result.push_back(group_of(part));
    }
    return result;
}

std::vector<Group> Ladder::join(std::vector<Group> groups, const std::vector<double>& weights,
                                size_t limit) const {
    std::vector<size_t> order(groups.size());
    std::iota(order.begin(), order.end(), size_t{0});
    std::stable_sort(order.begin(), order.end(),
                     [&](size_t a, size_t b) { return weights[a] > weights[b]; });
    std::vector<Group> result;
    if (groups.size() <= limit) {
        for (const size_t index : order) result.push_back(std::move(groups[index]));
        return result;
    }
    // By calls and by number alike: what is called most is alone, and no group holds most of the
    // others, so that few rungs are left below it.
    const double total = std::accumulate(weights.begin(), weights.end(), 0.0);
    const double each = 1.0 / static_cast<double>(groups.size());
    double before = 0; // of 2
    size_t last_place = SIZE_MAX;
    for (const size_t index : order) {
        const size_t place =
            std::min(limit - 1, static_cast<size_t>(before / 2 * static_cast<double>(limit)));
        before += each + (total > 0 ? weights[index] / total : each);
        Group& group = groups[index];
        if (std::exchange(last_place, place) != place) {
            result.push_back(std::move(group));
            continue;
        }
        Group& joined = result.back();
        joined.parts.insert(joined.parts.end(), group.parts.begin(), group.parts.end());
        joined.functions.insert(joined.functions.end(), group.functions.begin(),
                                group.functions.end());
    }
    for (Group& group : result) {
        std::sort(group.functions.begin(), group.functions.end());
        group.name = name_of(group.parts.front());
        if (group.parts.size() > 1)
            group.name += fmt::format(" and {} more", group.parts.size() - 1);
    }
    return result;
}

// --- names

void Ladder::add_lines(uint32_t index, size_t group, GroupLines& lines) const {
    const Node& node = nodes_[index];
    const auto add = [&](Pattern container, Pattern name) {
        targets::TargetLine line;
        line.container = std::move(container);
        line.name = std::move(name);
        lines.lines.push_back(std::move(line));
        lines.group_of.push_back(group);
    };
    switch (node.kind) {
        case Kind::kPython:
            return add(kAnything, kAnything);
        case Kind::kModule:
            add(below_prefix(node.container), kAnything);
            return add(exactly(node.container), kAnything);
        case Kind::kNames:
            return add(exactly(node.container), kAnything);
        case Kind::kName:
            add(exactly(node.container), below_prefix(node.name));
            return add(exactly(node.container), exactly(node.name));
        case Kind::kFunction:
            if (functions_[node.functions.front()].runtime == Runtime::kPython)
                add(exactly(node.container), exactly(node.name));
            return;
        case Kind::kNative:
        case Kind::kFile:
            return;
    }
}

// Python functions that the lines put elsewhere than where they are expected (kNone: nowhere).
std::vector<size_t> Ladder::misplaced(const GroupLines& lines,
                                      const std::vector<size_t>& expected) const {
    const targets::PythonLines deciding(lines.lines);
    std::vector<size_t> result;
    for (size_t index = 0; index < functions_.size(); ++index) {
        const LadderFunction& function = functions_[index];
        if (function.runtime != Runtime::kPython) continue;
        const auto line = deciding.decide(function.container, function.file, function.name);
        const size_t found = line ? lines.group_of[*line] : GroupLines::kNone;
        if (found != expected[index]) result.push_back(index);
    }
    return result;
}

GroupLines Ladder::lines(const std::vector<Group>& groups) const {
    GroupLines lines;
    std::vector<size_t> expected(functions_.size(), GroupLines::kNone);
    for (size_t group = 0; group < groups.size(); ++group) {
        for (const uint32_t part : groups[group].parts) add_lines(part, group, lines);
        for (const size_t function : groups[group].functions) expected[function] = group;
    }
    // MODULE is compared with the source file as well: a function may match by its file what others
    // match by their module.
    for (const size_t index : misplaced(lines, expected)) {
        targets::TargetLine line;
        line.container = exactly(functions_[index].container);
        line.name = exactly(functions_[index].name);
        line.exclude = expected[index] == GroupLines::kNone;
        lines.lines.push_back(std::move(line));
        lines.group_of.push_back(expected[index]);
    }
    lines.unsure = misplaced(lines, expected);
    return lines;
}

} // namespace speedbump::experiment
