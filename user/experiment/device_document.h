// SPDX-License-Identifier: MIT
#pragma once

#include <nlohmann/json.hpp>

#include "experiment/device_verdict.h"
#include "experiment/document.h"

// Devices in the JSON of a document (docs/json.md).
namespace speedbump::experiment {

nlohmann::ordered_json device_json(const DeviceReading& reading);
// Raises nlohmann's exceptions for what is missing, negative or of the wrong type.
DeviceReading read_device(const nlohmann::ordered_json& json);

nlohmann::ordered_json device_result_json(const DeviceResult& result, const Document& document);

} // namespace speedbump::experiment
