// SPDX-License-Identifier: MIT
#pragma once

#ifdef __cplusplus
extern "C" {
#endif

// Calls work(argument). A thread that pthread_exit() ends in there waits for ever instead, as long
// as nothing in between has a cleanup of C++: a static libgcc aborts when the one of the C library
// unwinds it.
void sb_stay(void (*work)(void*), void* argument);

#ifdef __cplusplus
}
#endif
