// SPDX-License-Identifier: MIT
#pragma once

#include <nlohmann/json.hpp>

#include "experiment/document.h"

// The hosts of a fleet in the JSON of a document (docs/json.md).
namespace speedbump::experiment {

nlohmann::ordered_json fleet_json(const Fleet& fleet);
// Without the raw slices.
nlohmann::ordered_json fleet_summary_json(const Fleet& fleet);
// Of a document that has its slices. Raises nlohmann's exceptions for all that fleet_json() would
// not have written.
Fleet read_fleet(const nlohmann::ordered_json& json, const Document& document);
// Raises one where a target is of a host that there isn't.
void check_hosts_of_targets(const Document& document);

} // namespace speedbump::experiment
