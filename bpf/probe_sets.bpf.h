/* SPDX-License-Identifier: (GPL-2.0-only OR MIT) */
/*
 * Which probe counts a hit, while a file changes from one set of probes to another (abi.h).
 */
#ifndef SPEEDBUMP_PROBE_SETS_BPF_H
#define SPEEDBUMP_PROBE_SETS_BPF_H

#define SB_MAX_NOTES 16384u

/* What the newer set has decided for a thread's hit, which the older reads in the same trap. */
struct sb_note {
	__u32 probe; /* lower half of the cookie */
	__u32 sets;  /* as it was then */
};

struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, SB_MAX_NOTES);
	__type(key, __u64); /* bpf_get_current_pid_tgid() */
	__type(value, struct sb_note);
} notes SEC(".maps");

/*
 * Whether this probe counts this hit; one of those that are in place does. A uprobe runs the
 * program of the probe that came last first (consumer_add() puts it at the head of the list), so
 * of two sets the newer decides, by which of them counts now, and the older does what is left to
 * it, also when the other one counts by then. Where the newer was not there yet, there is no note
 * of it.
 */
static __always_inline bool sb_probe_counts(__u64 cookie, __u32 sets)
{
	__u32 set = cookie >> SB_COOKIE_SET_SHIFT & SB_SET_MASK;
	__u32 older = sets & SB_SET_MASK;
	__u32 newer = sets >> SB_SET_BITS & SB_SET_MASK;
	__u64 thread;
	struct sb_note *note;

	if (older == newer)
		return set == newer;
	thread = bpf_get_current_pid_tgid();
	if (set == newer) {
		struct sb_note mine = { .probe = (__u32)cookie, .sets = sets };

		/* Without a note the older one counts. */
		if (bpf_map_update_elem(&notes, &thread, &mine, BPF_ANY))
			return false;
		return sets & SB_SETS_NEWER_COUNTS;
	}
	if (set != older)
		return false;
	note = bpf_map_lookup_elem(&notes, &thread);
	return !note || note->probe != (__u32)cookie ||
	       (note->sets >> SB_SET_BITS & SB_SET_MASK) != newer ||
	       !(note->sets & SB_SETS_NEWER_COUNTS);
}

#endif /* SPEEDBUMP_PROBE_SETS_BPF_H */
