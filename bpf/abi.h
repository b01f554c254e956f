/* SPDX-License-Identifier: (GPL-2.0-only OR MIT) */
/*
 * Types and limits shared by the BPF programs, the loader and the Python core.
 * Compiled as C, C++ and BPF (tests/unit/abi_test). Fixed-width types only, padding explicit.
 */
#ifndef SPEEDBUMP_ABI_H
#define SPEEDBUMP_ABI_H

#include "sb_common.h"

/* Spins of this length are late by all of sb_control.late_ns, shorter ones in proportion. */
#define SB_LATE_DELAY_NS 14000ULL
#define SB_MAX_PROCESSES 32768u
#define SB_MAX_COUNTS 131072u
#define SB_MAX_ROOTS 64u
#define SB_MAX_PROGRESS 16u
#define SB_LATENCY_BUCKETS 1024u

/* How the kernel gets past the probed instruction; elf::SiteKind has the same numbers. */
#define SB_SITE_OPTIMIZED_NOP 0u
#define SB_SITE_EMULATED 1u
#define SB_SITE_SINGLE_STEP 2u
#define SB_SITE_KINDS 3u

/*
 * Probes are put into a file in sets, which the loader numbers, and the hits of one set count.
 * While a file changes from one set to another, from narrow probes (one process takes them) to wide
 * ones (all that map the file do) or back, both are in place: SB_SETS(older, newer, which counts).
 * Else older and newer are the same.
 */
#define SB_SET_BITS 15
#define SB_SET_MASK ((1u << SB_SET_BITS) - 1)
#define SB_SETS_NEWER_COUNTS (1u << (2 * SB_SET_BITS))
#define SB_SETS(older, newer, newer_counts)                                \
    (((older) & SB_SET_MASK) | (((newer) & SB_SET_MASK) << SB_SET_BITS) | \
     ((newer_counts) ? SB_SETS_NEWER_COUNTS : 0))

/* The cookie of a probe: target index in the lower half; above it the site kind and the set. */
#define SB_COOKIE_SET_SHIFT 40
#define SB_COOKIE(kind, set, target) \
    (((__u64)(kind) << 32) | ((__u64)((set) & SB_SET_MASK) << SB_COOKIE_SET_SHIFT) | (__u32)(target))

/*
 * A schedule: which delay the targets of each column have in each slice of time, from `start_ns` on.
 * Hooks find the slice of a hit from the clock, so nobody wakes up to switch. The loader writes
 * slices ahead of time, in a ring, and when it stops doing so the schedule runs out: no delay begins
 * then, and those in flight end where it ends. What happened is counted by slice, in a ring as well.
 */
#define SB_RING_SLICES 256u /* a power of two */
#define SB_MAX_COLUMNS 1024u
#define SB_NO_SLICE (~0ULL)
/* In sb_target.delay_ns: the delay is that of the column in the lower half. */
#define SB_SCHEDULED (1ULL << 63)

struct sb_schedule {
    __u64 start_ns; /* CLOCK_MONOTONIC of the host, and in the future when it is written */
    __u64 slice_ns;
    __u64 end_slice; /* the first one that is not there yet; 0: no schedule */
    __u32 columns;
    __u32 reserved[9];
};

/*
 * What happened in one slice, in the targets of one column: of hits that came in it. A hit without a
 * delay takes the same way as one with a delay, and both are measured between the same two looks at the
 * clock: what a delay adds is the difference, whatever else a hit takes where it happens.
 */
struct sb_slice_counts {
    __u64 hits;
    __u64 since_ns; /* from the slice's beginning to each hit, all of them together */
    __u64 delays;
    __u64 measured_ns;  /* of those with a delay */
    __u64 undelayed_ns; /* of the others */
};

/* The same of a progress point that is no target. */
struct sb_slice_units {
    __u64 units;
    __u64 since_ns;
};

#define SB_READ_ONCE(field) (*(const volatile __u64*)&(field))

/*
 * The slice that a time lies in, and how long after its beginning that is, in ns; SB_NO_SLICE when
 * there is none. `now` must have been read before:
 * a schedule that is being replaced has its end taken away, then a start in the future, and then
 * its slices' length; in the opposite order its fields are read here.
 */
