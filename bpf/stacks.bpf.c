// SPDX-License-Identifier: (GPL-2.0-only OR MIT)
/*
 * Stacks of threads: of those on a CPU, taken at a clock's interrupt, native and Python at one
 * moment; and the registers of those off the CPUs. Nothing is delayed, stopped or written to.
 */
#include "kernel.h"

#include "abi.h"
#include "machine.h"

/* Of the current thread: the reader is nobody. */
#define SB_READ(reader, to, size, address) bpf_probe_read_user(to, size, (void *)(address))
#define SB_AHEAD(reader, address, size)
#include "python_walk.h"

char LICENSE[] SEC("license") = "Dual MIT/GPL";

#define SB_PAGE 4096u

__u32 loader_level;    /* depth of the loader's PID namespace; the iterator finds out */
__u64 lost_samples;    /* for which there was no room */

/* The processes that are looked at, by PID in the loader's namespace. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, SB_MAX_PROCESSES);
	__type(key, __u32);
	__type(value, struct sb_python_layout);
} processes SEC(".maps");

/* Threads that run Python, by thread id in the loader's namespace. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, SB_MAX_STACK_THREADS);
	__type(key, __u32);
	__type(value, struct sb_thread_state);
} thread_states SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, 16 << 20);
} samples SEC(".maps");

struct sb_scratch {
	struct sb_stack_sample sample;
	char rest[SB_STACK_BYTES + SB_PYTHON_FRAMES * sizeof(struct sb_python_frame)];
};

/* One for each CPU; a per-CPU map holds 32 KiB at most. The loader sets the number. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct sb_scratch);
} scratches SEC(".maps");

static __always_inline struct sb_scratch *sb_own_scratch(void)
{
	__u32 cpu = bpf_get_smp_processor_id();

	return bpf_map_lookup_elem(&scratches, &cpu);
}

/*
 * The kernel lets a probed instruction run at another place, of which no unwind table knows. Before
 * and after it the thread is where it would be without the probe.
 */
static __always_inline void sb_leave_xol(struct task_struct *task, __u64 *registers)
{
	struct uprobe_task *utask = BPF_CORE_READ(task, utask);
	__u64 slot = utask ? BPF_CORE_READ(utask, xol_vaddr) : 0;

	if (slot && registers[SB_IP] - slot < SB_XOL_SLOT)
		registers[SB_IP] += BPF_CORE_READ(utask, vaddr) - slot;
}

/* How much of the stack of the current thread was copied. */
static __always_inline __u32 sb_copy_stack(struct sb_scratch *scratch, __u64 address)
{
	__u32 done = 0;

	/* Page by page: the first that is not there ends it. */
	for (int i = 0; i < SB_STACK_BYTES / SB_PAGE; i++) {
		__u32 size = SB_PAGE - ((address + done) & (SB_PAGE - 1));

		if (done > SB_STACK_BYTES - SB_PAGE)
			break;
		if (bpf_probe_read_user(&scratch->rest[done], size, (void *)(address + done)))
			break;
		done += size;
	}
	return done;
}

/* The walk of a thread's frames into the scratch memory. */
struct sb_copying {
	struct sb_walk walk;
	__u32 pid;
	__u32 offset; /* of the next frame */
	__u32 count;
	__u32 fault;
};

static long sb_copy_frame(__u32 index, struct sb_copying *copying)
{
	struct sb_python_layout *layout = bpf_map_lookup_elem(&processes, &copying->pid);
	struct sb_scratch *scratch = sb_own_scratch();
	struct sb_python_frame frame = {};
	__u32 offset = copying->offset;

	if (!copying->walk.next)
		return 1;
	copying->fault = SB_PYTHON_UNREADABLE;
	if (!layout || !scratch || offset > sizeof(scratch->rest) - sizeof(frame))
		return 1;
	if (sb_walk_step(NULL, layout, &copying->walk, &frame))
		return 1;
	__builtin_memcpy(&scratch->rest[offset], &frame, sizeof(frame));
	copying->offset = offset + sizeof(frame);
	copying->count++;
	copying->fault = SB_PYTHON_FINE;
	return 0;
}

