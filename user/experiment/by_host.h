// SPDX-License-Identifier: MIT
#pragma once

#include <vector>

#include "experiment/analysis.h"
#include "experiment/document.h"

namespace speedbump::experiment {

// Of each host of a fleet: what each function does there, by the first progress point. Where all
// hosts were slowed together that is by the host's own progress, and a host that has none, or has
// told too little, has no targets here. The document has a fleet. Pure.
std::vector<HostResult> examine_hosts(const Document& document, const ProgressResult& progress);

} // namespace speedbump::experiment
