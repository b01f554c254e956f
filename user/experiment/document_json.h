// SPDX-License-Identifier: MIT
#pragma once

#include <chrono>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "experiment/document.h"

// What all readers of a document's JSON have in common. They raise nlohmann's exceptions for what
// is missing or of the wrong type; from_json() catches them.
namespace speedbump::experiment {

[[noreturn]] inline void refuse(const std::string& what) {
    throw nlohmann::ordered_json::other_error::create(501, what, nullptr);
}

// A whole number within bounds: get() takes each for one of its own type, whatever becomes of it.
inline int64_t read_number(const nlohmann::ordered_json& json, const std::string& what,
                           int64_t least, int64_t most) {
    const bool is_within = json.is_number_unsigned()
                               ? json.get<uint64_t>() <= static_cast<uint64_t>(most)
                               : json.is_number_integer() && json.get<int64_t>() >= least &&
                                     json.get<int64_t>() <= most;
    if (!is_within)
        refuse(what + " is not a whole number from " + std::to_string(least) + " to " +
               std::to_string(most));
    return json.get<int64_t>();
}

inline std::chrono::nanoseconds read_time(const nlohmann::ordered_json& json, const char* key,
                                          std::chrono::nanoseconds longest = kLongestTime) {
    return std::chrono::nanoseconds(read_number(json.at(key), key, 0, longest.count()));
}

inline std::vector<std::chrono::nanoseconds> read_times(const nlohmann::ordered_json& json,
                                                        const char* what) {
    if (!json.is_array()) refuse(std::string(what) + " is not a list");
    std::vector<std::chrono::nanoseconds> times;
    for (const nlohmann::ordered_json& one : json)
        times.emplace_back(read_number(one, what, 0, kLongestTime.count()));
    return times;
}

inline uint64_t read_count(const nlohmann::ordered_json& json, const char* what) {
    return static_cast<uint64_t>(read_number(json, what, 0, kLongestTime.count()));
}

inline std::vector<uint64_t> read_counts(const nlohmann::ordered_json& json, const char* what) {
    if (!json.is_array()) refuse(std::string(what) + " is not a list");
    std::vector<uint64_t> counts;
    for (const nlohmann::ordered_json& one : json) counts.push_back(read_count(one, what));
    return counts;
}

inline std::vector<std::vector<uint64_t>> read_rows(const nlohmann::ordered_json& json,
                                                    const char* what) {
    if (!json.is_array()) refuse(std::string(what) + " is not a list");
    std::vector<std::vector<uint64_t>> rows;
    for (const nlohmann::ordered_json& row : json) rows.push_back(read_counts(row, what));
    return rows;
}

} // namespace speedbump::experiment
