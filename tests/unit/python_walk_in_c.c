// SPDX-License-Identifier: MIT
#include "python_walk_in_c.h"

#include <string.h>

struct sb_reader {
    int (*read)(void* memory, void* to, __u32 size, __u64 address);
    void* memory;
};

#define SB_READ(reader, to, size, address) ((reader)->read((reader)->memory, to, size, address))
#define SB_AHEAD(reader, address, size)
#include "python_walk.h"

__u32 python_walk_in_c(int (*read)(void*, void*, __u32, __u64), void* memory,
                       const struct sb_python_layout* layout, __u64 state,
                       struct sb_python_frame* frames, __u32 max, __u32* fault) {
    struct sb_reader reader = {read, memory};
    struct sb_walk walk = {0, 0, 0};
    __u32 count = 0;

    *fault = SB_PYTHON_UNREADABLE;
    if (sb_innermost(&reader, layout, state, &walk.next)) return 0;
    for (; walk.next && count < max; count++) {
        struct sb_python_frame frame = {};
        if (sb_walk_step(&reader, layout, &walk, &frame)) return count;
        memcpy(&frames[count], &frame, sizeof(frame));
    }
    *fault = walk.next ? SB_PYTHON_DEEP : SB_PYTHON_FINE;
    return count;
}
