// SPDX-License-Identifier: MIT
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "experiment/document.h"

// What is tried, and in which order. Pure functions.
namespace speedbump::experiment {

// The arms of one block in its random order: probe, sham, every dose of every target that
// `targets` names, and off where asked for. The same seed and block give the same order.
std::vector<Arm> arms_of_block(const Document& document, const std::vector<size_t>& targets,
                               bool with_off, size_t block);

// Four evenly spaced doses up to `top`, two significant digits each.
std::vector<nanoseconds> doses_up_to(nanoseconds top);

} // namespace speedbump::experiment
