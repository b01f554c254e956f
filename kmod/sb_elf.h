/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Reads ELF files that may be truncated, corrupt or hostile: every read is checked against the
 * file's size, every allocation has a fixed limit, every loop an end.
 */
#ifndef SB_ELF_H
#define SB_ELF_H

#include <linux/types.h>

/* A file to read. `read` gives the number of bytes read or a negative errno. */
struct sb_reader {
	ssize_t (*read)(void *context, void *buffer, size_t length, u64 offset);
	void *context;
	u64 size;
};

/*
 * The file offset of the function `symbol`: 0; -ENOENT when no entry of that name is a function's
 * definition; -ENOEXEC when the file is no sound ELF executable or library of this machine; -ENOMEM
 * or the reader's errno.
 */
int sb_elf_symbol(const struct sb_reader *reader, const char *symbol, u64 *offset);

/* 0 when some function begins at `offset`, else as sb_elf_symbol(). */
int sb_elf_entry(const struct sb_reader *reader, u64 offset);

/* 0 when `offset` lies in the file's executable code, else as sb_elf_symbol(). */
int sb_elf_offset(const struct sb_reader *reader, u64 offset);

#endif
