// SPDX-License-Identifier: MIT
#include "engine/python/python_matches.h"

#include <fmt/format.h>

#include <functional>
#include <string>
#include <utility>

namespace speedbump::engine {

size_t PythonMatches::add(std::vector<PythonMatch> matches) {
    size_t refused = 0;
    for (PythonMatch& match : matches) {
        size_t bytes = 0;
        for (std::string* text : {&match.module, &match.name, &match.file}) {
            if (text->size() > kMaxText) {
                text->resize(kMaxText);
                text->shrink_to_fit();
            }
            bytes += text->size();
        }
        const size_t hash = std::hash<std::string>()(
            fmt::format("{} {} {} {}", match.line, match.module, match.name, match.file));
        if (known_.contains(hash)) continue;
        Kept& kept = kept_[match.process];
        if (kept.matches == kMaxOfProcess || kept.bytes + bytes > kMaxBytesOfProcess) {
            ++refused;
            continue;
        }
        known_.insert(hash);
        ++kept.matches;
        kept.bytes += bytes;
        all_.push_back(std::move(match));
    }
    left_out_ += refused;
    return refused;
}

} // namespace speedbump::engine