static inline __attribute__((always_inline)) __u64 sb_slice_at(const struct sb_schedule* schedule,
                                                               __u64 now, __u64* since_ns) {
    __u64 end = SB_READ_ONCE(schedule->end_slice);
    __u64 length = SB_READ_ONCE(schedule->slice_ns);
    __u64 start = SB_READ_ONCE(schedule->start_ns);
    __u64 slice;

    if (!end || !length || now < start) return SB_NO_SLICE;
    slice = (now - start) / length;
    *since_ns = now - start - slice * length;
    return slice < end ? slice : SB_NO_SLICE;
}

/* Where a column's delay in a slice lies in the ring, and what was counted. */
static inline __attribute__((always_inline)) __u32 sb_cell(__u64 slice, __u32 column,
                                                           __u32 columns) {
    return ((__u32)slice & (SB_RING_SLICES - 1)) * columns + column;
}

/* A delay that begins now, but no longer than the schedule. */
static inline __attribute__((always_inline)) __u64 sb_within_schedule(
    const struct sb_schedule* schedule, __u64 now, __u64 delay) {
    __u64 end = SB_READ_ONCE(schedule->start_ns) +
                SB_READ_ONCE(schedule->end_slice) * SB_READ_ONCE(schedule->slice_ns);

    if (end <= now) return 0;
    return delay < end - now ? delay : end - now;
}

/* Live configuration of one target: written by the loader at any time, read by every hook. */
struct sb_target {
    __u64 delay_ns;  /* or SB_SCHEDULED with a column */
    __u64 every;     /* 1: each call */
    __u64 start_ns;  /* CLOCK_MONOTONIC; 0: no start */
    __u64 end_ns;    /* CLOCK_MONOTONIC; 0: no end */
    __u64 root_mask; /* delayed when it shares a bit with the process's roots */
    __u32 enabled;
    __u32 sets; /* SB_SETS() */
};

/* The counts of one target in one process as the BPF programs keep them, a copy for each CPU. */
struct sb_tally {
    struct sb_counts counts;
    __u64 verified; /* sb_state.departures + 1 when the process was last seen in the tree */
};

/* Key of the tallies. */
struct sb_counts_key {
    __u32 tgid;
    __u32 target;
};

/* A process of the tree: which roots (bits) it descends from. Key: tgid, initial namespace. */
struct sb_member {
    __u64 roots;
};

/* Session state that the loader writes and the programs read. */
struct sb_control {
    __u32 armed;       /* 0: no delay starts and the one in flight ends */
    __u32 loader_tgid; /* when this process dies, armed becomes 0 */
    __u32 follow_children;
    __u32 record_edges; /* tell of every fork of the system, until the tree is complete */
    __u32 wake_on_fork; /* the loader must hear of each fork at once */
    __u32 loader_level; /* depth of the loader's PID namespace */
    __u32 only_own;     /* the caller is not root: who gains rights by an exec leaves the tree */
    __u32 reserved;
    __u64 cgroup_id;    /* 0: none; else processes below this cgroup (v2) are members */
    __u64 cgroup_roots; /* the roots of such a process */
    __u64 floor_ns[SB_SITE_KINDS];   /* what a hit with delay 0 costs */
    __u64 outside_ns[SB_SITE_KINDS]; /* the part of a delayed hit outside the timed spin */
    __u64 late_ns; /* by which interrupts at the end of a long spin lengthen it on average */
};

/* Session state that the programs write. */
struct sb_state {
    __u64 members;    /* processes in the tree */
    __u64 departures; /* processes that have left it */
    /* failures that must not go unseen */
    __u64 lost_events;
    __u64 lost_members;
};

#define SB_EVENT_FORK 1u  /* a new member */
#define SB_EVENT_EXEC 2u  /* a member runs another program */
#define SB_EVENT_EXIT 3u  /* a member is gone */
#define SB_EVENT_EDGE 4u  /* any fork, while record_edges */
#define SB_EVENT_JOIN 5u  /* a process entered the cgroup */
#define SB_EVENT_LEAVE 6u /* a member left the cgroup */
#define SB_EVENT_RISE 7u  /* a member runs a program with other rights, and is none any more */

