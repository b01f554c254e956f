// SPDX-License-Identifier: MIT
#include <cmath>
#include <fstream>
#include <string>
#include <string_view>

#include "engine/inprocess/table.h"
#include "engine/inprocess/vdso.h"
#include "util/clock.h"
#include "util/proc.h"

namespace speedbump::engine::inprocess {
namespace {

// Long enough that the time between reading one clock and the other doesn't matter.
constexpr uint64_t kMeasuredNs = 40'000'000;

constexpr std::string_view kClockSources = "/sys/devices/system/clocksource/clocksource0/";

struct Moment {
    uint64_t ticks = 0;
    uint64_t ns = 0;
};

// Both clocks at once: of several tries the one that took the shortest time.
Moment moment() {
    Moment best;
    uint64_t shortest = UINT64_MAX;
    for (int i = 0; i < 64; ++i) {
        const uint64_t before = __builtin_ia32_rdtsc();
        const uint64_t ns = monotonic_ns();
        const uint64_t after = __builtin_ia32_rdtsc();
        if (after - before >= shortest) continue;
        shortest = after - before;
        best = {before + (after - before) / 2, ns};
    }
    return best;
}

bool is_listed(const std::string& file, const std::string& field, const std::string& word) {
    std::ifstream lines(file);
    for (std::string line; std::getline(lines, line);) {
        if (!line.starts_with(field)) continue;
        return (" " + line.substr(field.size()) + " ").find(" " + word + " ") != std::string::npos;
    }
    return false;
}

Ticks between(const Moment& first, const Moment& last) {
    return {ClockSource::kTsc,
            static_cast<double>(last.ticks - first.ticks) / static_cast<double>(last.ns - first.ns),
            last.ticks, last.ns};
}

// NTP makes the clock 500 ppm faster or slower at most; what goes beyond that is a machine that
// stood still, and whose clocks did not do so alike.
constexpr double kMostChange = 0.01;

bool is_like(double pace, double other) {
    return std::abs(pace - other) <= kMostChange * other;
}

// In two halves, until they agree: one that goes wrong would make all delays of a session wrong.
Ticks measure_tsc() {
    for (;;) {
        Moment moments[3];
        for (Moment& one : moments) {
            const uint64_t begin = monotonic_ns();
            while (monotonic_ns() < begin + kMeasuredNs / 2) {
            }
            one = moment();
        }
        const Ticks whole = between(moments[0], moments[2]);
        if (is_like(between(moments[0], moments[1]).per_ns, whole.per_ns)) return whole;
    }
}

// Its ticks are what they are measured by.
Ticks ticks_of_vdso() {
    const uint64_t now = monotonic_ns();
    return {ClockSource::kVdso, 1, on_host_clock(now), now};
}

// Why hooks can't go by the time stamp counter; empty when they can.
std::string unfit_tsc() {
    for (const char* flag : {"constant_tsc", "nonstop_tsc"})
        if (!is_listed("/proc/cpuinfo", "flags", flag))
            return std::string(
                       "the time stamp counter of this processor can't be used: it is not ") +
                   flag;
    if (!is_listed(std::string(kClockSources) + "available_clocksource", "", "tsc"))
        return "the kernel has found the time stamp counter of this machine unstable";
    return "";
}

} // namespace

uint64_t Ticks::now() const {
    return source == ClockSource::kTsc ? __builtin_ia32_rdtsc() : on_host_clock(monotonic_ns());
}

Ticks Ticks::measured_again() const {
    if (source == ClockSource::kVdso) return ticks_of_vdso();
    const Moment now = moment();
    if (now.ns <= origin_ns) return *this;
    Ticks again = between({origin_ticks, origin_ns}, now);
    if (!is_like(again.per_ns, per_ns)) again.per_ns = per_ns;
    return again;
}

Result<Ticks> measure_ticks(bool may_be_tsc) {
    const std::string reason =
        may_be_tsc ? unfit_tsc() : "the time stamp counter is declared absent";
    if (reason.empty()) return measure_tsc();
    if (vdso_reads_clock()) return ticks_of_vdso();
    std::string clock = read_proc(std::string(kClockSources) + "current_clocksource");
    while (!clock.empty() && clock.back() == '\n') clock.pop_back();
    return make_error(ErrorKind::kUnsupported, reason + ", and the kernel's clock (" + clock +
                                                   ") takes a system call to read")
        .with_hint("use --engine=bpf");
}

Result<ClockFunction> clock_of(pid_t pid, ClockSource source) {
    if (source == ClockSource::kTsc) return ClockFunction{};
    return vdso_clock_of(pid);
}

} // namespace speedbump::engine::inprocess
