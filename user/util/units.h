// SPDX-License-Identifier: MIT
#pragma once

#include <chrono>
#include <cstdint>
#include <string>

namespace speedbump {

// A measured time for a reader, three significant digits: "0 ns", "445 ns", "1.23 us", "12.3 ms",
// "2.50 s", "-1.50 us". For the exact form of a setting see targets::format_duration.
std::string show_time(std::chrono::nanoseconds time);
// A rate or count for a reader, three significant digits: "0", "0.25", "17.5", "950", "91.7k",
// "1.20M". Negative values keep their sign; what is not finite is "-".
std::string show_rate(double per_second);
// A whole number with its thousands apart: "1,234,567".
std::string show_count(uint64_t count);

} // namespace speedbump
