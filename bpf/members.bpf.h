/* SPDX-License-Identifier: (GPL-2.0-only OR MIT) */
/*
 * The processes of a session, by the number of their thread group in the kernel. One map for all
 * objects of a session: the loader puts it into place before it loads the others.
 */
#ifndef SPEEDBUMP_MEMBERS_BPF_H
#define SPEEDBUMP_MEMBERS_BPF_H

#include "kernel.h"

#include "abi.h"

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, SB_MAX_PROCESSES);
	__type(key, __u32);
	__type(value, struct sb_member);
} tree SEC(".maps");

#endif /* SPEEDBUMP_MEMBERS_BPF_H */
