// SPDX-License-Identifier: MIT
#include "util/units.h"

#include <fmt/format.h>

#include <cmath>

namespace speedbump {

namespace {

// Three significant digits of a value from 1 up to (but, once rounded, not) 1000.
std::string three_digits(double value) {
    if (value < 9.995) return fmt::format("{:.2f}", value);
    if (value < 99.95) return fmt::format("{:.1f}", value);
    return fmt::format("{:.0f}", value);
}

} // namespace

std::string show_time(std::chrono::nanoseconds time) {
    const std::string sign = time.count() < 0 ? "-" : "";
    const double ns = std::abs(static_cast<double>(time.count()));
    if (ns < 1000) return fmt::format("{}{:.0f} ns", sign, ns);
    if (ns < 999'500) return sign + three_digits(ns / 1e3) + " us";
    if (ns < 999'500'000) return sign + three_digits(ns / 1e6) + " ms";
    if (ns < 999.5e9) return sign + three_digits(ns / 1e9) + " s";
    return fmt::format("{}{:.0f} s", sign, ns / 1e9);
}

std::string show_rate(double per_second) {
    if (!std::isfinite(per_second)) return "-";
    const std::string sign = per_second < 0 ? "-" : "";
    const double value = std::abs(per_second);
    if (value < 0.005) return "0";
    if (value < 999.5) {
        return value == std::floor(value) ? fmt::format("{}{:.0f}", sign, value)
                                          : sign + three_digits(value);
    }
    if (value < 999.5e3) return sign + three_digits(value / 1e3) + "k";
    if (value < 999.5e6) return sign + three_digits(value / 1e6) + "M";
    if (value < 999.5e9) return sign + three_digits(value / 1e9) + "G";
    return fmt::format("{}{:.3g}", sign, value);
}

std::string show_count(uint64_t count) {
    std::string digits = std::to_string(count);
    for (size_t at = digits.size(); at > 3;) {
        at -= 3;
        digits.insert(at, ",");
    }
    return digits;
}

} // namespace speedbump
