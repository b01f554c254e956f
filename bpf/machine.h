/* SPDX-License-Identifier: (GPL-2.0-only OR MIT) */
/*
 * What differs between processors, for the BPF programs: with SB_REGISTERS of abi.h the one place
 * here that asks which one it is. Registers are words of what bpf_task_pt_regs() and the programs
 * of uprobes are given.
 */
#ifndef SPEEDBUMP_MACHINE_H
#define SPEEDBUMP_MACHINE_H

#include <linux/types.h>

#if defined(__TARGET_ARCH_arm64) || defined(__aarch64__)

#define SB_SP 31 /* struct user_pt_regs: x0 to x30, sp, pc, pstate */
#define SB_IP 32
#define SB_FLAGS 33
#define SB_GOROUTINE 28
#define SB_XOL_SLOT 4u /* bytes (kernel/events/uprobes.c: UPROBE_XOL_SLOT_BYTES) */

/* Whether a jump on this condition is taken. The loader makes no site of one yet (elf/exits). */
static __always_inline bool sb_is_taken(__u8 condition, __u64 flags)
{
	return false;
}

#else

#define SB_GOROUTINE 1 /* struct pt_regs: r14 */
#define SB_IP 16
#define SB_FLAGS 18
#define SB_SP 19
#define SB_XOL_SLOT 128u

/* Whether a jump on this condition is taken. */
static __always_inline bool sb_is_taken(__u8 condition, __u64 flags)
{
	bool carry = flags & 0x1, parity = flags & 0x4, zero = flags & 0x40;
	bool less = !(flags & 0x80) != !(flags & 0x800);
	bool holds;

	switch (condition >> 1) {
	case 0:
		holds = flags & 0x800;
		break;
	case 1:
		holds = carry;
		break;
	case 2:
		holds = zero;
		break;
	case 3:
		holds = carry || zero;
		break;
	case 4:
		holds = flags & 0x80;
		break;
	case 5:
		holds = parity;
		break;
	case 6:
		holds = less;
		break;
	default:
		holds = less || zero;
	}
	return holds != (condition & 1);
}

#endif

#endif /* SPEEDBUMP_MACHINE_H */
