// SPDX-License-Identifier: MIT
#pragma once

// The versions that the oldest functions of glibc have here, and a jump to one.
#define SB_OLDEST "GLIBC_2.17"
#define SB_OLDEST_CANCEL SB_OLDEST
#define SB_JUMP(symbol)                \
    "adrp x16, :got:" symbol           \
    "\n"                               \
    "ldr x16, [x16, :got_lo12:" symbol \
    "]\n"                              \
    "br x16\n"
