// SPDX-License-Identifier: MIT
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "util/result.h"

namespace speedbump::experiment {

// One argument of a function, from 1 on, or a field of the struct that it points to.
struct DeviceArgument {
    unsigned number = 0; // 0: the function has none
    std::optional<uint32_t> within;
};

// A function at the interface of an asynchronous device. One that launches and waits is a launch
// that may wait for room in a queue.
struct DeviceFunction {
    std::string name; // as in a targets file
    bool launches = false;
    bool records = false; // puts an event behind what is queued
    bool waits = false;
    DeviceArgument queue; // none: of a launch, the one queue; of a wait, all of them
    DeviceArgument event;
};

struct DeviceSpec {
    std::string binary; // as in a targets file
    std::vector<DeviceFunction> functions;
    bool may_lack = false; // some of them: versions of the library differ
};

// What stands after "device:": "cuda", or BINARY:LAUNCHES:WAITS, lists of functions with those of
// their arguments that name a queue or an event: f(_,stream), f(event,stream), f(stream@32), f.
// kUsage, with what is wrong.
Result<DeviceSpec> parse_device(const std::string& text);

} // namespace speedbump::experiment
