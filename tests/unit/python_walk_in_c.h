// SPDX-License-Identifier: MIT
#pragma once

#include "abi.h"

#ifdef __cplusplus
extern "C" {
#endif

// bpf/python_walk.h as the BPF program has it, compiled as C: the frames of the thread with this
// state, over `read`, which is 0 where all of a piece is there. At most `max`; their number, and a
// fault as in sb_stack_sample.
__u32 python_walk_in_c(int (*read)(void* memory, void* to, __u32 size, __u64 address), void* memory,
                       const struct sb_python_layout* layout, __u64 state,
                       struct sb_python_frame* frames, __u32 max, __u32* fault);

#ifdef __cplusplus
}
#endif
