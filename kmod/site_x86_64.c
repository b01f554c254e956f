// SPDX-License-Identifier: GPL-2.0-only
#include <linux/errno.h>
#include <linux/kernel.h>
#include <linux/string.h>

#include "site.h"

/*
 * Uprobes get past an instruction by emulating it, or by executing a copy of it elsewhere. For most
 * instructions that is the same, but kernels take some VEX and EVEX instructions for branches and
 * skip them, 41 90 for a nop, count a repeated string instruction once for each iteration, let pushf
 * show the trap flag, and turn what does nothing in 5 bytes into a call over what lies below the
 * stack pointer. So what is not listed here is refused: the forms of legacy encoding that compilers
 * emit and every kernel gets right. The loader has the same list (user/elf/probe_site_x86_64.cpp).
 */

/* Prefixes that an instruction of a rule may have; RULE_NONE: it may have none of 66, f2, f3. */
#define RULE_NONE	0x01
#define RULE_66		0x02
#define RULE_F2		0x04
#define RULE_F3		0x08
#define RULE_REX	0x10	/* besides the others */
#define RULE_TLS	0x20	/* fs or gs besides the others; a store may begin a restartable sequence */

#define RULE_PLAIN	(RULE_NONE | RULE_66 | RULE_REX)
#define RULE_LOAD	(RULE_PLAIN | RULE_TLS)
#define RULE_SSE	(RULE_NONE | RULE_66 | RULE_F2 | RULE_F3 | RULE_REX | RULE_TLS)
#define RULE_SSE2	(RULE_66 | RULE_REX | RULE_TLS)

/* What follows the opcode. */
#define HAS_MODRM	0x01
#define HAS_IMM8	0x02
#define HAS_IMMZ	0x04	/* 4 bytes, 2 with 66 */
#define HAS_IMMV	0x08	/* 8 bytes with REX.W, else as HAS_IMMZ */
#define ONLY_MEMORY	0x10	/* the operand is not a register */
#define ONLY_REGISTER	0x20
#define ONLY_WIDE	0x40	/* REX.W */
#define NOT_WIDE	0x80

#define ANY_REG		0xff
#define NO_REX_BITS	0x01
#define ONLY_REX_B	0x02
#define REX_B		0x03

struct sb_rule {
	u8 first;
	u8 last;	/* opcodes */
	u8 prefixes;
	u8 shape;
	u8 regs;	/* bit n: ModRM.reg, or without it what REX says of registers, may be n */
};

#define M	HAS_MODRM
#define MI	(HAS_MODRM | HAS_IMM8)
#define MZ	(HAS_MODRM | HAS_IMMZ)
#define MM	(HAS_MODRM | ONLY_MEMORY)
#define MR	(HAS_MODRM | ONLY_REGISTER)