struct sb_event {
    __u32 type;
    __u32 tgid;        /* in the initial PID namespace */
    __u32 pid;         /* in the loader's PID namespace, 0: not visible there */
    __u32 parent_tgid; /* fork, edge; exec: the thread that did it, 0: the leader */
    __u64 roots;
    __u64 start_time; /* ns since boot */
    char comm[16];
};

/* One process as the task iterator writes it. */
struct sb_task {
    __u32 tgid;
    __u32 pid; /* in the loader's PID namespace */
    __u32 parent_tgid;
    __u32 kernel_thread;
    __u64 start_time;
    __u32 in_cgroup;
    __u32 ended; /* a zombie, or about to be one */
    char comm[16];
};

/*
 * The table that the loader and every Python interpreter of a session share, in two memfds mapped
 * MAP_SHARED, so that forked children stay in it:
 *
 *   settings: sb_settings, sb_target[target_count] (by line of the targets file), and where there
 * are columns sb_schedule and their delays in ns, SB_RING_SLICES times columns. Sealed: the loader
 * alone can write there. counters: sb_counters, sb_turn[target_count], slot_count slots, a slot being
 * sb_slot, sb_counts[target_count] and sb_slice_counts for each cell of the schedule. Written by the
 * interpreters, so numbers for the loader and nothing else: no address, offset, size or lock may
 * ever be taken from there.
 *
 * Neither can grow or shrink. Where things lie follows from the three counts alone, of which
 * everyone makes a copy of his own once: the functions below.
 */
#define SB_TABLE_MAGIC 0x62707362u
#define SB_TABLE_VERSION 5u
#define SB_TABLE_MAX_BYTES (1ULL << 31)
#define SB_TABLE_MAX_SLOTS 4096u
/* In sb_settings.armed, by the number of a "groups" packet (pyext/src/serve.h); 0: of none. */
#define SB_ARMED(grouping) ((__u32)(grouping) + 1)
/* In sb_settings.owner, set by the kernel; it is FUTEX_OWNER_DIED. */
#define SB_TABLE_OWNER_DIED 0x40000000u

struct sb_settings {
    __u32 magic;
    __u32 version;
    /*
     * SB_ARMED() of the grouping that functions are to be told apart by: nothing is delayed or
     * counted by another one, as by a child that was not told of it yet. 0: disarmed: no delay starts
     * and the one in flight ends; nothing is counted.
     */
    __u32 armed;
    __u32 closed; /* 1: over for good; every hook removes itself when it is next called */
    /*
     * A futex on the robust list of the loader's thread that made the table: when that thread
     * dies, also by SIGKILL, the kernel sets OWNER_DIED, which the hooks take as closed. 0: no
     * owner to watch.
     */
    __u32 owner;
    __u32 target_count;
    __u32 slot_count;
    __u32 columns; /* of the schedule; 0: there is none */
    __u32 reserved[8];
};

struct sb_counters {
    __u64 lost_counts; /* calls that found no slot; added to slot 0 with atomics */
    __u64 reserved[7];
};

/* What `every` counts, over all processes. */
struct sb_turn {
    __u64 calls;
    __u64 reserved[7];
};

/*
 * One writer's counters. Claimed by setting `writer` from 0 (compare and swap); slot 0 is never
 * claimed, it takes what found no slot.
 */
struct sb_slot {
    __u64 writer; /* SB_WRITER() */
    __u32 busy;   /* 1: a writer uses it; 0: another writer of the same process may go on with it */
    __u32 reserved[13];
};

/* A process as it sees itself: its PID, and the number of the PID namespace that this is one of. */
#define SB_WRITER(namespace, pid) (((__u64)(namespace) << 32) | (__u32)(pid))

static inline __u64 sb_schedule_offset(__u32 targets) {
    return (sizeof(struct sb_settings) + (__u64)targets * sizeof(struct sb_target) + 63) & ~63ULL;
}

static inline __u64 sb_settings_bytes(__u32 targets, __u32 columns) {
    return sb_schedule_offset(targets) +
           (columns ? sizeof(struct sb_schedule) + SB_RING_SLICES * (__u64)columns * 8 : 0);
}