static __always_inline void sb_copy_frames(struct sb_copying *copying, __u64 state,
					   const struct sb_python_layout *layout)
{
	copying->fault = SB_PYTHON_UNREADABLE;
	if (sb_innermost(NULL, layout, state, &copying->walk.next))
		return;
	copying->fault = SB_PYTHON_FINE;
	if (!copying->walk.next)
		return;
	bpf_loop(SB_PYTHON_FRAMES, sb_copy_frame, copying, 0);
	if (copying->walk.next && copying->fault == SB_PYTHON_FINE)
		copying->fault = SB_PYTHON_DEEP;
}

static __always_inline bool sb_holds_gil(const struct sb_thread_state *state,
					 const struct sb_python_layout *layout)
{
	__u32 is_locked = 0;
	__u64 holder = 0;

	return state->gil &&
	       !SB_READ(NULL, &is_locked, sizeof(is_locked), state->gil + layout->gil_locked) &&
	       !SB_READ(NULL, &holder, sizeof(holder), state->gil + layout->gil_holder) &&
	       is_locked == 1 && holder == state->address;
}

SEC("perf_event")
int sb_running(void *ctx)
{
	struct task_struct *task = bpf_get_current_task_btf();
	__u32 pid = sb_pid_at_level(task->group_leader, loader_level);
	struct sb_python_layout *layout = bpf_map_lookup_elem(&processes, &pid);
	struct sb_copying copying = { .pid = pid };
	struct sb_stack_sample *sample;
	struct sb_scratch *scratch;
	struct pt_regs *registers;
	struct sb_thread_state *state;
	__u64 stack, size;

	if (!layout || task->flags & PF_EXITING)
		return 0;
	scratch = sb_own_scratch();
	if (!scratch)
		return 0;
	sample = &scratch->sample;
	sample->holds_gil = 0;
	sample->pid = pid;
	sample->tid = sb_pid_at_level(task, loader_level);
	registers = (struct pt_regs *)bpf_task_pt_regs(task);
	bpf_probe_read_kernel(sample->registers, sizeof(sample->registers), registers);
	sb_leave_xol(task, sample->registers);
	stack = BPF_CORE_READ(registers, sp);
	sample->stack_bytes = sb_copy_stack(scratch, stack) & ~7u;
	copying.offset = sample->stack_bytes;
	state = bpf_map_lookup_elem(&thread_states, &sample->tid);
	if (!layout->is_python || !state) {
		sample->python_fault = SB_PYTHON_NONE;
	} else {
		sb_copy_frames(&copying, state->address, layout);
		sample->python_fault = copying.fault;
		sample->holds_gil = sb_holds_gil(state, layout);
	}
	sample->python_frames = copying.count;
	size = sizeof(*sample) + copying.offset;
	if (size > sizeof(*scratch))
		return 0;
	if (bpf_ringbuf_output(&samples, scratch, size, BPF_RB_NO_WAKEUP))
		__sync_fetch_and_add(&lost_samples, 1);
	return 0;
}

/* Every thread of the process that the link names. */
SEC("iter/task")
int sb_threads(struct bpf_iter__task *ctx)
{
	struct task_struct *loader = bpf_get_current_task_btf();
	struct task_struct *task = ctx->task;
	struct sb_thread thread = {};

	loader_level = BPF_CORE_READ(loader, thread_pid, level);
	if (!task)
		return 0;
	thread.switches = task->nvcsw + task->nivcsw;
	if (bpf_core_field_exists(task->sched_info.run_delay))
		thread.waited_ns = task->sched_info.run_delay;
	thread.on_cpu = task->on_cpu;
	thread.runnable = task->__state == 0;
	thread.ended = !!(task->flags & PF_EXITING);
	thread.tid = sb_pid_at_level(task, loader_level);
	if (!thread.ended) {
		bpf_probe_read_kernel(thread.registers, sizeof(thread.registers),
				      (void *)bpf_task_pt_regs(task));
		sb_leave_xol(task, thread.registers);
	}
	bpf_seq_write(ctx->meta->seq, &thread, sizeof(thread));
	return 0;
}
