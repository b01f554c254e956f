// SPDX-License-Identifier: MIT
#pragma once

// Of functions that jumps are put into: far from all other code. Each byte within 129 of a function
// may look like a short jump into it, by what the compiler happens to put there, and then nothing
// is patched.
#define APART gnu::noinline, gnu::used, gnu::aligned(512)
