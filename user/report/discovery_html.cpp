// SPDX-License-Identifier: MIT
#include <algorithm>
#include <cmath>
#include <map>
#include <nlohmann/json.hpp>
#include <set>

#include "experiment/analysis.h"
#include "report/discovery.h"
#include "report/page.h"

extern "C" {
extern const char sb_discovery_template[], sb_discovery_template_end[]; // assets.S
}

namespace speedbump::report {

namespace {

using nlohmann::ordered_json;
using stacks::CallTree;

ordered_json tree_json(const CallTree& tree) {
    ordered_json frames = ordered_json::array(), nodes = ordered_json::array();
    ordered_json threads = ordered_json::array(), counts = ordered_json::array();
    for (const CallTree::Frame& frame : tree.frames())
        frames.push_back({frame.name, frame.file, frame.line, frame.is_python ? 1 : 0});
    for (auto node = tree.nodes().begin() + 1; node != tree.nodes().end(); ++node) {
        nodes.push_back(node->parent);
        nodes.push_back(node->frame);
    }
    for (const CallTree::Thread& thread : tree.threads())
        threads.push_back({thread.pid, thread.tid, thread.name});
    for (const auto& [place, count] : tree.counts())
        for (const uint64_t one :
             {uint64_t{place.first}, uint64_t{place.second}, count.all, count.active})
            counts.push_back(one);
    return {{"frames", std::move(frames)},
            {"nodes", std::move(nodes)},
            {"threads", std::move(threads)},
            {"counts", std::move(counts)}};
}

// Whether a module of Python is one that is imported from this file.
bool may_be_in(const std::string& module, const std::string& file) {
    std::string path = "/" + module;
    std::replace(path.begin(), path.end(), '.', '/');
    const std::string from_root = "/" + file;
    return from_root.ends_with(path + ".py") || from_root.ends_with(path + "/__init__.py");
}

// The frames of each function that an experiment names: "/usr/bin/redis-server:lookupKey",
// "shop.views:buy".
class FrameFinder {
  public:
    explicit FrameFinder(const CallTree& tree) : frames_(tree.frames()) {
        for (uint32_t i = 0; i < frames_.size(); ++i) by_name_.emplace(frames_[i].name, i);
    }

    std::set<uint32_t> find(const std::string& function) const {
        std::set<uint32_t> found, of_main;
        // A name may have colons in it, and so may a path.
        for (size_t colon = function.find(':'); colon != std::string::npos;
             colon = function.find(':', colon + 1)) {
            const std::string place = function.substr(0, colon);
            const auto [begin, end] = by_name_.equal_range(function.substr(colon + 1));
            for (auto one = begin; one != end; ++one) {
                const CallTree::Frame& frame = frames_[one->second];
                if (frame.is_python && place == "__main__") of_main.insert(one->second);
                if (frame.is_python ? may_be_in(place, frame.file) : frame.file == place)
                    found.insert(one->second);
            }
        }
        // Which file a program began with is not known: a name that only one file has is enough.
        if (found.empty() && of_main.size() == 1) return of_main;
        return found;
    }

  private:
    const std::vector<CallTree::Frame>& frames_;
    std::multimap<std::string, uint32_t> by_name_;
};

ordered_json measured_json(const CallTree& tree, const experiment::Document& document,
                           const std::string& path) {
    const experiment::Results results = experiment::analyse(document);
    const FrameFinder finder(tree);
    ordered_json targets = ordered_json::array();
    for (const experiment::TargetResult& result : results.progress.front().targets) {
        const experiment::Target& target = document.targets[result.target];
        if (result.blocks == 0) continue;
        std::set<uint32_t> frames;
        for (const std::string& function : target.functions) frames.merge(finder.find(function));
        const experiment::Estimate& k = result.shape.slope;
        ordered_json low = nullptr, high = nullptr;
        if (std::isfinite(k.interval.half_width())) {
            low = k.interval.low;
            high = k.interval.high;
        }
        targets.push_back({{"name", target.name},
                           {"verdict", experiment::to_string(result.verdict)},
                           {"value", k.value},
                           {"low", std::move(low)},
                           {"high", std::move(high)},
                           {"frames", frames}});
    }
    return {
        {"path", path}, {"progress", document.progress.front()}, {"targets", std::move(targets)}};
}

} // namespace

std::string discovery_html(const Context& context, const Discovery& discovery,
                           const std::optional<Measured>& measured) {
    const CallTree& tree = discovery.stacks.profile.tree();
    ordered_json data = {{"discovery", ordered_json::parse(discovery_json(context, discovery))},
                         {"tree", tree_json(tree)},
                         {"measured", nullptr}};
    if (measured) data["measured"] = measured_json(tree, measured->document, measured->path);
    return fill_page({sb_discovery_template, sb_discovery_template_end}, "", data);
}

} // namespace speedbump::report
