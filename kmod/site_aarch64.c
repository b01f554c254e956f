// SPDX-License-Identifier: GPL-2.0-only
#include <linux/bitops.h>
#include <linux/errno.h>
#include <linux/kernel.h>
#include <linux/string.h>

#include "site.h"

/*
 * Uprobes get past an instruction by emulating it, or by executing a copy of it elsewhere
 * (arch/arm64/kernel/probes). Some they refuse, some read what lies beside the copy, some are undone
 * by the trap. So what is not listed here is refused: encodings that the architecture defines, that
 * do not look at where they are, can't be told from without a trap, and that every kernel gets right.
 * The loader has the same list (user/elf/probe_site_aarch64.cpp).
 */

#define SB_WORD 4

/* Encodings of one kind: those that have `value` in the bits of `mask`. */
struct sb_form {
	u32 mask;
	u32 value;
};

/* No row allows an encoding that is reserved, but for what sb_has_fault() finds. */
static const struct sb_form sb_forms[] = {
	/* Flow of control. Not bl, blr, ret: some kernels have no guarded control stack for them. */
	{ 0xfc000000, 0x14000000 },	/* b */
	{ 0xff000010, 0x54000000 },	/* b.cond */
	{ 0x7f000000, 0x34000000 },	/* cbz */
	{ 0x7f000000, 0x35000000 },	/* cbnz */
	{ 0x7f000000, 0x36000000 },	/* tbz */
	{ 0x7f000000, 0x37000000 },	/* tbnz */
	{ 0xfffffc1f, 0xd61f0000 },	/* br */
	{ 0x9f000000, 0x10000000 },	/* adr */
	{ 0x9f000000, 0x90000000 },	/* adrp */
	/*
	 * Hints, and the thread's own register. A trap goes before the check of a landing pad, and
	 * where the kernel steps, memory is not guarded.
	 */
	{ 0xffffffff, 0xd503201f },	/* nop */
	{ 0xffffff3f, 0xd503241f },	/* bti */
	{ 0xffffffff, 0xd503231f },	/* paciaz */
	{ 0xffffffff, 0xd503233f },	/* paciasp */
	{ 0xffffffff, 0xd503235f },	/* pacibz */
	{ 0xffffffff, 0xd503237f },	/* pacibsp */
	{ 0xffffffe0, 0xd53bd040 },	/* mrs tpidr_el0 */
	/* Immediates. */
	{ 0x7f800000, 0x11000000 },	/* add */
	{ 0x7f800000, 0x31000000 },	/* adds */
	{ 0x7f800000, 0x51000000 },	/* sub */
	{ 0x7f800000, 0x71000000 },	/* subs */
	{ 0x7f800000, 0x12000000 },	/* and */
	{ 0x7f800000, 0x32000000 },	/* orr */
	{ 0x7f800000, 0x52000000 },	/* eor */
	{ 0x7f800000, 0x72000000 },	/* ands */
	{ 0xff800000, 0x92800000 },	/* movn */
	{ 0xff800000, 0xd2800000 },	/* movz */
	{ 0xff800000, 0xf2800000 },	/* movk */
	{ 0xffc00000, 0x12800000 },	/* movn */
	{ 0xffc00000, 0x52800000 },	/* movz */
	{ 0xffc00000, 0x72800000 },	/* movk */
	{ 0xffc00000, 0x93400000 },	/* sbfm */
	{ 0xffc00000, 0xb3400000 },	/* bfm */
	{ 0xffc00000, 0xd3400000 },	/* ubfm */
	{ 0xffe08000, 0x13000000 },	/* sbfm */
	{ 0xffe08000, 0x33000000 },	/* bfm */
	{ 0xffe08000, 0x53000000 },	/* ubfm */
	{ 0xffe00000, 0x93c00000 },	/* extr */
	{ 0xffe08000, 0x13800000 },	/* extr */
	/* Registers. */
	{ 0xff200000, 0x8a000000 },	/* and */
	{ 0xff200000, 0x8a200000 },	/* bic */
	{ 0xff200000, 0xaa000000 },	/* orr */
	{ 0xff200000, 0xaa200000 },	/* orn */
	{ 0xff200000, 0xca000000 },	/* eor */
	{ 0xff200000, 0xca200000 },	/* eon */
	{ 0xff200000, 0xea000000 },	/* ands */
	{ 0xff200000, 0xea200000 },	/* bics */
	{ 0xff208000, 0x0a000000 },	/* and */
	{ 0xff208000, 0x0a200000 },	/* bic */
	{ 0xff208000, 0x2a000000 },	/* orr */
	{ 0xff208000, 0x2a200000 },	/* orn */
	{ 0xff208000, 0x4a000000 },	/* eor */
	{ 0xff208000, 0x4a200000 },	/* eon */
	{ 0xff208000, 0x6a000000 },	/* ands */
	{ 0xff208000, 0x6a200000 },	/* bics */
	/* Shifted by lsl, lsr, asr: 64 bits, then 32. */
	{ 0x9fa00000, 0x8b000000 },	/* add/sub */
	{ 0x9fe00000, 0x8b800000 },	/* add/sub */
	{ 0x9fa08000, 0x0b000000 },	/* add/sub */
	{ 0x9fe08000, 0x0b800000 },	/* add/sub */
	/* Extended, and shifted by 0 to 3, or by 4. */
	{ 0x1fe01000, 0x0b200000 },	/* add/sub */
	{ 0x1fe01c00, 0x0b201000 },	/* add/sub */
	{ 0x1fe0fc00, 0x1a000000 },	/* adc/sbc */
	{ 0x3fe00410, 0x3a400000 },	/* ccmp/ccmn */
	{ 0x3fe00800, 0x1a800000 },	/* csel */
	{ 0x7fe0fc00, 0x1ac00800 },	/* udiv */
	{ 0x7fe0fc00, 0x1ac00c00 },	/* sdiv */
	{ 0x7fe0f000, 0x1ac02000 },	/* lsl/lsr/asr/ror */
	{ 0x7ffffc00, 0x5ac00000 },	/* rbit */
	{ 0x7ffffc00, 0x5ac00400 },	/* rev16 */
	{ 0x7ffffc00, 0x5ac00800 },	/* rev */
	{ 0xfffffc00, 0xdac00c00 },	/* rev */
	{ 0x7ffffc00, 0x5ac01000 },	/* clz */
	{ 0x7ffffc00, 0x5ac01400 },	/* cls */
	{ 0x7fe08000, 0x1b000000 },	/* madd */
	{ 0x7fe08000, 0x1b008000 },	/* msub */
	{ 0xff608000, 0x9b200000 },	/* maddl */
	{ 0xff608000, 0x9b208000 },	/* msubl */
	{ 0xff60fc00, 0x9b407c00 },	/* mulh */
	/* Pairs: 32 and 64 bits, signed words, and vector registers of 32, 64 and 128 bits. */
	{ 0x7e400000, 0x28000000 },	/* stp */
	{ 0x7e400000, 0x28400000 },	/* ldp */
	{ 0xffc00000, 0x68c00000 },	/* ldpsw */
	{ 0xffc00000, 0x69400000 },	/* ldpsw */
	{ 0xffc00000, 0x69c00000 },	/* ldpsw */
	{ 0xfe400000, 0x2c000000 },	/* stp */
	{ 0xfe400000, 0x2c400000 },	/* ldp */
	{ 0xfe400000, 0x6c000000 },	/* stp */
	{ 0xfe400000, 0x6c400000 },	/* ldp */
	{ 0xfe400000, 0xac000000 },	/* stp */
	{ 0xfe400000, 0xac400000 },	/* ldp */
	/* One register: by an unsigned offset, */
	{ 0x3fc00000, 0x39000000 },	/* str */
	{ 0x3fc00000, 0x39400000 },	/* ldr */
	{ 0xbf800000, 0x39800000 },	/* ldrs */
	{ 0xffc00000, 0xb9800000 },	/* ldrsw */
	{ 0x3fc00000, 0x3d000000 },	/* str */
	{ 0x3fc00000, 0x3d400000 },	/* ldr */
	{ 0xffc00000, 0x3d800000 },	/* str */
	{ 0xffc00000, 0x3dc00000 },	/* ldr */
	/* by a signed one, */
	{ 0x3fe00c00, 0x38000000 },	/* stur */
	{ 0x3fe00c00, 0x38400000 },	/* ldur */
	{ 0xbfa00c00, 0x38800000 },	/* ldurs */
	{ 0xffe00c00, 0xb8800000 },	/* ldursw */
	{ 0x3fe00c00, 0x3c000000 },	/* stur */
	{ 0x3fe00c00, 0x3c400000 },	/* ldur */
	{ 0xffe00c00, 0x3c800000 },	/* stur */
	{ 0xffe00c00, 0x3cc00000 },	/* ldur */
	/* with the address changed after it or before, */
	{ 0x3fe00400, 0x38000400 },	/* str */
	{ 0x3fe00400, 0x38400400 },	/* ldr */
	{ 0xbfa00400, 0x38800400 },	/* ldrs */
	{ 0xffe00400, 0xb8800400 },	/* ldrsw */
	{ 0x3fe00400, 0x3c000400 },	/* str */
	{ 0x3fe00400, 0x3c400400 },	/* ldr */
	{ 0xffe00400, 0x3c800400 },	/* str */
	{ 0xffe00400, 0x3cc00400 },	/* ldr */
	/* by a register. */
	{ 0x3fe04c00, 0x38204800 },	/* str */
	{ 0x3fe04c00, 0x38604800 },	/* ldr */
	{ 0xbfa04c00, 0x38a04800 },	/* ldrs */
	{ 0xffe04c00, 0xb8a04800 },	/* ldrsw */
	{ 0x3fe04c00, 0x3c204800 },	/* str */
	{ 0x3fe04c00, 0x3c604800 },	/* ldr */
	{ 0xffe04c00, 0x3ca04800 },	/* str */
	{ 0xffe04c00, 0x3ce04800 },	/* ldr */
	/* Ordered ones. */
	{ 0x3ffffc00, 0x089ffc00 },	/* stlr */
	{ 0x3ffffc00, 0x08dffc00 },	/* ldar */
	/* Floating point, single and double. */
	{ 0xfffffc00, 0x1e260000 },	/* fmov */
	{ 0xfffffc00, 0x1e270000 },	/* fmov */
	{ 0xfffffc00, 0x9e660000 },	/* fmov */
	{ 0xfffffc00, 0x9e670000 },	/* fmov */
	{ 0x7fbefc00, 0x1e220000 },	/* scvtf/ucvtf */
	{ 0x7fbefc00, 0x1e380000 },	/* fcvtzs/fcvtzu */
	{ 0xffbe7c00, 0x1e204000 },	/* fmov/fabs/fneg/fsqrt */
	{ 0xfffffc00, 0x1e22c000 },	/* fcvt */
	{ 0xfffffc00, 0x1e624000 },	/* fcvt */
	{ 0xffa0fc07, 0x1e202000 },	/* fcmp */
	{ 0xffa01fe0, 0x1e201000 },	/* fmov */
	{ 0xffa08c00, 0x1e200800 },	/* fmul/fdiv/fadd/fsub/fmax/fmin */
	{ 0xffa0fc00, 0x1e208800 },	/* fnmul */
	{ 0xffa00c00, 0x1e200c00 },	/* fcsel */
	{ 0xff800000, 0x1f000000 },	/* fmadd */
	/* What functions begin with that clear or copy vectors. */
	{ 0xbff80c00, 0x0f000400 },	/* movi */
	{ 0xfff80c00, 0x6f000400 },	/* movi */
	{ 0xfff8fc00, 0x2f00e400 },	/* movi */
	{ 0x9f20fc00, 0x0e201c00 },	/* and/orr/eor */
	{ 0xfffffc00, 0x4e010c00 },	/* dup */
};

