/* SPDX-License-Identifier: (GPL-2.0-only OR MIT) */
/*
 * The limits that hold wherever a delay is taken, and what is counted: for the BPF programs, the
 * loader, the Python core and the kernel module, each declared here and nowhere else
 * (tests/check/rooms.py).
 */
#ifndef SB_COMMON_H
#define SB_COMMON_H

#include <linux/types.h>

#define SB_MAX_DELAY_SECONDS 10ULL
#define SB_MAX_DELAY_NS (SB_MAX_DELAY_SECONDS * 1000000000ULL)
#define SB_MAX_TARGETS 65536u

/* bytes of a target of the kernel module */
#define SB_PATH_MAX 256
#define SB_SYMBOL_MAX 128

/* What happened at one target in one process; summed over CPUs or threads by the reader. */
struct sb_counts {
	__u64 hits; /* matching calls seen while the session was armed */
	__u64 delays; /* of these, delayed */
	__u64 requested_ns; /* sum of the delays asked for */
	__u64 measured_ns; /* sum of what these calls were slowed by, the probe's cost included */
};

#endif
