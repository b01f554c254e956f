// SPDX-License-Identifier: GPL-2.0-only
#include <linux/hash.h>
#include <linux/ktime.h>
#include <linux/rcupdate.h>
#include <linux/sched/signal.h>
#include <linux/slab.h>
#include <linux/task_work.h>
#include <linux/uprobes.h>
#include <linux/wait_bit.h>

#include "speed_bump.h"

/*
 * A probe's handler runs under a lock of the kernel (up to 6.11 the probe's own, later RCU tasks
 * trace) on which everybody waits who changes that probe, or any. Longer spins therefore wait until
 * the task is on its way back to its program, where it holds nothing.
 */
#define SB_INLINE_SPIN_NS (50 * NSEC_PER_USEC)
/*
 * A task that has its first instruction still to step keeps, while it spins later, one of the slots
 * of its memory, for which others sleep: a page of them, 32 on x86-64. Beyond this many its spins are
 * in the handler.
 */
#define SB_SLOTS_MAX ((int)(PAGE_SIZE / UPROBE_XOL_SLOT_BYTES * 3 / 4))
#define SB_MEMORY_BITS 8

struct sb_spin {
	struct callback_head head;
	struct sb_target *target;
	void (*work)(void);
	atomic_t *slots;		/* of which it may have one, or NULL */
	u64 delay_ns;
	unsigned int epoch;
};

unsigned int sb_epoch;
DEFINE_PER_CPU(struct sb_counts, sb_total);

static struct kmem_cache *sb_spin_cache;
static atomic_t sb_deferred = ATOMIC_INIT(0);
/* by a hash of the memory: those of two may be counted as one's */
static atomic_t sb_slots[1 << SB_MEMORY_BITS];

/* A signal that dumps core kills at its delivery, which waits for the spin. */
static bool sb_core_signal_pending(void)
{
	const struct sighand_struct *handlers;
	sigset_t pending;
	int sig;

	if (likely(!signal_pending(current)) || current->ptrace)
		return false;
	sigorsets(&pending, &current->pending.signal, &current->signal->shared_pending.signal);
	sigandnsets(&pending, &pending, &current->blocked);
	/* nobody else can give it others */
	handlers = rcu_dereference_protected(current->sighand, true);
	for (sig = 1; sig < SIGRTMIN; sig++)
		if (sigismember(&pending, sig) && sig_kernel_coredump(sig) &&
		    handlers->action[sig - 1].sa.sa_handler == SIG_DFL)
			return true;
	return false;
}

static bool sb_spin_ends(const struct sb_target *target, unsigned int epoch)
{
	return READ_ONCE(sb_epoch) != epoch || READ_ONCE(target->removed) ||
	       fatal_signal_pending(current) || sb_core_signal_pending();
}

static void sb_spin(struct sb_target *target, u64 delay_ns, unsigned int epoch)
{
	u64 start = ktime_get_ns(), passed;

	do {
		cpu_relax();
		/* nor may others wait: for this CPU, or for RCU Tasks, which preemption does not serve */
		rcu_tasks_classic_qs(current, false);
		cond_resched();
		passed = ktime_get_ns() - start;
		/* a delay that is lowered meanwhile is over when it would be over now */
	} while (passed < min(delay_ns, READ_ONCE(target->delay_ns)) && !sb_spin_ends(target, epoch));

	this_cpu_inc(target->counts->delays);
	this_cpu_add(target->counts->requested_ns, delay_ns);
	this_cpu_add(target->counts->measured_ns, passed);
	this_cpu_inc(sb_total.delays);
	this_cpu_add(sb_total.requested_ns, delay_ns);
	this_cpu_add(sb_total.measured_ns, passed);
}

#ifdef SB_TASK_WORK
static void sb_spin_free(struct sb_spin *spin)
{
	if (spin->slots)
		atomic_dec(spin->slots);
	if (spin->target)
		sb_target_put(spin->target);
	kmem_cache_free(sb_spin_cache, spin);
	if (atomic_dec_and_test(&sb_deferred))
		wake_up_var(&sb_deferred);
}

static void sb_spin_run(struct callback_head *head)
{
	struct sb_spin *spin = container_of(head, struct sb_spin, head);

	/* a task that is past its fatal signal has no signal pending any more */
	if (!(current->flags & PF_EXITING)) {
		if (spin->slots && !current->utask->active_uprobe)
			WRITE_ONCE(spin->target->emulated, true);
		if (spin->work)
			spin->work();
		else
			sb_spin(spin->target, spin->delay_ns, spin->epoch);
	}
	sb_spin_free(spin);
}

static int sb_spin_queue(struct sb_target *target, void (*work)(void), u64 delay_ns,
			 unsigned int epoch)
{
	struct sb_spin *spin = kmem_cache_zalloc(sb_spin_cache, GFP_NOWAIT | __GFP_NOWARN);
	int ret;

	if (!spin)
		return -ENOMEM;
	atomic_inc(&sb_deferred);
	init_task_work(&spin->head, sb_spin_run);
	spin->work = work;
	spin->delay_ns = delay_ns;
	spin->epoch = epoch;
	if (target) {
		refcount_inc(&target->users);
		spin->target = target;
	}
	if (target && !READ_ONCE(target->emulated)) {
		atomic_t *slots = &sb_slots[hash_ptr(current->mm, SB_MEMORY_BITS)];

		ret = -EBUSY;
		if (!atomic_add_unless(slots, 1, SB_SLOTS_MAX))
			goto out;
		spin->slots = slots;
	}
	/* fails for a task that exits, and will never return to its program */
	ret = task_work_add(current, &spin->head, TWA_RESUME);
	if (!ret)
		return 0;
out:
	sb_spin_free(spin);
	return ret;
}
#else
static int sb_spin_queue(struct sb_target *target, void (*work)(void), u64 delay_ns,
			 unsigned int epoch)
{
	return -EOPNOTSUPP;
}
#endif

int sb_spin_defer(void (*work)(void))
{
	return sb_spin_queue(NULL, work, 0, 0);
}

void sb_spin_hit(struct sb_target *target)
{
	unsigned int epoch = READ_ONCE(sb_epoch);
	u64 delay_ns;

	if (!(epoch & 1) || READ_ONCE(target->removed))
		return;
	this_cpu_inc(target->counts->hits);
	this_cpu_inc(sb_total.hits);
	delay_ns = READ_ONCE(target->delay_ns);
	if (!delay_ns)
		return;
	if (delay_ns > SB_INLINE_SPIN_NS) {
		int ret = sb_spin_queue(target, NULL, delay_ns, epoch);

		if (!ret || ret == -ESRCH)
			return;
	}
	sb_spin(target, delay_ns, epoch);
}

int sb_spin_init(void)
{
	sb_spin_cache = KMEM_CACHE(sb_spin, 0);
	return sb_spin_cache ? 0 : -ENOMEM;
}

void sb_spin_exit(void)
{
	wait_var_event(&sb_deferred, !atomic_read(&sb_deferred));
	/* the last of them may still be in the instructions after its decrement */
	synchronize_rcu_tasks();
	kmem_cache_destroy(sb_spin_cache);
}
