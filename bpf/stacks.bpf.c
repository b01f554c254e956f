// SPDX-License-Identifier: (GPL-2.0-only OR MIT)
/*
 * Stacks of threads, native and Python at one moment: of those on a CPU, taken at a clock's
 * interrupt; and of those off the CPUs, copied while they stay off. Nothing is delayed, stopped or
 * written to.
 */
#include "kernel.h"

#include "abi.h"
#include "machine.h"

/* Memory of a thread off the CPUs that is read next; each piece costs a walk of page tables. */
struct sb_near {
	__u64 address;
	__u32 size;
	char bytes[512];
};

/* Reads the memory of a thread off the CPUs; NULL: of the current thread. */
struct sb_reader {
	struct task_struct *task;
	struct sb_near *near;
};

static __always_inline long sb_read(struct sb_reader *reader, void *to, __u32 size, __u64 address)
{
	__u64 offset;

	if (!reader)
		return bpf_probe_read_user(to, size, (void *)address);
	offset = address - reader->near->address;
	if (offset < sizeof(reader->near->bytes) && offset + size <= reader->near->size)
		return bpf_probe_read_kernel(to, size, &reader->near->bytes[offset]);
	return bpf_copy_from_user_task(to, size, (void *)address, reader->task, 0);
}

static __always_inline void sb_ahead(struct sb_reader *reader, __u64 address, __u32 size)
{
	if (!reader)
		return;
	reader->near->address = address;
	reader->near->size = 0;
	if (size <= sizeof(reader->near->bytes) &&
	    !bpf_copy_from_user_task(reader->near->bytes, size, (void *)address, reader->task, 0))
		reader->near->size = size;
}

#define SB_READ(reader, to, size, address) sb_read(reader, to, size, address)
#define SB_AHEAD(reader, address, size) sb_ahead(reader, address, size)
#include "python_walk.h"

char LICENSE[] SEC("license") = "Dual MIT/GPL";

#define SB_PAGE 4096u

const volatile __u32 still_scratch; /* which of the scratches is the iterator's; set by the loader */
__u32 loader_level; /* depth of the loader's PID namespace; the iterator finds out */

/* The processes that are looked at, by PID in the loader's namespace. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, SB_MAX_PROCESSES);
	__type(key, __u32);
	__type(value, struct sb_sampled_process);
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

/*
 * One for each CPU, and one for the iterator, which one process runs at a time; a per-CPU map holds
 * 32 KiB at most. The loader sets the number.
 */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct sb_scratch);
} scratches SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct sb_near);
} nears SEC(".maps");

/* Threads whose stack the loader has, by thread id in its namespace, since when they are still. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, SB_MAX_STACK_THREADS);
	__type(key, __u32);
	__type(value, struct sb_still);
} known SEC(".maps");

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

/* How much of the stack was copied. */
static __always_inline __u32 sb_copy_stack(struct sb_reader *reader, struct sb_scratch *scratch,
					   __u64 address)
{
	__u32 done = 0;

	/* Page by page: the first that is not there ends it. */
	for (int i = 0; i < SB_STACK_BYTES / SB_PAGE; i++) {
		__u32 size = SB_PAGE - ((address + done) & (SB_PAGE - 1));

		if (done > SB_STACK_BYTES - SB_PAGE)
			break;
		if (sb_read(reader, &scratch->rest[done], size, address + done))
			break;
		done += size;
	}
	return done;
}

/* The walk of a thread's frames into the scratch memory. */
struct sb_copying {
	struct sb_walk walk;
	struct task_struct *task; /* off the CPUs; NULL: the current thread */
	__u32 pid;
	__u32 scratch; /* which one */
	__u32 offset; /* of the next frame */
	__u32 count;
	__u32 fault;
};

