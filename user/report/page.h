// SPDX-License-Identifier: MIT
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

// Pages of HTML that ask nothing of any network: scripts and data lie in them.
namespace speedbump::report {

// The template with this script for its @SCRIPT@, where it has one, and the data for its @DATA@.
std::string fill_page(std::string_view page, std::string_view script,
                      const nlohmann::ordered_json& data);

} // namespace speedbump::report
