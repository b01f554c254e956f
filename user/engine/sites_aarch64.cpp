// SPDX-License-Identifier: MIT
#include "engine/sites.h"

// The first instruction of each decides how the kernel gets past the probe
// (arch/arm64/kernel/probes/decode-insn.c). A nop is emulated from Linux 6.13 on, and stepped
// before: it has a cost of its own.
#define SPEEDBUMP_OPTIMIZED_NOP "nop\n ret"
#define SPEEDBUMP_EMULATED "b 1f\n1: ret"
#define SPEEDBUMP_SINGLE_STEP "mov w0, w1\n ret"

#define SPEEDBUMP_SITE(name, code)                                                             \
    asm(".text\n .p2align 6\n .type " #name ", %function\n" #name ":\n" code "\n .size " #name \
        ", .-" #name "\n");                                                                    \
    extern "C" void name()

SPEEDBUMP_SITE(speedbump_calibrate_optimized_nop, SPEEDBUMP_OPTIMIZED_NOP);
SPEEDBUMP_SITE(speedbump_calibrate_emulated, SPEEDBUMP_EMULATED);
SPEEDBUMP_SITE(speedbump_calibrate_single_step, SPEEDBUMP_SINGLE_STEP);
SPEEDBUMP_SITE(speedbump_feature_optimized_nop, SPEEDBUMP_OPTIMIZED_NOP);
SPEEDBUMP_SITE(speedbump_feature_emulated, SPEEDBUMP_EMULATED);
SPEEDBUMP_SITE(speedbump_feature_single_step, SPEEDBUMP_SINGLE_STEP);

namespace speedbump::engine {

std::array<CalibrationSite, 3> calibration_sites() {
    return {{{elf::SiteKind::kOptimizedNop, speedbump_calibrate_optimized_nop},
             {elf::SiteKind::kEmulated, speedbump_calibrate_emulated},
             {elf::SiteKind::kSingleStep, speedbump_calibrate_single_step}}};
}

std::array<CalibrationSite, 3> feature_sites() {
    return {{{elf::SiteKind::kOptimizedNop, speedbump_feature_optimized_nop},
             {elf::SiteKind::kEmulated, speedbump_feature_emulated},
             {elf::SiteKind::kSingleStep, speedbump_feature_single_step}}};
}

} // namespace speedbump::engine
