// SPDX-License-Identifier: MIT
#pragma once

#include <vector>

#include "engine/engine.h"
#include "util/result.h"

namespace speedbump::engine {

// All that a map of tallies (bpf/delay.bpf.c, its descriptor) holds, each the sum over the CPUs;
// `process` is a tgid. Never a part of it: what fails for a moment is tried again, else an error.
Result<std::vector<Counts>> read_tallies(int map);

} // namespace speedbump::engine
