/* SPDX-License-Identifier: GPL-2.0-only */
/* The text of a command, as written to `targets` or to the device. Pure: no kernel state. */
#ifndef SB_COMMAND_H
#define SB_COMMAND_H

#include <linux/types.h>

#include "sb_common.h"

/* no valid command is longer; a longer write could be split by the caller and half applied */
#define SB_COMMAND_MAX 512

enum sb_verb { SB_ADD, SB_REMOVE, SB_REMOVE_ALL, SB_UPDATE };

struct sb_command {
	enum sb_verb verb;
	bool has_delay;
	bool has_pid;
	bool has_offset;	/* the symbol is 0x…, a file offset */
	u64 delay_ns;
	u64 offset;
	int pid;
	size_t path_length;
	char name[SB_PATH_MAX + 1 + SB_SYMBOL_MAX + 1];	/* PATH:SYMBOL */
};

/* Reads one command of `length` bytes; 0, -EINVAL, -ENAMETOOLONG or -ERANGE. */
int sb_command_parse(const char *text, size_t length, struct sb_command *command);

/* Reads a decimal number with at most one trailing newline: 0, -EINVAL, or -ERANGE over `max`. */
int sb_number_parse(const char *text, size_t length, u64 max, u64 *value);

/* The path of a command: `buffer` has SB_PATH_MAX + 1 bytes. */
void sb_command_path(const struct sb_command *command, char *buffer);

/* The symbol of a command, inside its name. */
static inline const char *sb_command_symbol(const struct sb_command *command)
{
	return command->name + command->path_length + 1;
}

#endif
