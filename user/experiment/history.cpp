// SPDX-License-Identifier: MIT
#include "experiment/history.h"

#include <cmath>

#include "experiment/slices.h"

namespace speedbump::experiment {

namespace {

constexpr size_t kFewestPairs = 20; // of neighbours, to tell their noise

template <typename T>
void cut(std::vector<T>& values, size_t size) {
    if (values.size() > size) values.resize(size);
}

// The first `part` of `parts` of what was measured.
Document beginning(const Document& document, size_t part, size_t parts) {
    Document result = document;
    if (result.fleet) result.fleet->hosts.clear(); // what is known of all together is told
    cut(result.blocks, document.blocks.size() * part / parts);
    if (!result.sliced) return result;
    const size_t slices = document.sliced->slices() * part / parts;
    for (std::vector<uint64_t>& units : result.sliced->units) cut(units, slices);
    for (std::vector<uint64_t>& since : result.sliced->since_ns) cut(since, slices);
    for (SlicedTarget& target : result.sliced->targets) {
        cut(target.steps, slices);
        cut(target.injected_ns, slices);
        cut(target.delays, slices);
    }
    return result;
}

double seconds_of(const Document& document) {
    if (document.sliced)
        return static_cast<double>(document.sliced->slice.count()) *
               static_cast<double>(document.sliced->slices()) / 1e9;
    double end = 0;
    for (const Block& block : document.blocks)
        for (const Slice& slice : block.slices)
            end = std::max(end, static_cast<double>((slice.start + slice.length).count()) / 1e9);
    return end;
}

} // namespace

std::vector<Moment> history(const Document& document, size_t parts) {
    std::vector<Moment> moments;
    for (size_t part = 1; part <= parts; ++part) {
        const Document so_far = beginning(document, part, parts);
        const Results results = analyse(so_far);
        Moment moment{seconds_of(so_far), {}};
        if (results.progress.empty()) continue;
        for (const TargetResult& target : results.progress[0].targets)
            if (target.blocks > 0 && std::isfinite(target.shape.slope.error))
                moment.targets.push_back({target.target, target.shape.slope});
        if (!moment.targets.empty()) moments.push_back(std::move(moment));
    }
    return moments;
}

std::vector<Noise> noise_by_length(const Document& document) {
    std::vector<Noise> result;
    if (!document.sliced) return result;
    std::vector<double> units = units_by_slice(document, 0);
    double seconds = static_cast<double>(document.sliced->slice.count()) / 1e9;
    while (units.size() >= 2 * kFewestPairs) {
        double sum = 0, squares = 0;
        for (size_t i = 0; i + 1 < units.size(); i += 2) {
            sum += units[i] + units[i + 1];
            squares += (units[i] - units[i + 1]) * (units[i] - units[i + 1]);
        }
        const size_t paired = units.size() / 2 * 2;
        const auto count = static_cast<double>(paired);
        // Of the difference of two means over half of the slices each.
        const double deviation = std::sqrt(squares / count);
        if (sum > 0) result.push_back({seconds, deviation * 2 / std::sqrt(count) / (sum / count)});
        std::vector<double> longer;
        for (size_t i = 0; i + 1 < units.size(); i += 2) longer.push_back(units[i] + units[i + 1]);
        units = std::move(longer);
        seconds *= 2;
    }
    return result;
}

} // namespace speedbump::experiment