static __always_inline long sb_copy_frame(struct sb_reader *reader, struct sb_copying *copying)
{
	struct sb_python_layout *layout = bpf_map_lookup_elem(&processes, &copying->pid);
	struct sb_scratch *scratch = bpf_map_lookup_elem(&scratches, &copying->scratch);
	struct sb_python_frame frame = {};
	__u32 offset = copying->offset;

	if (!copying->walk.next)
		return 1;
	copying->fault = SB_PYTHON_UNREADABLE;
	if (!layout || !scratch || offset > sizeof(scratch->rest) - sizeof(frame))
		return 1;
	if (sb_walk_step(reader, layout, &copying->walk, &frame))
		return 1;
	__builtin_memcpy(&scratch->rest[offset], &frame, sizeof(frame));
	copying->offset = offset + sizeof(frame);
	copying->count++;
	copying->fault = SB_PYTHON_FINE;
	return 0;
}

static long sb_copy_own_frame(__u32 index, struct sb_copying *copying)
{
	return sb_copy_frame(NULL, copying);
}

static long sb_copy_still_frame(__u32 index, struct sb_copying *copying)
{
	__u32 zero = 0;
	struct sb_reader reader = { .task = copying->task };

	reader.near = bpf_map_lookup_elem(&nears, &zero);
	if (!reader.near || !reader.task)
		return 1;
	return sb_copy_frame(&reader, copying);
}

static __always_inline void sb_copy_frames(struct sb_reader *reader, struct sb_copying *copying,
					   __u64 state, const struct sb_python_layout *layout)
{
	copying->fault = SB_PYTHON_UNREADABLE;
	if (sb_innermost(reader, layout, state, &copying->walk.next))
		return;
	copying->fault = SB_PYTHON_FINE;
	if (!copying->walk.next)
		return;
	if (reader)
		bpf_loop(SB_PYTHON_FRAMES, sb_copy_still_frame, copying, 0);
	else
		bpf_loop(SB_PYTHON_FRAMES, sb_copy_own_frame, copying, 0);
	if (copying->walk.next && copying->fault == SB_PYTHON_FINE)
		copying->fault = SB_PYTHON_DEEP;
}

static __always_inline bool sb_holds_gil(struct sb_reader *reader,
					 const struct sb_thread_state *state,
					 const struct sb_python_layout *layout)
{
	__u32 is_locked = 0;
	__u64 holder = 0;

	return state->gil &&
	       !sb_read(reader, &is_locked, sizeof(is_locked), state->gil + layout->gil_locked) &&
	       !sb_read(reader, &holder, sizeof(holder), state->gil + layout->gil_holder) &&
	       is_locked == 1 && holder == state->address;
}

/* Copies the thread's stacks; how many bytes of the scratch are filled. */
static __always_inline __u32 sb_copy_thread(struct sb_reader *reader, struct task_struct *task,
					    struct sb_copying *copying,
					    const struct sb_python_layout *layout,
					    struct sb_scratch *scratch)
{
	struct sb_stack_sample *sample = &scratch->sample;
	struct sb_thread_state *state;
	struct pt_regs *registers = (struct pt_regs *)bpf_task_pt_regs(task);

	sample->holds_gil = 0;
	sample->pid = copying->pid;
	sample->execs = (__u32)task->self_exec_id;
	sample->tid = sb_pid_at_level(task, loader_level);
	BPF_CORE_READ_INTO(&sample->comm, task, comm);
	bpf_probe_read_kernel(sample->registers, sizeof(sample->registers), registers);
	sb_leave_xol(task, sample->registers);
	sample->stack_bytes = sb_copy_stack(reader, scratch, BPF_CORE_READ(registers, sp)) & ~7u;
	copying->offset = sample->stack_bytes;
	state = bpf_map_lookup_elem(&thread_states, &sample->tid);
	if (!layout->is_python || !state) {
		sample->python_fault = SB_PYTHON_NONE;
	} else {
		sb_copy_frames(reader, copying, state->address, layout);
		sample->python_fault = copying->fault;
		sample->holds_gil = sb_holds_gil(reader, state, layout);
	}
	sample->python_frames = copying->count;
	return sizeof(*sample) + copying->offset;
}