static u32 sb_word(const u8 *code)
{
	return code[0] | code[1] << 8 | code[2] << 16 | (u32)code[3] << 24;
}

/* DecodeBitMasks() of the architecture: a run of ones in an element of 2 to 64 bits. */
static bool sb_is_reserved_mask(u32 word)
{
	const bool wide = word >> 31, n = word >> 22 & 1;
	const u32 ones = word >> 10 & 0x3f, size = (n ? 0x40 : 0) | (~ones & 0x3f);
	const int length = fls(size) - 1;
	u32 levels;

	if ((n && !wide) || length < 1)
		return true;
	levels = (1u << length) - 1;
	return (ones & levels) == levels;
}

/* Encodings of a listed form whose effect the architecture leaves open, and that nothing emits. */
static bool sb_has_fault(u32 word)
{
	const u32 first = word & 0x1f, base = word >> 5 & 0x1f, second = word >> 10 & 0x1f;
	const bool vector = word >> 26 & 1;
	/* 31 is the stack pointer, and no register that could be loaded or stored */
	const bool base_counts = !vector && base != 31;

	if ((word & 0x1f800000) == 0x12000000)
		return sb_is_reserved_mask(word);
	if ((word & 0x3a000000) == 0x28000000) {	/* pairs */
		const bool loads = word >> 22 & 1, writes_base = word >> 23 & 1;

		return (loads && first == second) ||
		       (writes_base && base_counts && (first == base || second == base));
	}
	if ((word & 0x3b200400) == 0x38000400)	/* one register, with the address changed */
		return base_counts && first == base;
	return false;
}

