// SPDX-License-Identifier: MIT
#include "stacks/call_tree.h"

#include <algorithm>

namespace speedbump::stacks {

namespace {

// ";" parts the frames of a collapsed stack and a newline the stacks.
std::string collapsible(std::string text) {
    for (char& c : text)
        if (c == ';' || static_cast<unsigned char>(c) < 0x20) c = '_';
    return text;
}

std::string label(const CallTree::Frame& frame) {
    if (frame.is_python)
        return frame.name + " (" + frame.file + ":" + std::to_string(frame.line) + ")";
    const std::string file = frame.file.substr(frame.file.rfind('/') + 1);
    if (frame.name.empty()) return "[" + (file.empty() ? "unknown" : file) + "]";
    return frame.name + " (" + file + ")";
}

} // namespace

uint32_t CallTree::frame(const Frame& frame) {
    const auto [entry, is_new] =
        frame_numbers_.try_emplace(frame, static_cast<uint32_t>(frames_.size()));
    if (is_new) frames_.push_back(frame);
    return entry->second;
}

uint32_t CallTree::callee(uint32_t node, uint32_t frame) {
    const uint64_t key = uint64_t{node} << 32 | frame;
    const auto [entry, is_new] = callees_.try_emplace(key, static_cast<uint32_t>(nodes_.size()));
    if (is_new) nodes_.push_back({node, frame});
    return entry->second;
}

void CallTree::add(uint32_t thread, uint32_t node, bool active, uint64_t times) {
    Count& count = counts_[{thread, node}];
    count.all += times;
    if (active) count.active += times;
}

std::map<std::string, uint64_t> CallTree::collapsed() const {
    std::vector<std::string> labels;
    for (const Frame& frame : frames_) labels.push_back(collapsible(label(frame)));
    std::map<std::string, uint64_t> stacks;
    std::vector<const std::string*> path;
    for (const auto& [place, count] : counts_) {
        const auto& [thread, node] = place;
        path.clear();
        for (uint32_t at = node; at != kRoot; at = nodes_[at].parent)
            path.push_back(&labels[nodes_[at].frame]);
        std::string stack =
            collapsible(threads_[thread].name) + " (" + std::to_string(threads_[thread].pid) + ")";
        for (auto one = path.rbegin(); one != path.rend(); ++one) stack += ";" + **one;
        stacks[stack] += count.all;
    }
    return stacks;
}

} // namespace speedbump::stacks