static inline __u64 sb_slot_slices_offset(__u32 targets) {
    return (sizeof(struct sb_slot) + (__u64)targets * sizeof(struct sb_counts) + 63) & ~63ULL;
}

static inline __u64 sb_slot_bytes(__u32 targets, __u32 columns) {
    return sb_slot_slices_offset(targets) +
           SB_RING_SLICES * (__u64)columns * sizeof(struct sb_slice_counts);
}

static inline __u64 sb_slot_offset(__u32 targets, __u32 columns, __u32 slot) {
    return sizeof(struct sb_counters) + (__u64)targets * sizeof(struct sb_turn) +
           slot * sb_slot_bytes(targets, columns);
}

static inline __u64 sb_counters_bytes(__u32 targets, __u32 columns, __u32 slots) {
    return sb_slot_offset(targets, columns, slots);
}

/*
 * Stacks of threads, for `discover` (bpf/stacks.bpf.c).
 */
#define SB_MAX_STACK_THREADS 65536u
#define SB_STACK_BYTES 131072u /* of a thread's native stack, from its stack pointer on */
#define SB_PYTHON_FRAMES 1024u /* of a thread's Python stack, from the innermost on */
#if defined(__TARGET_ARCH_arm64) || defined(__aarch64__)
#define SB_REGISTERS 34 /* struct user_pt_regs */
#else
#define SB_REGISTERS 21 /* struct pt_regs */
#endif
#define SB_NO_FIELD 0xffffffffu /* this version has no such field */

/* Where CPython keeps what is read of frames (python_walk.h): offsets in its structures. */
struct sb_python_layout {
    __u32 is_python;    /* 0: the process runs none, the rest means nothing */
    __u32 thread_frame; /* innermost frame; with cframe_frame: pointer to the C frame */
    __u32 cframe_frame;
    __u32 frame_previous;
    __u32 frame_code;
    __u32 frame_ip;
    __u32 frame_owner;
    __u32 frame_entry;
    __u32 frame_generator;
    __u32 frame_bytecode_copy;
    __u32 code_version;
    __u32 code_name;
    __u32 code_file;
    __u32 code_lines;
    __u32 code_first_line;
    __u32 text_length;
    __u32 text_state;
    __u32 text_ascii_bit;  /* of the state: it holds ASCII only */
    __u32 text_ascii_data; /* of such a text */
    __u32 gil_locked; /* in the lock that sb_thread_state names */
    __u32 gil_holder;
    __u32 ip_is_int; /* 3.10: the number of the instruction */
    __u32 frame_bytes;       /* from the start of a frame that hold all of the above, */
    __u32 code_header_bytes; /* and of a code object */
};

/* A process whose threads are looked at. */
struct sb_sampled_process {
    struct sb_python_layout python;
    __u64 lost; /* samples of threads on a CPU, for which there was no room */
};

/* Of a thread that runs Python: its PyThreadState and the lock of its interpreter. */
struct sb_thread_state {
    __u64 address;
    __u64 gil;
};

/*
 * Characters of a name, the last ones, that take part in the identity of a code object without a
 * version: a text that was freed is often followed by another one of its length at its address.
 */
#define SB_IDENTITY_TEXT 32u

struct sb_identity_text {
    __u64 address;
    __u64 length;
    __u64 end[SB_IDENTITY_TEXT / 8]; /* of an ASCII text */
};

/* What a code object is told by from another one at the same address. */
struct sb_code_identity {
    __u32 version; /* 0: none; then texts take part */
    __u32 first_line;
    __u64 lines;
    struct sb_identity_text name;
    struct sb_identity_text file;
};

static inline __u64 sb_identity_digest(const struct sb_code_identity* identity) {
    const __u64* word = (const __u64*)identity;
    __u64 digest = 0xcbf29ce484222325ULL;

    for (unsigned int i = 0; i < sizeof(*identity) / sizeof(*word); i++) {
        digest = (digest ^ word[i]) * 0x9e3779b97f4a7c15ULL;
        digest ^= digest >> 32;
    }
    return digest;
}

