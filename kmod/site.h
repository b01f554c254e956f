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
 * it is known to do under a uprobe what it does without one, on every kernel that the module is built
 * for; else -EOPNOTSUPP.
 */
int sb_site_length(const u8 *code, size_t length);

/*
 * Whether a probe may sit at `offset` of the file: 0; -EOPNOTSUPP when what stands there is no such
 * instruction, or a 5-byte nop, which kernels turn into a call, elsewhere than at a function's entry;
 * or the errno of the file.
 */
int sb_site_check(const struct sb_reader *reader, u64 offset);

#endif
