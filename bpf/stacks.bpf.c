// SPDX-License-Identifier: (GPL-2.0-only OR MIT)
/*
 * Stacks of threads: of those on a CPU, taken at a clock's interrupt, native and Python at one
 * moment; and the registers of those off the CPUs. Nothing is delayed, stopped or written to.
 */
#include "kernel.h"

#include "abi.h"

char LICENSE[] SEC("license") = "Dual MIT/GPL";

#define SB_PAGE 4096u
#define SB_XOL_SLOT 128u /* bytes (kernel/events/uprobes.c: UPROBE_XOL_SLOT_BYTES) */
#if defined(__TARGET_ARCH_arm64)
#define SB_IP 32 /* which of the registers is the instruction pointer */
#else
#define SB_IP 16
#endif
#define SB_TAG_BITS 7ULL /* of a _PyStackRef (3.14, free-threaded) */

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

static __always_inline int sb_read_u64(__u64 *value, __u64 address)
{
	return bpf_probe_read_user(value, sizeof(*value), (void *)address);
}

static __always_inline int sb_read_u32(__u32 *value, __u64 address)
{
	return bpf_probe_read_user(value, sizeof(*value), (void *)address);
}

static __always_inline int sb_read_u8(__u8 *value, __u64 address)
{
	return bpf_probe_read_user(value, sizeof(*value), (void *)address);
}

/*
 * The kernel lets a probed instruction run at another place, of which no unwind table knows. Before
 * and behind it the thread is where it would be without the probe.
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

struct sb_walk {
	__u64 frame;
	__u64 last_code; /* whose identity is known */
	__u64 last_identity;
	__u32 pid;
	__u32 offset; /* of the next frame in the scratch memory */
	__u32 count;
	__u32 fault;
};

static __always_inline int sb_identify_text(struct sb_identity_text *text,
					    const struct sb_python_layout *layout)
{
	__u32 state, size = SB_IDENTITY_TEXT;
	__u64 data = text->address + layout->text_data;

	if (sb_read_u64(&text->length, text->address + layout->text_length) ||
	    sb_read_u32(&state, text->address + layout->text_state))
		return -1;
	if (!(state & layout->text_ascii) || !text->length)
		return 0;
	if (text->length < SB_IDENTITY_TEXT)
		size = text->length;
	else
		data += text->length - SB_IDENTITY_TEXT;
	return bpf_probe_read_user(text->end, size, (void *)data);
}

static __always_inline int sb_identify(__u64 code, const struct sb_python_layout *layout,
				       __u64 *digest)
{
	struct sb_code_identity identity = {};

	if ((layout->code_version != SB_NO_FIELD &&
	     sb_read_u32(&identity.version, code + layout->code_version)) ||
	    sb_read_u32(&identity.first_line, code + layout->code_first_line) ||
	    sb_read_u64(&identity.name.address, code + layout->code_name) ||
	    sb_read_u64(&identity.file.address, code + layout->code_file) ||
	    sb_read_u64(&identity.lines, code + layout->code_lines))
		return -1;
	if (!identity.version && (sb_identify_text(&identity.name, layout) ||
				  sb_identify_text(&identity.file, layout)))
		return -1;
	*digest = sb_identity_digest(&identity);
	return 0;
}

static long sb_walk_frame(__u32 index, struct sb_walk *walk)
{
	struct sb_python_layout *layout = bpf_map_lookup_elem(&processes, &walk->pid);
	struct sb_scratch *scratch = sb_own_scratch();
	struct sb_python_frame frame = { .address = walk->frame };
	__u64 address = walk->frame, code, generator = 0;
	__u32 offset = walk->offset, number = 0;

	if (!address)
		return 1;
	walk->fault = SB_PYTHON_UNREADABLE;
	if (!layout || !scratch || offset > sizeof(scratch->rest) - sizeof(frame))
		return 1;
	if (sb_read_u64(&frame.code, address + layout->frame_code) ||
	    sb_read_u64(&walk->frame, address + layout->frame_previous))
		return 1;
	if (layout->ip_is_int) {
		if (sb_read_u32(&number, address + layout->frame_ip))
			return 1;
		frame.ip = (__s64)(__s32)number;
	} else if (sb_read_u64(&frame.ip, address + layout->frame_ip)) {
		return 1;
	}
	if (layout->frame_owner != SB_NO_FIELD &&
	    sb_read_u8(&frame.owner, address + layout->frame_owner))
		return 1;
	if (layout->frame_entry != SB_NO_FIELD &&
	    sb_read_u8(&frame.is_entry, address + layout->frame_entry))
		return 1;
	if (layout->frame_generator != SB_NO_FIELD &&
	    sb_read_u64(&generator, address + layout->frame_generator))
		return 1;
	frame.is_generator = generator != 0;
	if (layout->frame_bytecode_copy != SB_NO_FIELD &&
	    sb_read_u32((__u32 *)&frame.bytecode_copy, address + layout->frame_bytecode_copy))
		return 1;
	code = frame.code & ~SB_TAG_BITS;
	if (code != walk->last_code) {
		/* What C code runs below may have none; the loader sees that by the owner. */
		if (sb_identify(code, layout, &walk->last_identity))
			walk->last_identity = 0;
		walk->last_code = code;
	}
	frame.identity = walk->last_identity;
	__builtin_memcpy(&scratch->rest[offset], &frame, sizeof(frame));
	walk->offset = offset + sizeof(frame);
	walk->count++;
	walk->fault = SB_PYTHON_FINE;
	return 0;
}

static __always_inline __u64 sb_innermost(__u64 state, const struct sb_python_layout *layout,
					  __u32 *fault)
{
	__u64 frame = 0;

	*fault = SB_PYTHON_UNREADABLE;
	if (sb_read_u64(&frame, state + layout->thread_frame))
		return 0;
	if (layout->cframe_frame != SB_NO_FIELD && frame &&
	    sb_read_u64(&frame, frame + layout->cframe_frame))
		return 0;
	*fault = SB_PYTHON_FINE;
	return frame;
}

static __always_inline bool sb_holds_gil(const struct sb_thread_state *state,
					 const struct sb_python_layout *layout)
{
	__u32 is_locked = 0;
	__u64 holder = 0;

	return state->gil && !sb_read_u32(&is_locked, state->gil + layout->gil_locked) &&
	       !sb_read_u64(&holder, state->gil + layout->gil_holder) && is_locked == 1 &&
	       holder == state->address;
}

SEC("perf_event")
int sb_running(void *ctx)
{
	struct task_struct *task = bpf_get_current_task_btf();
	__u32 pid = sb_pid_at_level(task->group_leader, loader_level);
	struct sb_python_layout *layout = bpf_map_lookup_elem(&processes, &pid);
	struct sb_walk walk = { .pid = pid };
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
	walk.offset = sample->stack_bytes;
	state = bpf_map_lookup_elem(&thread_states, &sample->tid);
	if (!layout->is_python || !state) {
		sample->python_fault = SB_PYTHON_NONE;
	} else {
		walk.frame = sb_innermost(state->address, layout, &walk.fault);
		if (walk.frame) {
			bpf_loop(SB_PYTHON_FRAMES, sb_walk_frame, &walk, 0);
			if (walk.frame && walk.fault == SB_PYTHON_FINE)
				walk.fault = SB_PYTHON_DEEP;
		}
		sample->python_fault = walk.fault;
		sample->holds_gil = sb_holds_gil(state, layout);
	}
	sample->python_frames = walk.count;
	size = sizeof(*sample) + walk.offset;
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
