/* SPDX-License-Identifier: (GPL-2.0-only OR MIT) */
/*
 * Which processes belong to the session: kept by fork, exec and exit as they happen, in the
 * kernel, so that a child is a member before its first instruction.
 */
#ifndef SPEEDBUMP_TREE_BPF_H
#define SPEEDBUMP_TREE_BPF_H

#include "kernel.h"

#include "abi.h"
#include "members.bpf.h"

/* Apart, so that counting a member does not take the line that every hit reads. */
struct sb_control control SEC(".bss.control");
struct sb_state state;

struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, 1 << 20);
} events SEC(".maps");

/* The PID of a process as the loader sees it; 0 when it is not visible in its namespace. */
static __always_inline __u32 sb_loader_pid(struct task_struct *leader)
{
	return sb_pid_at_level(leader, control.loader_level);
}

/* Cgroups are seldom nested deeper; what lies deeper is not followed. */
#define SB_MAX_CGROUP_LEVELS 16

static __always_inline bool sb_in_cgroup(struct task_struct *task)
{
	struct cgroup *cgroup, *ancestor;
	int level;

	if (!control.cgroup_id)
		return false;
	cgroup = BPF_CORE_READ(task, cgroups, dfl_cgrp);
	if (!cgroup)
		return false;
	level = BPF_CORE_READ(cgroup, level);
	for (int i = 0; i < SB_MAX_CGROUP_LEVELS && i <= level; i++) {
		bpf_probe_read_kernel(&ancestor, sizeof(ancestor),
				      (void *)cgroup +
					      bpf_core_field_offset(struct cgroup, ancestors) +
					      i * sizeof(void *));
		if (BPF_CORE_READ(ancestor, kn, id) == control.cgroup_id)
			return true;
	}
	return false;
}

static __always_inline void sb_tell(__u32 type, struct task_struct *leader, __u32 parent_tgid,
				    __u64 roots, bool wake)
{
	struct sb_event *event = bpf_ringbuf_reserve(&events, sizeof(*event), 0);

	if (!event) {
		__sync_fetch_and_add(&state.lost_events, 1);
		return;
	}
	event->type = type;
	event->tgid = BPF_CORE_READ(leader, tgid);
	event->pid = sb_loader_pid(leader);
	event->parent_tgid = parent_tgid;
	event->roots = roots;
	event->start_time = BPF_CORE_READ(leader, start_boottime);
	BPF_CORE_READ_INTO(&event->comm, leader, comm);
	/* A loader that has nothing to do is left asleep: 10,000 forks a second must not cost a
	 * wake-up each. It drains the buffer by itself some times a second. */
	if (!wake)
		wake = bpf_ringbuf_query(&events, BPF_RB_AVAIL_DATA) > (1 << 18);
	bpf_ringbuf_submit(event, wake ? BPF_RB_FORCE_WAKEUP : BPF_RB_NO_WAKEUP);
}

static __always_inline void sb_join(__u32 type, struct task_struct *leader, __u32 parent_tgid,
				    __u64 roots)
{
	struct sb_member member = { .roots = roots };
	__u32 tgid = BPF_CORE_READ(leader, tgid);

	/* An entry that is there already is the loader's own, made while it completed the tree. */
	if (bpf_map_update_elem(&tree, &tgid, &member, BPF_NOEXIST)) {
		if (!bpf_map_lookup_elem(&tree, &tgid))
			__sync_fetch_and_add(&state.lost_members, 1);
		return;
	}
	__sync_fetch_and_add(&state.members, 1);
	sb_tell(type, leader, parent_tgid, roots, type == SB_EVENT_JOIN || control.wake_on_fork);
}

static __always_inline void sb_leave(__u32 type, struct task_struct *leader)
{
	__u32 tgid = BPF_CORE_READ(leader, tgid);
	__u64 before;

	if (bpf_map_delete_elem(&tree, &tgid))
		return;
	__sync_fetch_and_add(&state.departures, 1);
	before = __sync_fetch_and_add(&state.members, -1);
	sb_tell(type, leader, 0, 0, before <= 1);
}

