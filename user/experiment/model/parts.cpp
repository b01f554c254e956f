// SPDX-License-Identifier: MIT
#include "experiment/model/parts.h"

#include <algorithm>
#include <cmath>
#include <numeric>

namespace speedbump::experiment {

namespace {

constexpr double kManyUnits = 32; // in each slice: their number alone tells more than their parts
constexpr size_t kMostLead = 6;
constexpr double kSeldom = 0.01; // of the edges: what a stall of the host moves

// Units that are done at a time.
struct Mark {
    size_t slice = 0;
    double at = 0; // ns since the run began
    double done = 0;
};

// The mean time of each slice's units, at which half of them were done: the middle one of an odd
// number is.
std::vector<Mark> marks_of(const SlicedRun& run, const std::vector<uint64_t>& since_ns) {
    std::vector<Mark> marks = {{0, 0, 0}};
    double done = 0;
    for (size_t slice = 0; slice < run.units.size(); ++slice) {
        const double units = run.units[slice];
        if (!(units > 0)) continue;
        const double since = std::min(static_cast<double>(since_ns[slice]) / units, run.slice_ns);
        marks.push_back(
            {slice, static_cast<double>(slice) * run.slice_ns + since, done + (units + 1) / 2});
        done += units;
    }
    return marks;
}

// How many slices after an edge the mark is that tells of it, but for few of the edges.
size_t lead_of(const std::vector<Mark>& marks) {
    std::vector<size_t> edges(kMostLead + 2); // by that number, and those with more
    for (size_t mark = 1; mark < marks.size(); ++mark)
        for (size_t ahead = marks[mark].slice - marks[mark - 1].slice; ahead > 0; --ahead)
            ++edges[std::min(ahead, kMostLead + 1)];
    const auto all = static_cast<double>(std::accumulate(edges.begin(), edges.end(), size_t{0}));
    size_t lead = kMostLead + 1, later = edges[lead];
    while (lead > 1 && static_cast<double>(later) <= kSeldom * all) later += edges[--lead];
    return lead;
}

// Of the straight line between two of them; after the last one nothing is known to be done.
double done_at(double time, const Mark& before, const Mark* after) {
    if (after == nullptr || !(after->at > before.at)) return before.done;
    return before.done + (after->done - before.done) * (time - before.at) / (after->at - before.at);
}

template <typename T>
void drop_first(std::vector<T>& values, size_t count) {
    values.erase(values.begin(), values.begin() + static_cast<ptrdiff_t>(count));
}

} // namespace

void count_parts(SlicedRun& run, const std::vector<uint64_t>& since_ns) {
    const size_t slices = run.units.size();
    if (since_ns.size() != slices) return;
    const std::vector<Mark> marks = marks_of(run, since_ns);
    const size_t lead = lead_of(marks);
    if (lead > kMostLead || slices <= lead) return;
    const double units = std::accumulate(run.units.begin(), run.units.end(), 0.0);
    if (lead == 1 && units > kManyUnits * static_cast<double>(slices)) return;

    size_t next = 1;
    double before = 0;
    for (size_t slice = 0; slice < slices; ++slice) {
        const double end = static_cast<double>(slice + 1) * run.slice_ns;
        while (next < marks.size() && marks[next].at <= end) ++next;
        const double done =
            done_at(end, marks[next - 1], next < marks.size() ? &marks[next] : nullptr);
        run.units[slice] = done - before;
        before = done;
    }
    run.lead = lead;
    run.units.resize(slices - lead);
    for (TargetSlices& target : run.targets) {
        drop_first(target.steps, lead);
        drop_first(target.injected, lead);
        drop_first(target.delays, lead);
    }
}

} // namespace speedbump::experiment
