// SPDX-License-Identifier: MIT
#include <fstream>
#include <string>

#include "engine/inprocess/table.h"
#include "util/clock.h"

namespace speedbump::engine::inprocess {
namespace {

// Long enough that the time between reading one clock and the other doesn't matter.
constexpr uint64_t kMeasuredNs = 40'000'000;

struct Moment {
    uint64_t ticks = 0;
    uint64_t ns = 0;
};

// Both clocks at once: of several tries the one that took the shortest time.
Moment moment() {
    Moment best;
    uint64_t shortest = UINT64_MAX;
    for (int i = 0; i < 64; ++i) {
        const uint64_t before = Ticks::now();
        const uint64_t ns = monotonic_ns();
        const uint64_t after = Ticks::now();
        if (after - before >= shortest) continue;
        shortest = after - before;
        best = {before + (after - before) / 2, ns};
    }
    return best;
}

bool is_listed(const char* file, const std::string& field, const std::string& word) {
    std::ifstream lines(file);
    for (std::string line; std::getline(lines, line);) {
        if (!line.starts_with(field)) continue;
        return (" " + line.substr(field.size()) + " ").find(" " + word + " ") != std::string::npos;
    }
    return false;
}

} // namespace

uint64_t Ticks::now() {
    return __builtin_ia32_rdtsc();
}

Result<Ticks> measure_ticks() {
    constexpr const char* kSources =
        "/sys/devices/system/clocksource/clocksource0/available_clocksource";
    for (const char* flag : {"constant_tsc", "nonstop_tsc"})
        if (!is_listed("/proc/cpuinfo", "flags", flag))
            return make_error(ErrorKind::kUnsupported,
                              std::string("the time stamp counter of this processor can't be used: "
                                          "it is not ") +
                                  flag)
                .with_hint("use --engine=bpf");
    if (!is_listed(kSources, "", "tsc"))
        return make_error(ErrorKind::kUnsupported,
                          "the kernel has found the time stamp counter of this machine unstable")
            .with_hint("use --engine=bpf");
    const Moment first = moment();
    while (monotonic_ns() < first.ns + kMeasuredNs) {
    }
    const Moment last = moment();
    Ticks ticks;
    ticks.per_ns =
        static_cast<double>(last.ticks - first.ticks) / static_cast<double>(last.ns - first.ns);
    ticks.origin_ticks = last.ticks;
    ticks.origin_ns = last.ns;
    return ticks;
}

} // namespace speedbump::engine::inprocess
