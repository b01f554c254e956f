/* SPDX-License-Identifier: (GPL-2.0-only OR MIT) */
/*
 * What bpf/progress.bpf.c and the loader share. Fixed-width types only, padding explicit.
 */
#ifndef SPEEDBUMP_PROGRESS_H
#define SPEEDBUMP_PROGRESS_H

#include "abi.h"

/*
 * Progress points in native code (bpf/progress.bpf.c). The cookie of a probe is the number of its
 * site, and the set, as that of a delay.
 */
#define SB_MAX_PROGRESS_SITES 4096u
#define SB_MAX_TIMED_CALLS 65536u
#define SB_CODE_PARTS 8u
#define SB_ALWAYS 16u       /* for sb_progress_site.condition */
#define SB_NO_REGISTER 255u /* for sb_progress_site.base and .index */

#define SB_PROGRESS_COUNTS 1u /* a call is a unit */
#define SB_PROGRESS_BEGINS 2u /* a call that is timed begins */
#define SB_PROGRESS_ENDS 4u   /* one may end, and is a unit then */

struct sb_code_part {
	__u64 begin;
	__u64 end;
};

/* What a hit of one probe means. Addresses are those of the file, before relocation. */
struct sb_progress_site {
	__u32 progress;
	__u32 sets; /* SB_SETS() */
	__u8 actions;
	__u8 is_go;     /* its calls are told by the goroutine and the place in its stack */
	__u8 condition; /* of a jump that ends the call only when taken, as in its machine code */
	__u8 is_indirect;  /* a jump that ends the call only where it leads out of all parts, */
	__u8 in_memory;    /* to base + index * scale + displacement, or what lies there */
	__u8 base;  /* registers as words of struct pt_regs */
	__u8 index;
	__u8 scale;
	__s64 displacement;
	__u64 address;
	__u64 stack_used; /* by how much the stack pointer is lower than at the entry */
	struct sb_code_part parts[SB_CODE_PARTS]; /* of the function; begin == end: none */
};

SB_ASSERT(sizeof(struct sb_progress_site) == 168, "sb_progress_site");

#endif /* SPEEDBUMP_PROGRESS_H */
