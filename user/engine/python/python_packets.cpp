// SPDX-License-Identifier: MIT
#include "engine/python/python_packets.h"

#include <algorithm>
#include <cstdint>
#include <nlohmann/json.hpp>

namespace speedbump::engine {
namespace {

using nlohmann::json;

std::string text_in(const json& message, const char* key) {
    auto found = message.find(key);
    return found != message.end() && found->is_string() ? found->get<std::string>() : "";
}

uint64_t number_in(const json& message, const char* key) {
    auto found = message.find(key);
    return found != message.end() && found->is_number_unsigned() ? found->get<uint64_t>() : 0;
}

// What is shown to the user is not the process's to flood.
std::string told(std::string text) {
    constexpr std::string_view kRest = "...";
    if (text.size() <= kMaxTold) return text;
    text.resize(kMaxTold - kRest.size());
    return text.append(kRest);
}

void read_warnings(const json& message, PythonPacket& result) {
    auto list = message.find("warnings");
    if (list == message.end() || !list->is_array()) return;
    for (const json& warning : *list) {
        if (!warning.is_string()) continue;
        if (result.warnings.size() == kMaxWarnings)
            ++result.warnings_left_out;
        else
            result.warnings.push_back(told(warning.get<std::string>()));
    }
}

bool is_true(const json& message, const char* key) {
    auto found = message.find(key);
    return found != message.end() && *found == true;
}

std::vector<PythonMatch> matches_of(pid_t process, const json& message, const char* key) {
    std::vector<PythonMatch> matches;
    auto list = message.find(key);
    if (list == message.end() || !list->is_array()) return matches;
    for (const json& entry : *list) {
        if (!entry.is_object()) continue;
        matches.push_back({process, number_in(entry, "line"), text_in(entry, "module"),
                           text_in(entry, "name"), text_in(entry, "file")});
    }
    return matches;
}

} // namespace

PythonPacket read_packet(pid_t process, std::string_view packet) {
    PythonPacket result;
    const json message = json::parse(packet, nullptr, false);
    if (!message.is_object()) return result;
    result.op = text_in(message, "op");
    result.reason = told(text_in(message, "reason") + text_in(message, "message"));
    result.matches =
        matches_of(process, message, result.op == "functions" ? "functions" : "matched");
    read_warnings(message, result);
    // Bounded before it is a signed number of ns: one above 2^63 would be a negative cost.
    constexpr auto kLargest = static_cast<uint64_t>(kMaxHookOverhead.count());
    result.hook_overhead =
        std::chrono::nanoseconds(std::min(number_in(message, "overhead_ns"), kLargest));
    result.inherited = is_true(message, "inherited");
    result.from_start = is_true(message, "from_start");
    return result;
}

} // namespace speedbump::engine
