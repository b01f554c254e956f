// SPDX-License-Identifier: MIT
#pragma once

#include <chrono>
#include <nlohmann/json.hpp>
#include <string>

// What all readers of a document's JSON have in common. They raise nlohmann's exceptions for what
// is missing or of the wrong type; from_json() catches them.
namespace speedbump::experiment {

[[noreturn]] inline void refuse(const std::string& what) {
    throw nlohmann::ordered_json::other_error::create(501, what, nullptr);
}

inline std::chrono::nanoseconds read_time(const nlohmann::ordered_json& json, const char* key) {
    const std::chrono::nanoseconds time(json.at(key).get<int64_t>());
    if (time.count() < 0) refuse(std::string(key) + " is negative");
    return time;
}

} // namespace speedbump::experiment
