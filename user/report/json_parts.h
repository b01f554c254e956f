// SPDX-License-Identifier: MIT
#pragma once

#include <nlohmann/json.hpp>
#include <string>

#include "report/json.h"

// What the JSON documents of several files have in common.
namespace speedbump::report {

// The members that every document begins with.
nlohmann::ordered_json document_head(const Context& context, const std::string& schema);
// The document as one line of text.
std::string to_line(const nlohmann::ordered_json& document);

} // namespace speedbump::report
