// SPDX-License-Identifier: MIT
#pragma once

#include <array>
#include <cstdint>

#include "engine/engine.h"

namespace speedbump::engine {

// A function of this program itself, of one kind of probe site, that is probed in this process
// alone. It does nothing and returns.
struct CalibrationSite {
    elf::SiteKind kind;
    void (*function)();
};
// One of each kind, to calibrate with.
std::array<CalibrationSite, 3> calibration_sites();
// Others, to try features with: a probe that is still being taken out must not cost a calibrated
// call anything.
std::array<CalibrationSite, 3> feature_sites();

// The offset of an instruction of this program in its own file (/proc/self/exe); 0 if unknown.
uint64_t own_file_offset(const void* address);

} // namespace speedbump::engine
