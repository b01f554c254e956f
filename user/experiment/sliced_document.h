// SPDX-License-Identifier: MIT
#pragma once

#include <nlohmann/json.hpp>

#include "experiment/document.h"

// Short slices in the JSON of a document (docs/json.md).
namespace speedbump::experiment {

nlohmann::ordered_json sliced_json(const Sliced& sliced);
// Of as many targets and progress points as the document has. Raises nlohmann's exceptions for all
// that sliced_json() would not have written.
Sliced read_sliced(const nlohmann::ordered_json& json, const Document& document);
// Sliced::since_ns of as many progress points as the document has; the caller checks the rows.
std::vector<std::vector<uint64_t>> read_since(const nlohmann::ordered_json& json,
                                              const Document& document);

} // namespace speedbump::experiment