SEC("perf_event")
int sb_running(void *ctx)
{
	struct task_struct *task = bpf_get_current_task_btf();
	struct sb_copying copying = { .pid = sb_pid_at_level(task->group_leader, loader_level),
				      .scratch = bpf_get_smp_processor_id() };
	struct sb_sampled_process *process = bpf_map_lookup_elem(&processes, &copying.pid);
	struct sb_scratch *scratch = bpf_map_lookup_elem(&scratches, &copying.scratch);
	__u32 size;

	if (!process || !scratch || task->flags & PF_EXITING)
		return 0;
	scratch->sample.on_cpu = 1;
	size = sb_copy_thread(NULL, task, &copying, &process->python, scratch);
	barrier_var(size); /* Linux 6.1 must see this very value compared */
	if (size > sizeof(*scratch))
		return 0;
	if (bpf_ringbuf_output(&samples, scratch, size, BPF_RB_NO_WAKEUP))
		__sync_fetch_and_add(&process->lost, 1);
	return 0;
}

static __always_inline struct sb_still sb_still_of(struct task_struct *task)
{
	struct sb_still still = { .switches = task->nvcsw + task->nivcsw,
				  .started_ns = task->start_boottime };

	return still;
}

/*
 * Hands over the stacks of a thread that is off the CPUs, unless the loader has them. They are of one
 * moment: the thread has not run while they were copied, else it is on a CPU or has one switch more
 * (__schedule() counts it before it lets go of the CPU).
 */
static __always_inline void sb_tell_still(struct task_struct *task, const struct sb_thread *thread)
{
	struct sb_copying copying = { .task = task, .scratch = still_scratch };
	struct sb_still *had, now, before = thread->still;
	struct sb_reader reader = { .task = task };
	struct sb_sampled_process *process;
	struct sb_scratch *scratch;
	__u32 size, zero = 0;

	had = bpf_map_lookup_elem(&known, &thread->tid);
	if (had && had->switches == before.switches && had->started_ns == before.started_ns)
		return;
	copying.pid = sb_pid_at_level(task->group_leader, loader_level);
	process = bpf_map_lookup_elem(&processes, &copying.pid);
	scratch = bpf_map_lookup_elem(&scratches, &copying.scratch);
	reader.near = bpf_map_lookup_elem(&nears, &zero);
	if (!process || !scratch || !reader.near)
		return;
	reader.near->size = 0;
	scratch->sample.on_cpu = 0;
	scratch->sample.still = before;
	size = sb_copy_thread(&reader, task, &copying, &process->python, scratch);
	now = sb_still_of(task);
	if (task->on_cpu || now.switches != before.switches)
		return;
	barrier_var(size);
	if (size > sizeof(*scratch))
		return;
	bpf_ringbuf_output(&samples, scratch, size, BPF_RB_NO_WAKEUP);
}

/* ns for which a thread has waited for a CPU. The kernel adds up what it has waited when it gets one
 * (sched_info_arrive(), kernel/sched/stats.h); what it waits now is taken up to when the loader got its
 * own, just before it asks: no program can read the scheduler's clock. */
static __always_inline __u64 sb_waited_of(struct task_struct *task, struct task_struct *loader)
{
	__u64 waited, since, now;

	if (!bpf_core_field_exists(task->sched_info.run_delay))
		return 0;
	waited = task->sched_info.run_delay;
	since = task->sched_info.last_queued;
	now = loader->sched_info.last_arrival;
	return since && now > since ? waited + now - since : waited;
}

/* Every thread of the process that the link names, and the stacks of those off the CPUs. */
SEC("iter.s/task")
int sb_threads(struct bpf_iter__task *ctx)
{
	struct task_struct *loader = bpf_get_current_task_btf();
	struct task_struct *task = ctx->task;
	struct sb_thread thread = {};

	loader_level = BPF_CORE_READ(loader, thread_pid, level);
	if (!task)
		return 0;
	thread.on_cpu = task->on_cpu;
	thread.still = sb_still_of(task);
	thread.execs = (__u32)task->self_exec_id;
	thread.runnable = task->__state == 0;
	thread.waited_ns = sb_waited_of(task, loader);
	thread.ran_ns = task->se.sum_exec_runtime;
	thread.preempted = task->nivcsw;
	thread.ended = !!(task->flags & PF_EXITING);
	thread.tid = sb_pid_at_level(task, loader_level);
	if (!thread.ended && !thread.on_cpu)
		sb_tell_still(task, &thread);
	bpf_seq_write(ctx->meta->seq, &thread, sizeof(thread));
	return 0;
}