static const struct sb_rule sb_one_byte[] = {
	/* 00 to 3f: sb_arithmetic, sb_compare */
	{ 0x50, 0x5b, RULE_NONE | RULE_REX, NOT_WIDE, ONLY_REX_B },	/* push, pop */
	{ 0x5d, 0x5f, RULE_NONE | RULE_REX, NOT_WIDE, ONLY_REX_B },
	{ 0x63, 0x63, RULE_LOAD, M | ONLY_WIDE, ANY_REG },		/* movslq */
	{ 0x68, 0x68, RULE_NONE, HAS_IMMZ, ANY_REG },			/* push */
	{ 0x69, 0x69, RULE_LOAD, MZ, ANY_REG },				/* imul */
	{ 0x6a, 0x6a, RULE_NONE, HAS_IMM8, ANY_REG },			/* push */
	{ 0x6b, 0x6b, RULE_LOAD, MI, ANY_REG },				/* imul */
	{ 0x70, 0x7f, RULE_NONE, HAS_IMM8, ANY_REG },			/* jcc */
	{ 0x80, 0x80, RULE_PLAIN, MI, 0x7f },				/* add to xor */
	{ 0x80, 0x80, RULE_LOAD, MI, 0x80 },				/* cmp */
	{ 0x81, 0x81, RULE_PLAIN, MZ, 0x7f },
	{ 0x81, 0x81, RULE_LOAD, MZ, 0x80 },
	{ 0x83, 0x83, RULE_PLAIN, MI, 0x7f },
	{ 0x83, 0x83, RULE_LOAD, MI, 0x80 },
	{ 0x84, 0x85, RULE_LOAD, M, ANY_REG },				/* test */
	{ 0x88, 0x89, RULE_PLAIN, M, ANY_REG },				/* mov */
	{ 0x8a, 0x8b, RULE_LOAD, M, ANY_REG },
	{ 0x8d, 0x8d, RULE_PLAIN, MM, ANY_REG },			/* lea */
	{ 0x90, 0x90, RULE_NONE | RULE_66, 0, ANY_REG },		/* nop */
	{ 0x98, 0x99, RULE_PLAIN, 0, NO_REX_BITS },			/* cltq, cqto */
	{ 0xa8, 0xa8, RULE_PLAIN, HAS_IMM8, NO_REX_BITS },		/* test */
	{ 0xa9, 0xa9, RULE_PLAIN, HAS_IMMZ, NO_REX_BITS },
	{ 0xb0, 0xb7, RULE_PLAIN, HAS_IMM8, REX_B },				/* mov */
	{ 0xb8, 0xbf, RULE_PLAIN, HAS_IMMV, REX_B },
	{ 0xc0, 0xc1, RULE_PLAIN, MI, 0xb3 },				/* shifts, rol, ror */
	{ 0xc3, 0xc3, RULE_NONE | RULE_F3, 0, ANY_REG },		/* ret */
	{ 0xc6, 0xc6, RULE_PLAIN, MI, 0x01 },				/* mov */
	{ 0xc7, 0xc7, RULE_PLAIN, MZ, 0x01 },
	{ 0xc9, 0xc9, RULE_NONE, 0, ANY_REG },				/* leave */
	{ 0xd0, 0xd3, RULE_PLAIN, M, 0xb3 },				/* shifts, rol, ror */
	{ 0xe8, 0xe9, RULE_NONE, HAS_IMMZ, ANY_REG },			/* call, jmp */
	{ 0xeb, 0xeb, RULE_NONE, HAS_IMM8, ANY_REG },			/* jmp */
	{ 0xf6, 0xf6, RULE_LOAD, MI, 0x01 },				/* test */
	{ 0xf6, 0xf6, RULE_PLAIN, M, 0xfc },				/* not to idiv */
	{ 0xf7, 0xf7, RULE_LOAD, MZ, 0x01 },
	{ 0xf7, 0xf7, RULE_PLAIN, M, 0xfc },
	{ 0xfe, 0xff, RULE_PLAIN, M, 0x03 },				/* inc, dec */
	{ 0xff, 0xff, RULE_NONE | RULE_REX, M | NOT_WIDE, 0x14 },	/* call, jmp */
	{ 0xff, 0xff, RULE_NONE | RULE_REX, MM | NOT_WIDE, 0x40 },	/* push */
};

