// SPDX-License-Identifier: MIT
#pragma once

#include <array>
#include <cstdint>

#include "engine/engine.h"

namespace speedbump::engine {

// Functions of this program itself, one for each kind of probe site, that calibration probes in
// this process alone. Each does nothing and returns.
struct CalibrationSite {
    elf::SiteKind kind;
    void (*function)();
};
std::array<CalibrationSite, 3> calibration_sites();

// The offset of an instruction of this program in its own file (/proc/self/exe); 0 if unknown.
uint64_t own_file_offset(const void* address);

} // namespace speedbump::engine