SEC("tp_btf/sched_process_fork")
int BPF_PROG(sb_fork, struct task_struct *parent, struct task_struct *child)
{
	__u32 parent_tgid = parent->tgid;
	struct sb_member *member;
	__u64 roots = 0;

	if (child->tgid == parent_tgid) /* a thread */
		return 0;
	if (control.record_edges)
		sb_tell(SB_EVENT_EDGE, child, parent_tgid, 0, true);
	member = bpf_map_lookup_elem(&tree, &parent_tgid);
	if (member && control.follow_children)
		roots = member->roots;
	if (sb_in_cgroup(child))
		roots |= control.cgroup_roots;
	if (roots)
		sb_join(SB_EVENT_FORK, child, parent_tgid, roots);
	return 0;
}

SEC("tp_btf/sched_process_exec")
int BPF_PROG(sb_exec, struct task_struct *task, int old_pid, struct linux_binprm *program)
{
	__u32 tgid = task->tgid;
	struct sb_member *member = bpf_map_lookup_elem(&tree, &tgid);

	if (member)
		sb_tell(SB_EVENT_EXEC, task, old_pid != task->pid ? old_pid : 0, member->roots,
			true);
	/* Who runs with other rights from here on is none of the caller's. */
	if (member && control.only_own && BPF_CORE_READ_BITFIELD_PROBED(program, secureexec))
		sb_leave(SB_EVENT_RISE, task);
	return 0;
}

SEC("tp_btf/sched_process_exit")
int BPF_PROG(sb_exit, struct task_struct *task)
{
	bool is_last = !task->signal->live.counter;

	/* Spins in flight must end by themselves: do_exit() runs this before exit_files() closes the
	 * loader's links, whose release waits for them. So does a thread of the loader that takes
	 * probes out just now, and is not killed before: whichever of them dies first says it. */
	if (task->tgid == control.loader_tgid &&
	    (is_last || task->signal->flags & SB_SIGNAL_GROUP_EXIT))
		control.armed = 0;
	if (!is_last)
		return 0;
	sb_leave(SB_EVENT_EXIT, task->group_leader);
	return 0;
}

SEC("tp_btf/cgroup_attach_task")
int BPF_PROG(sb_cgroup, struct cgroup *destination, const char *path, struct task_struct *task)
{
	struct task_struct *leader = task->group_leader;
	__u32 tgid = task->tgid;
	struct sb_member *member;

	if (!control.cgroup_id || task != leader)
		return 0;
	member = bpf_map_lookup_elem(&tree, &tgid);
	if (sb_in_cgroup(task)) {
		if (member)
			__sync_fetch_and_or(&member->roots, control.cgroup_roots);
		else
			sb_join(SB_EVENT_JOIN, leader, 0, control.cgroup_roots);
	} else if (member && member->roots == control.cgroup_roots) {
		sb_leave(SB_EVENT_LEAVE, leader);
	} else if (member && (member->roots & control.cgroup_roots)) { /* of a --pid's, too */
		__sync_fetch_and_and(&member->roots, ~control.cgroup_roots);
		__sync_fetch_and_add(&state.departures, 1); /* tallies ask the tree again */
	}
	return 0;
}

/*
 * Gives a member more roots; whether one was new. Run by the loader (BPF_PROG_TEST_RUN), which could
 * only write all of them, over what the programs above change meanwhile.
 */
SEC("raw_tp")
int sb_add_roots(struct bpf_raw_tracepoint_args *ctx)
{
	__u32 tgid = ctx->args[0];
	__u64 roots = ctx->args[1];
	struct sb_member *member = bpf_map_lookup_elem(&tree, &tgid);

	return member && (__sync_fetch_and_or(&member->roots, roots) & roots) != roots;
}

/* Writes every process that the loader's PID namespace shows. */
SEC("iter/task")
int sb_tasks(struct bpf_iter__task *ctx)
{
	struct task_struct *task = ctx->task;
	struct task_struct *loader = bpf_get_current_task_btf();
	struct sb_task entry = {};

	control.loader_level = BPF_CORE_READ(loader, thread_pid, level);
	if (!task || task->pid != task->tgid)
		return 0;
	entry.tgid = task->tgid;
	entry.pid = sb_loader_pid(task);
	entry.parent_tgid = task->real_parent->tgid;
	entry.kernel_thread = !!(task->flags & PF_KTHREAD);
	entry.start_time = task->start_boottime;
	entry.in_cgroup = sb_in_cgroup(task);
	entry.ended = BPF_CORE_READ(task, signal, live.counter) == 0;
	BPF_CORE_READ_INTO(&entry.comm, task, comm);
	bpf_seq_write(ctx->meta->seq, &entry, sizeof(entry));
	return 0;
}

#endif /* SPEEDBUMP_TREE_BPF_H */
