// SPDX-License-Identifier: MIT
#pragma once

#include "cli/gate.h"
#include "cli/results.h"
#include "experiment/pair_runner.h"

namespace speedbump::cli {

// `experiment --ab`: two builds side by side.
struct AbArguments {
    experiment::PairRequest request;
    GateArguments gate;
    ResultFiles files; // html: none
    OutputArguments output;
};
Result<int> run_ab(const AbArguments& arguments);

} // namespace speedbump::cli