static const struct sb_rule sb_two_bytes[] = {
	{ 0x10, 0x10, RULE_SSE, M, ANY_REG },				/* movups to movsd */
	{ 0x11, 0x11, RULE_SSE & ~RULE_TLS, M, ANY_REG },
	{ 0x12, 0x12, RULE_NONE | RULE_REX, M, ANY_REG },		/* movlps, movhlps */
	{ 0x12, 0x13, RULE_PLAIN, MM, ANY_REG },
	{ 0x14, 0x15, RULE_LOAD, M, ANY_REG },				/* unpck */
	{ 0x16, 0x16, RULE_NONE | RULE_REX, M, ANY_REG },		/* movhps, movlhps */
	{ 0x16, 0x17, RULE_PLAIN, MM, ANY_REG },
	{ 0x28, 0x28, RULE_LOAD, M, ANY_REG },				/* movaps */
	{ 0x29, 0x29, RULE_PLAIN, M, ANY_REG },
	{ 0x2a, 0x2a, RULE_F2 | RULE_F3 | RULE_REX | RULE_TLS, M, ANY_REG },	/* cvtsi2s */
	{ 0x2c, 0x2d, RULE_F2 | RULE_F3 | RULE_REX | RULE_TLS, M, ANY_REG },	/* cvts2si */
	{ 0x2e, 0x2f, RULE_LOAD, M, ANY_REG },				/* comis */
	{ 0x40, 0x4f, RULE_LOAD, M, ANY_REG },				/* cmov */
	{ 0x50, 0x50, RULE_PLAIN, MR, ANY_REG },			/* movmsk */
	{ 0x51, 0x51, RULE_SSE, M, ANY_REG },				/* sqrt */
	{ 0x54, 0x57, RULE_LOAD, M, ANY_REG },				/* and to xor */
	{ 0x58, 0x5a, RULE_SSE, M, ANY_REG },				/* add, mul, cvt */
	{ 0x5b, 0x5b, RULE_NONE | RULE_F3 | RULE_REX | RULE_TLS, M, ANY_REG },
	{ 0x5c, 0x5c, RULE_SSE, M, ANY_REG },				/* sub */
	{ 0x5d, 0x5d, RULE_F2 | RULE_F3 | RULE_REX | RULE_TLS, M, ANY_REG },	/* min */
	{ 0x5e, 0x5e, RULE_SSE, M, ANY_REG },				/* div */
	{ 0x5f, 0x5f, RULE_F2 | RULE_F3 | RULE_REX | RULE_TLS, M, ANY_REG },	/* max */
	{ 0x60, 0x62, RULE_SSE2, M, ANY_REG },				/* punpckl */
	{ 0x64, 0x66, RULE_SSE2, M, ANY_REG },				/* pcmpgt */
	{ 0x68, 0x6a, RULE_SSE2, M, ANY_REG },				/* punpckh */
	{ 0x6c, 0x6f, RULE_SSE2, M, ANY_REG },				/* punpck, movd, movdqa */
	{ 0x6f, 0x6f, RULE_F3 | RULE_REX | RULE_TLS, M, ANY_REG },	/* movdqu */
	{ 0x70, 0x70, RULE_66 | RULE_F2 | RULE_F3 | RULE_REX, MI, ANY_REG },	/* pshuf */
	{ 0x71, 0x72, RULE_66 | RULE_REX, MI | ONLY_REGISTER, 0x54 },	/* psrl, psra, psll */
	{ 0x73, 0x73, RULE_66 | RULE_REX, MI | ONLY_REGISTER, 0xcc },
	{ 0x74, 0x76, RULE_SSE2, M, ANY_REG },				/* pcmpeq */
	{ 0x7e, 0x7f, RULE_66 | RULE_REX, M, ANY_REG },			/* movd, movdqa */
	{ 0x7e, 0x7e, RULE_F3 | RULE_REX | RULE_TLS, M, ANY_REG },	/* movq */
	{ 0x7f, 0x7f, RULE_F3 | RULE_REX, M, ANY_REG },			/* movdqu */
	{ 0x80, 0x8f, RULE_NONE, HAS_IMMZ, ANY_REG },			/* jcc */
	{ 0x90, 0x9f, RULE_NONE | RULE_REX, M, ANY_REG },		/* setcc */
	{ 0xa3, 0xa3, RULE_PLAIN, M, ANY_REG },				/* bt */
	{ 0xa4, 0xa4, RULE_PLAIN, MI | ONLY_REGISTER, ANY_REG },	/* shld */
	{ 0xa5, 0xa5, RULE_PLAIN, MR, ANY_REG },
	{ 0xab, 0xab, RULE_PLAIN, M, ANY_REG },				/* bts */
	{ 0xac, 0xac, RULE_PLAIN, MI | ONLY_REGISTER, ANY_REG },	/* shrd */
	{ 0xad, 0xad, RULE_PLAIN, MR, ANY_REG },
	{ 0xaf, 0xaf, RULE_LOAD, M, ANY_REG },				/* imul */
	{ 0xb3, 0xb3, RULE_PLAIN, M, ANY_REG },				/* btr */
	{ 0xb6, 0xb7, RULE_LOAD, M, ANY_REG },				/* movz */
	{ 0xba, 0xba, RULE_PLAIN, MI, 0xf0 },				/* bt to btc */
	{ 0xbb, 0xbb, RULE_PLAIN, M, ANY_REG },				/* btc */
	{ 0xbc, 0xbd, RULE_LOAD, M, ANY_REG },				/* bsf, bsr */
	{ 0xbe, 0xbf, RULE_LOAD, M, ANY_REG },				/* movs */
	{ 0xc2, 0xc2, RULE_SSE, MI, ANY_REG },				/* cmpps */
	{ 0xc4, 0xc4, RULE_SSE2, MI, ANY_REG },				/* pinsrw */
	{ 0xc5, 0xc5, RULE_66 | RULE_REX, MI | ONLY_REGISTER, ANY_REG },	/* pextrw */
	{ 0xc6, 0xc6, RULE_LOAD, MI, ANY_REG },				/* shufps */
	{ 0xc8, 0xcf, RULE_NONE | RULE_REX, 0, REX_B },			/* bswap */
	{ 0xd1, 0xd5, RULE_SSE2, M, ANY_REG },				/* psrl to pmullw */
	{ 0xd6, 0xd6, RULE_66 | RULE_REX, M, ANY_REG },			/* movq */
	{ 0xd7, 0xd7, RULE_66 | RULE_REX, MR, ANY_REG },		/* pmovmskb */
	{ 0xda, 0xdb, RULE_SSE2, M, ANY_REG },				/* pminub, pand */
	{ 0xde, 0xdf, RULE_SSE2, M, ANY_REG },				/* pmaxub, pandn */
	{ 0xe1, 0xe2, RULE_SSE2, M, ANY_REG },				/* psra */
	{ 0xe6, 0xe6, RULE_66 | RULE_F3 | RULE_REX | RULE_TLS, M, ANY_REG },	/* cvt */
	{ 0xeb, 0xeb, RULE_SSE2, M, ANY_REG },				/* por */
	{ 0xef, 0xef, RULE_SSE2, M, ANY_REG },				/* pxor */
	{ 0xf1, 0xf4, RULE_SSE2, M, ANY_REG },				/* psll, pmuludq */
	{ 0xf8, 0xfe, RULE_SSE2, M, ANY_REG },				/* psub, padd */
};

