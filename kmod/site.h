/* SPDX-License-Identifier: GPL-2.0-only */
/* Which instructions may hold a probe. Pure: no kernel state. */
#ifndef SB_SITE_H
#define SB_SITE_H

#include <linux/types.h>

#include "sb_elf.h"

/* no instruction is longer */
#define SB_SITE_MAX 15

/*
 * The length of the x86-64 instruction that begins at `code`, of which `length` bytes are there, when
 * it is known to do under a uprobe what it does without one; else -EOPNOTSUPP. Of a 5-byte nop that
 * is true of some kernels and places only: see sb_site_check().
 */
int sb_site_length(const u8 *code, size_t length);

/*
 * Whether a probe may sit at `offset` of the file: 0; -EOPNOTSUPP when what stands there is no such
 * instruction, or a 5-byte nop, unless `nop5_is_safe` (SB_NOP5_IS_SAFE) and it is where a function
 * begins; or the errno of the file.
 */
int sb_site_check(const struct sb_reader *reader, u64 offset, bool nop5_is_safe);

#endif