int sb_site_length(const u8 *code, size_t length)
{
	size_t i;
	u32 word;

	if (length < SB_WORD)
		return -EOPNOTSUPP;
	word = sb_word(code);
	for (i = 0; i < ARRAY_SIZE(sb_forms); i++)
		if ((word & sb_forms[i].mask) == sb_forms[i].value)
			return sb_has_fault(word) ? -EOPNOTSUPP : SB_WORD;
	return -EOPNOTSUPP;
}

/* ldxr, ldaxr and pairs of them begin an exclusive access; casp has a bit pattern between theirs. */
static bool sb_begins_exclusive(u32 word)
{
	return (word & 0x3fc00000) == 0x08400000 && (word & 0x80200000) != 0x00200000;
}

/* stxr, stlxr, their pairs, and clrex. */
static bool sb_ends_exclusive(u32 word)
{
	return ((word & 0x3fc00000) == 0x08000000 && (word & 0x80200000) != 0x00200000) ||
	       (word & 0xfffff0ff) == 0xd503305f;
}

/*
 * 1 where an exclusive access may have begun before `offset` that has not ended there: a trap would
 * undo it each time, and the program would try for ever. So far back as kernels look for kprobes
 * (MAX_ATOMIC_CONTEXT_SIZE); else 0, or the reader's errno.
 */