/* 00 to 3f: eight operations, each to and from an operand, and with a constant. */
static const struct sb_rule sb_arithmetic[] = {
	{ 0, 1, RULE_PLAIN, M, ANY_REG },
	{ 2, 3, RULE_LOAD, M, ANY_REG },
	{ 4, 4, RULE_PLAIN, HAS_IMM8, NO_REX_BITS },
	{ 5, 5, RULE_PLAIN, HAS_IMMZ, NO_REX_BITS },
};

/* The last of them, which writes nothing. */
static const struct sb_rule sb_compare[] = {
	{ 0, 3, RULE_LOAD, M, ANY_REG },
	{ 4, 4, RULE_PLAIN, HAS_IMM8, NO_REX_BITS },
	{ 5, 5, RULE_PLAIN, HAS_IMMZ, NO_REX_BITS },
};

/* Forms of their own, to the byte. */
static const u8 sb_endbr64[] = { 0xf3, 0x0f, 0x1e, 0xfa };
static const u8 sb_nop3[] = { 0x0f, 0x1f, 0x00 };
static const u8 sb_nop4[] = { 0x0f, 0x1f, 0x40, 0x00 };
static const u8 sb_nop5[] = { 0x0f, 0x1f, 0x44, 0x00, 0x00 };

static const struct {
	const u8 *bytes;
	size_t length;
} sb_exact[] = {
	{ sb_endbr64, sizeof(sb_endbr64) },
	{ sb_nop3, sizeof(sb_nop3) },
	{ sb_nop4, sizeof(sb_nop4) },
	{ sb_nop5, sizeof(sb_nop5) },
};

