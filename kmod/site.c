// SPDX-License-Identifier: GPL-2.0-only
#include <linux/errno.h>
#include <linux/kernel.h>
#include <linux/string.h>

#include "site.h"

int sb_site_check(const struct sb_reader *reader, u64 offset, struct sb_site_kernel kernel,
		  u8 code[SB_SITE_MAX])
{
	ssize_t got;

	if (offset >= reader->size)
		return -ENOENT;
	memset(code, 0, SB_SITE_MAX);
	got = reader->read(reader->context, code, min_t(u64, SB_SITE_MAX, reader->size - offset),
			   offset);
	return got < 0 ? got : sb_site_judge(reader, offset, kernel, code, got);
}
