// SPDX-License-Identifier: MIT
#include "experiment/design.h"

#include <algorithm>
#include <utility>

namespace speedbump::experiment {

namespace {

using std::chrono::milliseconds;

constexpr auto kShortestChosen =
    milliseconds(4); // shorter ones are no sharper (docs/measurements.md)
constexpr double kUnitsPerSlice = 10;
// Of few units each, whose parts are told up to three slices later, and effects six: these take
// 1,120 of them.
constexpr int64_t kEnoughSlices = 1500;
constexpr double kFewestUnits = 2; // of a slice: parts of units are counted, too

// A progress point that short slices tell nothing of, or less than long ones do.
std::string belongs_to_long_slices(const ProgressSpec& spec) {
    using Kind = ProgressSpec::Kind;
    if (!is_told_by_slice(spec)) return "progress of " + spec.text + " can't be told by slice";
    if (spec.kind == Kind::kLatency) return "percentiles of " + spec.text + " are told by dose";
    if (spec.kind == Kind::kDevice) return "the queue of " + spec.text + " is told by dose";
    return {};
}

Design one_by_one(std::string why = {}) {
    return {false, 0, std::move(why)};
}

Result<Design> at_once(const Request& request) {
    const auto refuse = [](const std::string& what) {
        return make_error(ErrorKind::kUsage,
                          "--slice: up to 50ms the clock switches all targets at once; " + what);
    };
    if (request.slice.count() > 0 && request.slice < kShortestSwitched)
        return refuse("1ms is the shortest");
    if (request.blocks > 0)
        return refuse("there are no blocks to count: give --time or --precision");
    const bool may_be_jumps = request.session.engine == session::EngineChoice::kInprocess;
    Design design{true, 0, {}};
    for (const targets::TargetLine& line : request.file.lines) design.columns += !line.exclude;
    for (const ProgressSpec& spec : request.progress) {
        design.columns += spec.kind == ProgressSpec::Kind::kPython ||
                          (spec.kind == ProgressSpec::Kind::kNative && may_be_jumps);
        if (!is_told_by_slice(spec))
            return refuse("progress of " + spec.text + " can't be told by slice");
    }
    return design;
}

} // namespace

Result<Design> design_of(const Request& request) {
    if (request.slice > kLongestSwitched) return one_by_one();
    if (request.slice.count() > 0) return at_once(request);
    // Rungs, blocks, doses of one's own and time to settle are those of long slices.
    if (request.bisect || request.blocks > 0 || !request.doses.empty() || request.settle)
        return one_by_one();
    for (const ProgressSpec& spec : request.progress)
        if (std::string why = belongs_to_long_slices(spec); !why.empty())
            return one_by_one(std::move(why));
    return at_once(request);
}

nanoseconds slice_length(double period, nanoseconds time) {
    const nanoseconds units(static_cast<int64_t>(kUnitsPerSlice * period));
    nanoseconds longest = kLongestSwitched;
    if (time.count() > 0)
        longest = std::clamp<nanoseconds>(std::chrono::floor<milliseconds>(time / kEnoughSlices),
                                          kShortestChosen, kLongestSwitched);
    return std::clamp<nanoseconds>(std::chrono::ceil<milliseconds>(units), kShortestChosen,
                                   longest);
}

bool fits_short_slices(double period, nanoseconds time) {
    return period * kFewestUnits <= ns(slice_length(period, time));
}

} // namespace speedbump::experiment