/* What is left of the code, and what has been read of the instruction. */
struct sb_cursor {
	const u8 *at;
	const u8 *end;
	u8 prefixes;	/* as in a rule */
	u8 rex;
};

static bool sb_take_prefixes(struct sb_cursor *cursor)
{
	u8 operation = RULE_NONE, tls = 0;

	for (; cursor->at < cursor->end; cursor->at++) {
		u8 byte = *cursor->at;

		if (byte == 0x64 || byte == 0x65) {
			if (tls)
				return false;
			tls = RULE_TLS;
		} else if (byte == 0x66 || byte == 0xf2 || byte == 0xf3) {
			/* two of them mean something else, or nothing */
			if (operation != RULE_NONE)
				return false;
			operation = byte == 0x66 ? RULE_66 : byte == 0xf2 ? RULE_F2 : RULE_F3;
		} else {
			break;
		}
	}
	cursor->prefixes = operation | tls;
	if (cursor->at < cursor->end && (*cursor->at & 0xf0) == 0x40) {
		cursor->rex = *cursor->at++;
		cursor->prefixes |= RULE_REX;
	}
	return cursor->at < cursor->end;
}

/* The table of the instruction's opcode; *opcode is what is looked up in it. */
static const struct sb_rule *sb_take_opcode(struct sb_cursor *cursor, u8 *opcode, size_t *count)
{
	*opcode = *cursor->at++;
	if (*opcode == 0x0f) {
		if (cursor->at == cursor->end)
			return NULL;
		*opcode = *cursor->at++;
		*count = ARRAY_SIZE(sb_two_bytes);
		return sb_two_bytes;
	}
	if (*opcode >= 0x40) {
		*count = ARRAY_SIZE(sb_one_byte);
		return sb_one_byte;
	}
	if (*opcode >= 0x38) {
		*opcode &= 7;
		*count = ARRAY_SIZE(sb_compare);
		return sb_compare;
	}
	*opcode &= 7;
	*count = ARRAY_SIZE(sb_arithmetic);
	return sb_arithmetic;
}

static bool sb_fits(const struct sb_rule *rule, const struct sb_cursor *cursor, u8 opcode)
{
	const bool wide = cursor->rex & 8;
	u8 modrm;

	if (opcode < rule->first || opcode > rule->last || (cursor->prefixes & ~rule->prefixes) ||
	    (rule->shape & (wide ? NOT_WIDE : ONLY_WIDE)))
		return false;
	/* where 66 stands for the operand's size, REX.W makes it void */
	if (wide && (cursor->prefixes & RULE_66) && (rule->prefixes & RULE_NONE))
		return false;
	if (!(rule->shape & HAS_MODRM))
		return !cursor->rex || (rule->regs >> (cursor->rex & 7) & 1);
	if (cursor->at == cursor->end)
		return false;
	modrm = *cursor->at;
	if (modrm >> 6 == 3 ? (rule->shape & ONLY_MEMORY) : (rule->shape & ONLY_REGISTER))
		return false;
	/* not with a register, and not relative to the instruction */
	if ((cursor->prefixes & RULE_TLS) && (modrm >> 6 == 3 || (modrm & 0xc7) == 5))
		return false;
	return rule->regs >> (modrm >> 3 & 7) & 1;
}

/* The bytes of ModRM, SIB and displacement. */
static size_t sb_operand_length(const struct sb_cursor *cursor)
{
	const u8 modrm = *cursor->at, mode = modrm >> 6;
	size_t length = 1;

	if (mode == 3)
		return 1;
	if ((modrm & 7) == 4) {
		/* without a byte for it, a base of 5 is read as any other: the length is too great */
		if (mode == 0 && (cursor->end - cursor->at < 2 || (cursor->at[1] & 7) == 5))
			return 6;
		length = 2;
	}
	if (mode == 0)
		return (modrm & 7) == 5 ? 5 : length;
	return length + (mode == 1 ? 1 : 4);
}