struct sb_python_frame {
    __u64 address;
    __u64 code; /* as it lies there, tags included */
    __u64 ip;
    __u64 identity; /* sb_identity_digest of the code object */
    __s32 bytecode_copy;
    __u8 owner;
    __u8 is_entry;
    __u8 is_generator;
    __u8 reserved;
};

#define SB_PYTHON_FINE 0u
#define SB_PYTHON_NONE 1u       /* the thread is not known to run Python */
#define SB_PYTHON_UNREADABLE 2u /* points to memory that is not there (any more) */
#define SB_PYTHON_DEEP 3u       /* more than SB_PYTHON_FRAMES */

/* What tells a thread's times off the CPUs apart: its stack stays the same as long as this does. */
struct sb_still {
    __u64 switches;   /* how often it was taken off a CPU */
    __u64 started_ns; /* of the boot clock: thread ids are used again */
};

/* A thread as it was interrupted on a CPU, or as it lies off the CPUs. Behind it lie stack_bytes of
 * its stack from the stack pointer on, and then python_frames of sb_python_frame, innermost first. */
struct sb_stack_sample {
    __u32 pid; /* in the loader's PID namespace, as is tid */
    __u32 tid;
    __u32 stack_bytes; /* a multiple of 8 */
    __u32 python_frames;
    __u32 python_fault;
    __u32 holds_gil;
    __u32 on_cpu;
    __u32 execs;                   /* as in sb_thread */
    struct sb_still still;         /* off the CPUs */
    char comm[16];                 /* the thread's name */
    __u64 registers[SB_REGISTERS]; /* as in the kernel's structure */
};

/* A thread as the iterator writes it. */
struct sb_thread {
    __u32 tid;
    __u32 on_cpu;
    __u32 runnable;
    __u32 ended;
    __u32 execs; /* of its process and those that it was forked from: another number, another program */
    __u32 reserved;
    __u64 waited_ns; /* for a CPU, up to when the loader got its own */
    __u64 ran_ns;
    __u64 preempted; /* how often it was taken off a CPU that it still wanted */
    struct sb_still still;
};

#ifdef __cplusplus
#define SB_ASSERT(condition, text) static_assert(condition, text)
#else
#define SB_ASSERT(condition, text) _Static_assert(condition, text)
#endif
SB_ASSERT(sizeof(struct sb_target) == 48, "sb_target");
SB_ASSERT(sizeof(struct sb_schedule) == 64, "sb_schedule");
SB_ASSERT(sizeof(struct sb_slice_counts) == 40, "sb_slice_counts");
SB_ASSERT(sizeof(struct sb_slice_units) == 16, "sb_slice_units");
SB_ASSERT(sizeof(struct sb_counts) == 32, "sb_counts");
SB_ASSERT(sizeof(struct sb_counts_key) == 8, "sb_counts_key");
SB_ASSERT(sizeof(struct sb_member) == 8, "sb_member");
SB_ASSERT(sizeof(struct sb_control) == 104, "sb_control");
SB_ASSERT(sizeof(struct sb_state) == 32, "sb_state");
SB_ASSERT(sizeof(struct sb_tally) == 40, "sb_tally");
SB_ASSERT(sizeof(struct sb_event) == 48, "sb_event");
SB_ASSERT(sizeof(struct sb_task) == 48, "sb_task");
SB_ASSERT(sizeof(struct sb_settings) == 64, "sb_settings");
SB_ASSERT(sizeof(struct sb_counters) == 64, "sb_counters");
SB_ASSERT(sizeof(struct sb_turn) == 64, "sb_turn");
SB_ASSERT(sizeof(struct sb_slot) == 64, "sb_slot");
SB_ASSERT(sizeof(struct sb_python_layout) == 96, "sb_python_layout");
SB_ASSERT(sizeof(struct sb_sampled_process) == 104, "sb_sampled_process");
SB_ASSERT(sizeof(struct sb_code_identity) == 112, "sb_code_identity");
SB_ASSERT(sizeof(struct sb_python_frame) == 40, "sb_python_frame");
SB_ASSERT(sizeof(struct sb_stack_sample) == 64 + 8 * SB_REGISTERS, "sb_stack_sample");
SB_ASSERT(sizeof(struct sb_thread) == 64, "sb_thread");

#endif /* SPEEDBUMP_ABI_H */
