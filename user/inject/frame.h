// SPDX-License-Identifier: MIT
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "inject/payload.h"
#include "inject/stopped.h"

namespace speedbump::inject {

// The extended state of a stopped thread (vector registers and their control), ready for a signal
// frame.
struct ExtendedState {
    std::vector<std::byte> bytes; // with what ends it
    // False: a frame would not bring all of it back.
    bool can_be_restored = true;
    // On aarch64 where in the bytes it is said where those lie for which the frame has no room; 0:
    // it has.
    size_t beyond = 0;
};
std::optional<ExtendedState> read_extended_state(pid_t tid);

// What is put on a borrowed thread's stack, and where. From the top: the red zone, which is the
// thread's own (x86-64), the code for the region, the extended state, the ucontext that
// rt_sigreturn restores, the Block, and the canary that a signal handler's frame overwrites.
struct Image {
    std::vector<std::byte> bytes; // to be written at `start`
    uint64_t start = 0;
    uint64_t end = 0;
    uint64_t context = 0; // address of the ucontext
    uint64_t block = 0;   // address of the Block
    uint64_t entry = 0;   // the stack pointer to start with
};

// `common` is the Block without what depends on the thread. To be made at once after the stop: what
// is left of a time-out is counted from here.
Image make_image(const Resumption& resumption, const ExtendedState& extended, uint64_t signal_mask,
                 const Block& common);

// The index of the stack pointer in a ucontext of 64-bit words; that of the program counter is the
// next.
extern const size_t kStackPointerWord;

} // namespace speedbump::inject