static size_t sb_constant_length(const struct sb_cursor *cursor, u8 shape)
{
	const bool wide = cursor->rex & 8;

	if (shape & HAS_IMM8)
		return 1;
	if ((shape & HAS_IMMV) && wide)
		return 8;
	if (!(shape & (HAS_IMMZ | HAS_IMMV)))
		return 0;
	return (cursor->prefixes & RULE_66) && !wide ? 2 : 4;
}

static bool sb_is_zero(const u8 *at, const u8 *end)
{
	while (at < end && !*at)
		at++;
	return at == end;
}

/* lea 0(%reg), %reg and jmp to the next instruction: kernels take them for nops. */
static bool sb_does_nothing(const struct sb_cursor *cursor, u8 opcode, const u8 *end)
{
	const u8 *at = cursor->at;
	u8 reg, base;

	if (opcode == 0xe9 || opcode == 0xeb)
		return sb_is_zero(at, end);
	if (opcode != 0x8d || (*at & 0xc7) == 5)
		return false;
	reg = (*at >> 3 & 7) | (cursor->rex & 4) << 1;
	base = (*at & 7) | (cursor->rex & 1) << 3;
	if ((*at & 7) == 4) {
		at++;
		if ((*at >> 3 & 7) != 4 || (cursor->rex & 2))
			return false;
		base = (*at & 7) | (cursor->rex & 1) << 3;
	}
	return reg == base && sb_is_zero(at + 1, end);
}

int sb_site_length(const u8 *code, size_t length)
{
	struct sb_cursor cursor = { .at = code, .end = code + min_t(size_t, length, SB_SITE_MAX) };
	const struct sb_rule *rule, *last;
	size_t count, rest, i;
	bool two_bytes;
	u8 opcode;

	for (i = 0; i < ARRAY_SIZE(sb_exact); i++)
		if (length >= sb_exact[i].length &&
		    !memcmp(code, sb_exact[i].bytes, sb_exact[i].length))
			return sb_exact[i].length;
	if (!sb_take_prefixes(&cursor))
		return -EOPNOTSUPP;
	two_bytes = *cursor.at == 0x0f;
	rule = sb_take_opcode(&cursor, &opcode, &count);
	if (!rule)
		return -EOPNOTSUPP;
	for (last = rule + count; rule < last && !sb_fits(rule, &cursor, opcode); rule++)
		;
	if (rule == last)
		return -EOPNOTSUPP;
	rest = sb_constant_length(&cursor, rule->shape);
	if (rule->shape & HAS_MODRM)
		rest += sb_operand_length(&cursor);
	if (rest > (size_t)(cursor.end - cursor.at) ||
	    (!two_bytes && sb_does_nothing(&cursor, opcode, cursor.at + rest)))
		return -EOPNOTSUPP;
	return cursor.at - code + rest;
}

/* Whether nothing that the function has stored can live below the stack pointer at `offset`. */
static int sb_at_entry(const struct sb_reader *reader, u64 offset)
{
	u8 before[sizeof(sb_endbr64)];

	if (offset >= sizeof(before) &&
	    reader->read(reader->context, before, sizeof(before), offset - sizeof(before)) ==
	    sizeof(before) && !memcmp(before, sb_endbr64, sizeof(before)))
		return 0;
	return sb_elf_entry(reader, offset);
}

/* Of the forms that sb_site_length() takes. */
static bool sb_is_call(const u8 *code)
{
	if ((*code & 0xf0) == 0x40)
		code++;
	return *code == 0xe8 || (*code == 0xff && (code[1] >> 3 & 7) == 2);
}

int sb_site_judge(const struct sb_reader *reader, u64 offset, struct sb_site_kernel kernel,
		  const u8 *code, size_t length)
{
	int ret = sb_site_length(code, length);

	if (ret == sizeof(sb_nop5) && !memcmp(code, sb_nop5, sizeof(sb_nop5))) {
		ret = kernel.nop5_is_safe ? sb_at_entry(reader, offset) : -ENOENT;
		return ret == -ENOENT ? -EOPNOTSUPP : ret;
	}
	if (ret > 0 && !kernel.call_is_safe && sb_is_call(code))
		return -EOPNOTSUPP;
	return ret < 0 ? ret : 0;
}
