// SPDX-License-Identifier: MIT
#include <dlfcn.h>

// In a statically linked program, in the place of libc's: libdw asks for libdebuginfod as soon as
// DEBUGINFOD_URLS is set, and a library of the host brings the host's own libc in with it.
extern "C" void* dlopen(const char*, int) noexcept {
    return nullptr;
}
