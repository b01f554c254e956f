// SPDX-License-Identifier: MIT
#include "engine/python/python_packets.h"

#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
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
        if (matches.size() == kMaxMatches) break;
        matches.push_back({process, number_in(entry, "line"), text_in(entry, "module"),
                           text_in(entry, "name"), text_in(entry, "file")});
    }
    return matches;
}

} // namespace

// One packet; empty when none waits or the other end is gone.
std::optional<std::string> receive(int channel) {
    constexpr size_t kMaxPacket = 65536; // pyext/src/serve.h
    std::string packet(kMaxPacket, '\0');
    ssize_t got;
    do {
        got = recv(channel, packet.data(), packet.size(), MSG_DONTWAIT);
    } while (got < 0 && errno == EINTR);
    if (got <= 0) return std::nullopt;
    packet.resize(static_cast<size_t>(got));
    return packet;
}

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
    const auto time_in = [&](const char* key) {
        return std::chrono::nanoseconds(std::min(number_in(message, key), kLargest));
    };
    result.hook_overhead = time_in("overhead_ns");
    result.held = time_in("held_ns");
    if (message.contains("number")) result.number = number_in(message, "number");
    result.inherited = is_true(message, "inherited");
    result.from_start = is_true(message, "from_start");
    result.more = is_true(message, "more");
    if (const auto keys = message.find("modules"); keys != message.end() && keys->is_array())
        for (const json& key : *keys)
            if (key.is_number_unsigned() && result.modules.size() < kMaxModules)
                result.modules.push_back(key.get<uint64_t>());
    return result;
}

} // namespace speedbump::engine
