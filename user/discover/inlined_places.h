// SPDX-License-Identifier: MIT
#pragma once

#include <sys/types.h>

#include <string>
#include <vector>

#include "elf/inlined.h"
#include "targets/target.h"

namespace speedbump::discover {

// A function whose code debug information shows in others: its calls are not counted there.
struct InlinedPlace {
    std::string path;
    elf::InlinedFunction function;
};

// Those that the lines name, in each file that the processes map.
std::vector<InlinedPlace> find_inlined(const std::vector<pid_t>& pids,
                                       const targets::TargetsFile& file);

} // namespace speedbump::discover
