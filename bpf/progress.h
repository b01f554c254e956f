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
/*
 * Calls at a device's interface, which are told one by one (struct sb_device_event); with
 * SB_PROGRESS_BEGINS, their end as well.
 */
#define SB_PROGRESS_LAUNCHES 8u     /* work is queued, and is a unit */
#define SB_PROGRESS_RECORDS 16u     /* an event is put behind what is queued */
#define SB_PROGRESS_WAITS 32u       /* the caller waits for what is queued */
#define SB_PROGRESS_DEVICE_ENDS 64u /* a call that was told of may end */
#define SB_PROGRESS_CALLS (SB_PROGRESS_LAUNCHES | SB_PROGRESS_RECORDS | SB_PROGRESS_WAITS)
#define SB_PROGRESS_DEVICE (SB_PROGRESS_CALLS | SB_PROGRESS_DEVICE_ENDS)
#define SB_DEVICE_HAS_QUEUE 0x100u /* the function has such an argument */
#define SB_DEVICE_HAS_EVENT 0x200u
#define SB_NOT_WITHIN 0xffffffffu /* for sb_argument.within */
#define SB_DEVICE_RING_BYTES (16u << 20)

struct sb_code_part {
	__u64 begin;
	__u64 end;
};

/* Where a call has one of its arguments; in no register and not on the stack: it is 0. */
struct sb_argument {
	__u8 number; /* of its register, as a word of struct pt_regs, or SB_NO_REGISTER */
	__u8 reserved;
	__u16 on_stack; /* bytes above the stack pointer at the entry; 0: it is not there */
	__u32 within;   /* it points to a struct that has the value at this offset */
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
	struct sb_argument queue; /* of a call at a device's interface */
	struct sb_argument event;
};

SB_ASSERT(sizeof(struct sb_progress_site) == 184, "sb_progress_site");

/* A call at a device's interface that begins or ends, in the order in which they happen. */
struct sb_device_event {
	__u64 at_ns;    /* CLOCK_MONOTONIC */
	__u64 begin_ns; /* 0: it begins at at_ns; else it began then and ends */
	__u64 place;    /* the stack pointer at its entry */
	__u64 queue;
	__u64 event;
	__u32 tgid;
	__u32 tid;
	__u32 progress;
	__u32 actions; /* SB_PROGRESS_CALLS and SB_DEVICE_HAS_*, 0 at the end */
};

SB_ASSERT(sizeof(struct sb_device_event) == 56, "sb_device_event");

#endif /* SPEEDBUMP_PROGRESS_H */
