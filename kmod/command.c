// SPDX-License-Identifier: GPL-2.0-only
#include <linux/errno.h>
#include <linux/limits.h>
#include <linux/string.h>

#include "command.h"

#define SB_PID_MAX 0x7fffffffULL

/* The rest of the text; words are taken from its front. */
struct sb_text {
	const char *at;
	size_t left;
};

static bool sb_take_word(struct sb_text *text, struct sb_text *word)
{
	while (text->left && *text->at == ' ') {
		text->at++;
		text->left--;
	}
	word->at = text->at;
	while (text->left && *text->at != ' ') {
		text->at++;
		text->left--;
	}
	word->left = text->at - word->at;
	return word->left > 0;
}

static int sb_digits(struct sb_text word, unsigned int base, u64 max, u64 *value)
{
	u64 result = 0;
	bool over = false;

	if (!word.left)
		return -EINVAL;
	for (; word.left; word.at++, word.left--) {
		char c = *word.at;
		unsigned int digit;

		if (c >= '0' && c <= '9')
			digit = c - '0';
		else if (c >= 'a' && c <= 'f')
			digit = c - 'a' + 10;
		else if (c >= 'A' && c <= 'F')
			digit = c - 'A' + 10;
		else
			return -EINVAL;
		if (digit >= base)
			return -EINVAL;
		/* max is below 2^63: the sum can't wrap before it is found too large */
		if (!over)
			result = result * base + digit;
		over = over || result > max;
	}
	if (over)
		return -ERANGE;
	*value = result;
	return 0;
}

static void sb_drop_newline(struct sb_text *text)
{
	if (text->left && text->at[text->left - 1] == '\n')
		text->left--;
}

int sb_number_parse(const char *text, size_t length, u64 max, u64 *value)
{
	struct sb_text word = { text, length };

	sb_drop_newline(&word);
	return sb_digits(word, 10, max, value);
}

static int sb_parse_name(struct sb_text word, struct sb_command *command)
{
	const char *colon = memchr(word.at, ':', word.left);
	size_t path_length, symbol_length;

	if (!colon)
		return -EINVAL;
	path_length = colon - word.at;
	symbol_length = word.left - path_length - 1;
	if (!path_length || word.at[0] != '/' || !symbol_length)
		return -EINVAL;
	if (path_length > SB_PATH_MAX || symbol_length > SB_SYMBOL_MAX)
		return -ENAMETOOLONG;
	memcpy(command->name, word.at, word.left);
	command->name[word.left] = '\0';
	command->path_length = path_length;
	if (symbol_length > 1 && colon[1] == '0' && (colon[2] == 'x' || colon[2] == 'X')) {
		struct sb_text digits = { colon + 3, symbol_length - 2 };
		int ret = sb_digits(digits, 16, LLONG_MAX, &command->offset);

		if (ret)
			return -EINVAL;
		command->has_offset = true;
	}
	return 0;
}

/* [DELAY_NS] [pid=N], each at most once and in this order */
static int sb_parse_options(struct sb_text *text, struct sb_command *command)
{
	struct sb_text word;
	u64 pid;
	int ret;

	if (!sb_take_word(text, &word))
		return 0;
	if (word.at[0] >= '0' && word.at[0] <= '9') {
		ret = sb_digits(word, 10, SB_MAX_DELAY_NS, &command->delay_ns);
		if (ret)
			return ret;
		command->has_delay = true;
		if (!sb_take_word(text, &word))
			return 0;
	}
	if (word.left < 4 || memcmp(word.at, "pid=", 4))
		return -EINVAL;
	word.at += 4;
	word.left -= 4;
	if (sb_digits(word, 10, SB_PID_MAX, &pid) || !pid)
		return -EINVAL;
	command->pid = pid;
	command->has_pid = true;
	return sb_take_word(text, &word) ? -EINVAL : 0;
}

int sb_command_parse(const char *text, size_t length, struct sb_command *command)
{
	struct sb_text rest = { text, length }, word;
	size_t i;
	int ret;

	memset(command, 0, sizeof(*command));
	sb_drop_newline(&rest);
	if (!rest.left)
		return -EINVAL;
	for (i = 0; i < rest.left; i++)
		if ((unsigned char)rest.at[i] < ' ' || rest.at[i] == 0x7f)
			return -EINVAL;
	switch (rest.at[0]) {
	case '+':
		command->verb = SB_ADD;
		break;
	case '-':
		command->verb = SB_REMOVE;
		break;
	case '=':
		command->verb = SB_UPDATE;
		break;
	default:
		return -EINVAL;
	}
	rest.at++;
	rest.left--;
	if (!rest.left || rest.at[0] == ' ')
		return -EINVAL;
	sb_take_word(&rest, &word);
	if (command->verb == SB_REMOVE && word.left == 1 && word.at[0] == '*') {
		command->verb = SB_REMOVE_ALL;
		ret = 0;
	} else {
		ret = sb_parse_name(word, command);
	}
	if (ret)
		return ret;
	if (command->verb == SB_REMOVE || command->verb == SB_REMOVE_ALL)
		ret = sb_take_word(&rest, &word) ? -EINVAL : 0;
	else
		ret = sb_parse_options(&rest, command);
	if (ret)
		return ret;
	if (command->verb == SB_UPDATE && !command->has_delay)
		return -EINVAL;
	return length > SB_COMMAND_MAX ? -EINVAL : 0;
}

void sb_command_path(const struct sb_command *command, char *buffer)
{
	memcpy(buffer, command->name, command->path_length);
	buffer[command->path_length] = '\0';
}
