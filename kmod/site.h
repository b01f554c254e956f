/* SPDX-License-Identifier: GPL-2.0-only */
/* Which instructions may hold a probe: site_x86_64.c, site_aarch64.c. Pure: no kernel state. */
#ifndef SB_SITE_H
#define SB_SITE_H

#include <linux/types.h>

#include "sb_elf.h"

/* no instruction of any machine is longer */
#define SB_SITE_MAX 15

/*
 * The length of the instruction that begins at `code`, of which `length` bytes are there, when it is
 * known to do under a uprobe what it does without one; else -EOPNOTSUPP. Of a 5-byte nop of x86-64
 * that is true of some kernels and places only: see sb_site_check().
 */
int sb_site_length(const u8 *code, size_t length);

/* What this kernel does right besides, on x86-64. */
struct sb_site_kernel {
	bool nop5_is_safe;	/* SB_NOP5_IS_SAFE: 5-byte nops, where a function begins */
	bool call_is_safe;	/* sb_call_is_safe(): no process has a shadow stack */
};

/*
 * Whether a probe may sit at `offset` of the file: 0; -EOPNOTSUPP when what stands there is no such
 * instruction, or one that this kernel does not do right; or the errno of the file. `code` becomes
 * what stands there, 0 behind the file's end.
 */
int sb_site_check(const struct sb_reader *reader, u64 offset, struct sb_site_kernel kernel,
		  u8 code[SB_SITE_MAX]);

/* The same of the `length` bytes that stand at `offset`. */
int sb_site_judge(const struct sb_reader *reader, u64 offset, struct sb_site_kernel kernel,
		  const u8 *code, size_t length);

#endif
