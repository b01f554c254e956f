// SPDX-License-Identifier: MIT
#pragma once

#include <string>
#include <vector>

#include "cases.h"

namespace speedbump::sites {

struct Host {
    unsigned kernel; // 0x0612 for 6.18
    bool turns_nops_into_calls;
};

enum class Known { kRight, kWrong, kNothing };

// Code that the kernel is known to get wrong, or that shows that it gets several probes right.
struct KnownCode {
    std::string name;
    Bytes code;
    std::vector<size_t> probes;
    Known known;           // what this test has to find
    bool may_push = false; // see Slot
    Place place = Place::kInside;
};
std::vector<KnownCode> known_code(const Host& host);

} // namespace speedbump::sites
