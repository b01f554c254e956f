// SPDX-License-Identifier: MIT
#include "stacks/whole_stack.h"

#include <algorithm>

namespace speedbump::stacks {

namespace {

// The native frames (by index, ascending) of the loops that run the entries.
using Places = std::optional<std::vector<size_t>>;

Places places_by_address(const NativeStack& native, const std::vector<uint64_t>& c_stack) {
    std::vector<size_t> places;
    for (const uint64_t address : c_stack) {
        const auto above = std::upper_bound(
            native.frames.begin(), native.frames.end(), address,
            [](uint64_t at, const NativeStack::Frame& frame) { return at < frame.low; });
        // In the outermost frame nothing tells whether it is the right one.
        if (above == native.frames.begin() || above == native.frames.end()) return std::nullopt;
        const auto place = static_cast<size_t>(above - native.frames.begin() - 1);
        if (!places.empty() && place <= places.back()) return std::nullopt;
        places.push_back(place);
    }
    return places;
}

Places places_by_name(const NativeStack& native, size_t entries) {
    std::vector<size_t> places;
    for (size_t i = 0; i < native.frames.size(); ++i)
        if (native.frames[i].function->runs_python) places.push_back(i);
    if (places.size() == entries + 1) places.erase(places.begin());
    if (places.size() != entries) return std::nullopt;
    return places;
}

} // namespace

std::optional<std::vector<WholeFrame>> merge(const NativeStack& native,
                                             const std::vector<Frame>& python) {
    if (!native.is_complete) return std::nullopt;
    std::vector<uint64_t> c_stack;
    bool has_addresses = true;
    for (const Frame& frame : python) {
        if (!frame.is_entry) continue;
        c_stack.push_back(frame.c_stack);
        has_addresses = has_addresses && frame.c_stack != 0;
    }
    const Places places =
        has_addresses ? places_by_address(native, c_stack) : places_by_name(native, c_stack.size());
    if (!places || (!python.empty() && !python.back().is_entry)) return std::nullopt;
    std::vector<WholeFrame> frames;
    auto place = places->begin();
    auto next = python.begin();
    for (size_t i = 0; i < native.frames.size(); ++i) {
        const NativeFunction* function = native.frames[i].function;
        if (place != places->end() && *place == i) {
            ++place;
            bool is_entry = false;
            for (; next != python.end() && !is_entry; ++next) {
                frames.push_back({next->function, nullptr});
                is_entry = next->is_entry;
            }
            if (function->runs_python) continue;
        }
        // Shown where no Python frames stand for it, as when it is just beginning.
        const bool stands_below =
            function->runs_python && place != places->end() && *place == i + 1;
        if (!stands_below) frames.push_back({nullptr, function});
    }
    return frames;
}

} // namespace speedbump::stacks
