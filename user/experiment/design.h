// SPDX-License-Identifier: MIT
#pragma once

#include <cstdint>
#include <string>

#include "experiment/runner.h"
#include "util/result.h"

// How the targets of an experiment are measured: all at once, in short slices that the clock
// switches (decision 12), or one after the other, in long ones (decision 4). Pure functions.
namespace speedbump::experiment {

struct Design {
    bool at_once = false;
    uint32_t columns = 0; // of a schedule, that the session must be attached with; 0 unless at once
    std::string why;      // one after the other, though nobody asked for it
};

// All at once unless long slices are asked for, or what is asked for takes them. kUsage where short
// ones are, and can't be.
Result<Design> design_of(const Request& request);

// The length of short slices for units of `period` ns, of which there are to be enough in this time
// (0: there is no end to it). What a call costs that is rare is told no better by longer ones: the
// noise of a slice grows with it as its longest dose does.
nanoseconds slice_length(double period, nanoseconds time = nanoseconds(0));

// Whether such a slice holds enough units to tell anything.
bool fits_short_slices(double period, nanoseconds time = nanoseconds(0));

} // namespace speedbump::experiment
