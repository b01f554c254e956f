/* SPDX-License-Identifier: (GPL-2.0-only OR MIT) */
/*
 * The walk of a thread's Python frames: one for the BPF program, which reads the thread that it has
 * interrupted, and for the loader, which reads from outside. From the same memory both get the same
 * frames (tests/unit/inspect_python_walk_test, tests/runtime/python_walk_test).
 *
 * SB_READ(reader, to, size, address) copies memory of the process; not 0: it is not all there.
 * SB_AHEAD(reader, address, size) says where the next readings are, for a reader to which each is a
 * system call; it may do nothing. C++ has a reader of any type with read() and ahead(); C defines
 * both before it includes this, and `struct sb_reader` is what it likes.
 */
#ifndef SPEEDBUMP_PYTHON_WALK_H
#define SPEEDBUMP_PYTHON_WALK_H

#include "abi.h"

#ifdef __cplusplus
#define SB_WALK template <typename Reader> inline
#define SB_READER Reader &
#define SB_READ(reader, to, size, address) ((reader).read(to, size, address))
#define SB_AHEAD(reader, address, size) ((reader).ahead(address, size))
#else
struct sb_reader;
#define SB_WALK static inline __attribute__((always_inline))
#define SB_READER struct sb_reader *
#endif

#define SB_CODE_TAGS 7ULL /* of a _PyStackRef (3.14, free-threaded) */
#define SB_OWNER_GENERATOR 1u /* FRAME_OWNED_BY_GENERATOR */
#define SB_OWNER_NOT_PYTHON 3u /* and above: FRAME_OWNED_BY_INTERPRETER, _BY_CSTACK */

/* The code object that a frame runs. */
static inline __u64 sb_code_address(const struct sb_python_frame *frame)
{
	return frame->code & ~SB_CODE_TAGS;
}

/* Whether the frame belongs to a generator: somebody must have called it. */
static inline int sb_is_generator(const struct sb_python_frame *frame)
{
	return frame->is_generator || frame->owner == SB_OWNER_GENERATOR;
}

SB_WALK int sb_identify_text(SB_READER reader, const struct sb_python_layout *layout,
			     struct sb_identity_text *text)
{
	__u32 state, size = SB_IDENTITY_TEXT;
	__u64 data = text->address + layout->text_ascii_data;

	SB_AHEAD(reader, text->address, layout->text_ascii_data + SB_IDENTITY_TEXT);
	if (SB_READ(reader, &text->length, 8, text->address + layout->text_length) ||
	    SB_READ(reader, &state, 4, text->address + layout->text_state))
		return -1;
	if (!(state & layout->text_ascii_bit) || !text->length)
		return 0;
	if (text->length < SB_IDENTITY_TEXT)
		size = (__u32)text->length;
	else
		data += text->length - SB_IDENTITY_TEXT;
	return SB_READ(reader, text->end, size, data);
}

/* The digest of the identity of a code object. Not 0: it is not all there. */
SB_WALK int sb_identify(SB_READER reader, const struct sb_python_layout *layout, __u64 code,
			__u64 *digest)
{
	struct sb_code_identity identity = {};

	SB_AHEAD(reader, code, layout->code_header_bytes);
	if ((layout->code_version != SB_NO_FIELD &&
	     SB_READ(reader, &identity.version, 4, code + layout->code_version)) ||
	    SB_READ(reader, &identity.first_line, 4, code + layout->code_first_line) ||
	    SB_READ(reader, &identity.name.address, 8, code + layout->code_name) ||
	    SB_READ(reader, &identity.file.address, 8, code + layout->code_file) ||
	    SB_READ(reader, &identity.lines, 8, code + layout->code_lines))
		return -1;
	if (!identity.version && (sb_identify_text(reader, layout, &identity.name) ||
				  sb_identify_text(reader, layout, &identity.file)))
		return -1;
	*digest = sb_identity_digest(&identity);
	return 0;
}

/*
 * The frame at this address, but for the identity of its code, and its caller's address. Not 0: it
 * is not all there.
 */
SB_WALK int sb_read_frame(SB_READER reader, const struct sb_python_layout *layout, __u64 address,
			  struct sb_python_frame *frame, __u64 *previous)
{
	__u64 generator = 0;
	__u32 number = 0;

	frame->address = address;
	if (SB_READ(reader, &frame->code, 8, address + layout->frame_code) ||
	    SB_READ(reader, previous, 8, address + layout->frame_previous))
		return -1;
	if (layout->ip_is_int) {
		if (SB_READ(reader, &number, 4, address + layout->frame_ip))
			return -1;
		frame->ip = (__u64)(__s64)(__s32)number;
	} else if (SB_READ(reader, &frame->ip, 8, address + layout->frame_ip)) {
		return -1;
	}
	if (layout->frame_owner != SB_NO_FIELD &&
	    SB_READ(reader, &frame->owner, 1, address + layout->frame_owner))
		return -1;
	if (layout->frame_entry != SB_NO_FIELD &&
	    SB_READ(reader, &frame->is_entry, 1, address + layout->frame_entry))
		return -1;
	if (layout->frame_generator != SB_NO_FIELD &&
	    SB_READ(reader, &generator, 8, address + layout->frame_generator))
		return -1;
	frame->is_generator = generator != 0;
	if (layout->frame_bytecode_copy != SB_NO_FIELD &&
	    SB_READ(reader, &frame->bytecode_copy, 4, address + layout->frame_bytecode_copy))
		return -1;
	return 0;
}

/* The innermost frame of the thread with this state; 0: it has none. Not 0: that is not there. */
SB_WALK int sb_innermost(SB_READER reader, const struct sb_python_layout *layout, __u64 state,
			 __u64 *frame)
{
	*frame = 0;
	if (SB_READ(reader, frame, 8, state + layout->thread_frame))
		return -1;
	if (layout->cframe_frame != SB_NO_FIELD && *frame &&
	    SB_READ(reader, frame, 8, *frame + layout->cframe_frame))
		return -1;
	return 0;
}

struct sb_walk {
	__u64 next; /* frame; 0: there are no more */
	__u64 last_code; /* whose identity is known */
	__u64 last_identity;
};

/* Takes the next frame, which must be there. Not 0: it can't be read, and the walk is over. */
SB_WALK int sb_walk_step(SB_READER reader, const struct sb_python_layout *layout,
			 struct sb_walk *walk, struct sb_python_frame *frame)
{
	__u64 code;

	SB_AHEAD(reader, walk->next, layout->frame_bytes);
	if (sb_read_frame(reader, layout, walk->next, frame, &walk->next))
		return -1;
	code = sb_code_address(frame);
	if (code != walk->last_code) {
		/* What C code runs below may have none; the loader sees that by the owner. */
		if (sb_identify(reader, layout, code, &walk->last_identity))
			walk->last_identity = 0;
		walk->last_code = code;
	}
	frame->identity = walk->last_identity;
	return 0;
}

#endif /* SPEEDBUMP_PYTHON_WALK_H */