static int sb_is_in_exclusive(const struct sb_reader *reader, u64 offset)
{
	u8 before[32 * SB_WORD];
	size_t size = min_t(u64, sizeof(before), offset);
	ssize_t got = reader->read(reader->context, before, size, offset - size);

	if (got < 0)
		return got;
	for (got -= SB_WORD; got >= 0; got -= SB_WORD) {
		u32 word = sb_word(before + got);

		if (sb_ends_exclusive(word))
			return 0;
		if (sb_begins_exclusive(word))
			return 1;
	}
	return 0;
}

/* mov x8, #139; svc #0: what signal handlers return to, which unwinders know by its bytes. */
static bool sb_is_signal_return(const u8 *code, size_t length)
{
	return length >= 2 * SB_WORD && sb_word(code) == 0xd2801168 &&
	       sb_word(code + SB_WORD) == 0xd4000001;
}

int sb_site_judge(const struct sb_reader *reader, u64 offset, struct sb_site_kernel kernel,
		  const u8 *code, size_t length)
{
	int ret = sb_site_length(code, length);

	if (ret < 0)
		return ret;
	if (sb_is_signal_return(code, length))
		return -EOPNOTSUPP;
	ret = sb_is_in_exclusive(reader, offset);
	if (ret <= 0)
		return ret;
	/* of the function before it, if one begins here */
	ret = sb_elf_entry(reader, offset);
	return ret == -ENOENT ? -EOPNOTSUPP : ret;
}
