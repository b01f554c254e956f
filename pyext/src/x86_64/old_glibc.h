// SPDX-License-Identifier: MIT
#pragma once

// The versions that the oldest functions of glibc have here, and a jump to one.
#define SB_OLDEST "GLIBC_2.2.5"
#define SB_OLDEST_CANCEL "GLIBC_2.3.3"
#define SB_JUMP(symbol) "jmp *" symbol "@GOTPCREL(%rip)\n"
