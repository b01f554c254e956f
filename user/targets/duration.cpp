// SPDX-License-Identifier: MIT
#include <array>
#include <limits>

#include "targets/parser.h"
#include "util/text.h"

namespace speedbump::targets {

namespace {

struct Unit {
    std::string_view suffix;
    uint64_t ns;
};

// both code points that keyboards have for micro
constexpr std::array<Unit, 7> kReadUnits = {{
    {"", 1},
    {"ns", 1},
    {"us", 1'000},
    {"\u00b5s", 1'000},
    {"\u03bcs", 1'000},
    {"ms", 1'000'000},
    {"s", 1'000'000'000},
}};

constexpr std::array<Unit, 4> kWriteUnits = {{
    {"s", 1'000'000'000},
    {"ms", 1'000'000},
    {"us", 1'000},
    {"ns", 1},
}};

constexpr const char* kExpected = "a duration such as 10us, 1.5ms, 2s, or 1000 (nanoseconds)";

bool is_digit(char c) {
    return c >= '0' && c <= '9';
}

Error bad_duration(std::string message) {
    return make_error(ErrorKind::kUsage, std::move(message)).with_hint(kExpected);
}

} // namespace

Result<nanoseconds> parse_duration(std::string_view text) {
    if (text.empty()) return bad_duration("missing duration");
    size_t at = 0;
    uint64_t whole = 0;
    constexpr uint64_t kLimit = std::numeric_limits<int64_t>::max();
    bool too_long = false;
    for (; at < text.size() && is_digit(text[at]); ++at) {
        whole = whole * 10 + static_cast<uint64_t>(text[at] - '0');
        if (whole > kLimit / 10) too_long = true;
        if (too_long) whole = 0;
    }
    size_t digits = at;
    // ten decimals: a tenth of a nanosecond even in seconds, so that the last one can be rounded
    constexpr uint64_t kScale = 10'000'000'000;
    uint64_t fraction = 0;
    if (at < text.size() && text[at] == '.') {
        uint64_t place = kScale / 10;
        const size_t first = ++at;
        for (; at < text.size() && is_digit(text[at]); ++at) {
            fraction += place * static_cast<uint64_t>(text[at] - '0');
            place /= 10;
        }
        digits += at - first;
        if (at == first) digits = 0;
    }
    const std::string shown = "'" + printable(text.substr(0, 40)) + "'";
    if (digits == 0) return bad_duration(shown + " is not a duration");
    const std::string_view suffix = text.substr(at);
    for (const Unit& unit : kReadUnits) {
        if (unit.suffix != suffix) continue;
        if (too_long || whole > (kLimit - unit.ns) / unit.ns) {
            return bad_duration(shown + " is too long");
        }
        return nanoseconds(whole * unit.ns + (fraction * unit.ns + kScale / 2) / kScale);
    }
    return bad_duration(shown + " has no known unit").with_hint("ns, us, ms or s, as in 10us");
}

std::string format_duration(nanoseconds duration) {
    const auto ns = static_cast<uint64_t>(duration.count() < 0 ? 0 : duration.count());
    std::string shortest = std::to_string(ns) + "ns";
    // larger units last, so that they win a tie
    for (auto unit = kWriteUnits.rbegin(); unit != kWriteUnits.rend(); ++unit) {
        if (ns < unit->ns) break;
        std::string text = std::to_string(ns / unit->ns);
        if (ns % unit->ns != 0) {
            std::string decimals = std::to_string(unit->ns + ns % unit->ns).substr(1);
            decimals.erase(decimals.find_last_not_of('0') + 1);
            text += "." + decimals;
        }
        text += unit->suffix;
        if (text.size() <= shortest.size()) shortest = std::move(text);
    }
    return shortest;
}

} // namespace speedbump::targets
