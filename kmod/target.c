// SPDX-License-Identifier: GPL-2.0-only
#include <linux/cred.h>
#include <linux/file.h>
#include <linux/hashtable.h>
#include <linux/namei.h>
#include <linux/sched/mm.h>
#include <linux/sched/signal.h>
#include <linux/slab.h>
#include <linux/stringhash.h>
#include <linux/workqueue.h>

#include "sb_elf.h"
#include "site.h"
#include "speed_bump.h"

/* So many probes may wait to be freed before writers wait with them. */
#define SB_RECLAIM_MAX 256

LIST_HEAD(sb_targets);
unsigned int sb_target_count;

static u64 sb_last_number;	/* by sb_lock */
static DEFINE_HASHTABLE(sb_names, 10);
/* devices that hold the module on, and whether only they do; by sb_lock */
static unsigned int sb_holders;
static bool sb_held;
/* targets on an overlay whose file is still the lower one, as far as is known */
static atomic_t sb_lower_targets = ATOMIC_INIT(0);

static LIST_HEAD(sb_dead_probes);
static unsigned int sb_dead_count;
static DEFINE_SPINLOCK(sb_reclaim_lock);

struct sb_call {
	struct work_struct work;
	void (*function)(void *argument);
	void *argument;
};

static void sb_reclaim(struct work_struct *work);
static void sb_renew_all(struct work_struct *work);
static DECLARE_WORK(sb_reclaim_work, sb_reclaim);
static DECLARE_DELAYED_WORK(sb_renew_work, sb_renew_all);

void sb_counts_sum(const struct sb_counts __percpu *counts, struct sb_counts *sum)
{
	int cpu;

	memset(sum, 0, sizeof(*sum));
	for_each_possible_cpu(cpu) {
		const struct sb_counts *one = per_cpu_ptr(counts, cpu);

		sum->hits += READ_ONCE(one->hits);
		sum->delays += READ_ONCE(one->delays);
		sum->requested_ns += READ_ONCE(one->requested_ns);
		sum->measured_ns += READ_ONCE(one->measured_ns);
	}
}

void sb_target_put(struct sb_target *target)
{
	if (!refcount_dec_and_test(&target->users))
		return;
	free_percpu(target->counts);
	kfree(target);
}

/* Probes */

static void sb_run_call(struct work_struct *work)
{
	struct sb_call *call = container_of(work, struct sb_call, work);

	call->function(call->argument);
}

/*
 * Runs the function in a kernel thread and waits for it. A task that is being killed gets -EINTR
 * from get_user_pages_remote() when it sets breakpoints or takes them out, upon which uprobes leave
 * them in the program for good.
 */
static void sb_in_worker(void (*function)(void *argument), void *argument)
{
	struct sb_call call = { .function = function, .argument = argument };

	if (current->flags & PF_KTHREAD) {
		function(argument);
		return;
	}
	INIT_WORK_ONSTACK(&call.work, sb_run_call);
	queue_work(system_unbound_wq, &call.work);
	flush_work(&call.work);
	destroy_work_on_stack(&call.work);
}

static bool sb_filter(SB_FILTER_ARGS)
{
	struct sb_probe *probe = container_of(self, struct sb_probe, uprobe.consumer);
	const struct sb_tree *tree;
	bool wanted;

	rcu_read_lock();
	tree = rcu_dereference(probe->target->tree);
	wanted = !tree || sb_tree_uses(tree, mm);
	rcu_read_unlock();
	return wanted;
}

static int sb_handler(SB_HANDLER_ARGS)
{
	struct sb_target *target = container_of(self, struct sb_probe, uprobe.consumer)->target;
	const struct sb_tree *tree;
	bool member, wanted;

	rcu_read_lock();
	tree = rcu_dereference(target->tree);
	member = !tree || sb_tree_has(tree, current);
	wanted = member || sb_tree_uses(tree, current->mm);
	rcu_read_unlock();
	if (!wanted)
		return UPROBE_HANDLER_REMOVE;
	if (member)
		sb_spin_hit(target);
	return 0;
}

/* Of a probe that is there only to have the filter asked again. */
static int sb_no_handler(SB_HANDLER_ARGS)
{
	return 0;
}

static struct sb_probe *sb_set_probe(struct sb_target *target, struct inode *inode,
				     int (*handler)(SB_HANDLER_ARGS))
{
	struct sb_probe *probe = kzalloc(sizeof(*probe), GFP_KERNEL);
	struct sb_tree *tree = rcu_dereference_protected(target->tree, true);
	int ret;

	if (!probe)
		return ERR_PTR(-ENOMEM);
	probe->target = target;
	probe->uprobe.consumer.handler = handler;
	probe->uprobe.consumer.filter = sb_filter;
	probe->uprobe.inode = inode;
	probe->uprobe.offset = target->offset;
	refcount_inc(&target->users);
	ret = sb_uprobe_register(&probe->uprobe);
	/* a child whose fork began before that has no breakpoint */
	if (tree)
		sb_tree_touch(tree);
	if (ret) {
		sb_target_put(target);
		kfree(probe);
		return ERR_PTR(ret);
	}
	return probe;
}

static void sb_reclaim(struct work_struct *work)
{
	struct sb_probe *probe, *next;
	LIST_HEAD(probes);

	spin_lock(&sb_reclaim_lock);
	list_splice_init(&sb_dead_probes, &probes);
	sb_dead_count = 0;
	spin_unlock(&sb_reclaim_lock);
	if (list_empty(&probes))
		return;
	sb_uprobe_sync();
	list_for_each_entry_safe(probe, next, &probes, reclaim) {
		sb_target_put(probe->target);
		kfree(probe);
	}
}

/* The breakpoints are gone on return; what handlers may still use is freed later, many at once. */
static void sb_clear_probe(struct sb_probe *probe)
{
	sb_uprobe_unregister(&probe->uprobe);
	spin_lock(&sb_reclaim_lock);
	list_add_tail(&probe->reclaim, &sb_dead_probes);
	sb_dead_count++;
	spin_unlock(&sb_reclaim_lock);
	schedule_work(&sb_reclaim_work);
}

/* Called without sb_lock: keeps a fast writer from filling memory with probes to be freed. */
static void sb_wait_for_reclaim(void)
{
	if (READ_ONCE(sb_dead_count) > SB_RECLAIM_MAX)
		flush_work(&sb_reclaim_work);
}

static void sb_clear_probes(struct sb_target *target)
{
	int i;

	for (i = 0; i < SB_FILES; i++) {
		if (target->files[i].probe)
			sb_clear_probe(target->files[i].probe);
		target->files[i].probe = NULL;
	}
}

/*
 * Whether the file, which may have been written to, still holds what was checked. Not for a kernel thread:
 * overlayfs opens a file that it has copied up for each read, and what a kernel thread closes stays open,
 * and its file system in use, for a tick or two (fput()).
 */
static int sb_check_code(const struct sb_target *target)
{
	u8 code[SB_SITE_MAX] = {};
	loff_t position = target->offset;
	ssize_t got = kernel_read(target->opened, code, sizeof(code), &position);

	if (got < 0)
		return got;
	return memcmp(code, target->code, sizeof(code)) ? -ESTALE : 0;
}

static int sb_set_probes(struct sb_target *target)
{
	int i;

	for (i = 0; i < SB_FILES && target->files[i].inode; i++) {
		struct sb_probe *probe = sb_set_probe(target, target->files[i].inode, sb_handler);

		if (IS_ERR(probe)) {
			sb_clear_probes(target);
			return PTR_ERR(probe);
		}
		target->files[i].probe = probe;
	}
	return 0;
}

/* Puts breakpoints where the filter wants them now, and takes out the others. */
static int sb_renew(struct sb_target *target)
{
	int i;

	for (i = 0; i < SB_FILES && target->files[i].probe; i++) {
		struct sb_probe *probe = sb_set_probe(target, target->files[i].inode,
						      sb_no_handler);

		if (IS_ERR(probe))
			return PTR_ERR(probe);
		sb_clear_probe(probe);
	}
	return 0;
}

/* For sb_in_worker(): one target's probes. */
struct sb_one {
	struct sb_target *target;
	int ret;
};

static void sb_set_one(void *argument)
{
	struct sb_one *one = argument;

	one->ret = sb_set_probes(one->target);
}

static void sb_clear_one(void *argument)
{
	sb_clear_probes(argument);
}

static void sb_renew_one(void *argument)
{
	struct sb_one *one = argument;

	one->ret = sb_renew(one->target);
}

static void sb_renew_all(struct work_struct *work)
{
	struct sb_target *target, *other;

	mutex_lock(&sb_lock);
	list_for_each_entry(target, &sb_targets, node) {
		struct sb_tree *tree = rcu_dereference_protected(target->tree, true);

		if (!tree || !sb_tree_take_renewal(tree))
			continue;
		list_for_each_entry(other, &sb_targets, node)
			if (rcu_access_pointer(other->tree) == tree)
				other->stale = true;
	}
	list_for_each_entry(target, &sb_targets, node) {
		if (target->stale)
			target->stale = sb_renew(target) != 0;
		if (target->stale)
			sb_target_renew_later(HZ);
	}
	mutex_unlock(&sb_lock);
	sb_wait_for_reclaim();
}

void sb_target_renew_later(unsigned long wait)
{
	/* what is wanted now waits for nothing that is tried again later */
	if (wait)
		queue_delayed_work(system_wq, &sb_renew_work, wait);
	else
		mod_delayed_work(system_wq, &sb_renew_work, 0);
}

/* Files */

static ssize_t sb_read_file(void *context, void *buffer, size_t length, u64 offset)
{
	loff_t position = offset;

	if (fatal_signal_pending(current))
		return -EINTR;
	cond_resched();
	return kernel_read(context, buffer, length, &position);
}

/* Whether the kernel can read the file as ELF and put a probe into it. */
static bool sb_is_mappable(const struct file *file, struct inode *inode)
{
	return inode && S_ISREG(inode->i_mode) && S_ISREG(file_inode(file)->i_mode) &&
	       file->f_op->read_iter && !file->f_op->read &&
	       (inode->i_mapping->a_ops->read_folio || shmem_mapping(inode->i_mapping));
}

static struct file *sb_open(const char *name)
{
	struct file *file = ERR_PTR(-ENOEXEC);
	struct path path;
	int ret = kern_path(name, LOOKUP_FOLLOW, &path);

	if (ret)
		return ERR_PTR(ret == -ENOTDIR ? -ENOENT : ret);
	/*
	 * Opening a device or a fifo would do something: what has been looked at is opened, not what
	 * the name means by then.
	 */
	if (S_ISREG(d_inode(path.dentry)->i_mode))
		file = dentry_open(&path, O_RDONLY | O_LARGEFILE, current_cred());
	path_put(&path);
	if (IS_ERR(file))
		return file;
	ret = file_permission(file, MAY_READ);
	if (!ret)
		return file;
	fput(file);
	return ERR_PTR(ret);
}

static int sb_find_code(struct sb_target *target, const struct sb_command *command)
{
	char name[SB_PATH_MAX + 1];
	struct sb_reader reader;
	struct inode *inode;
	struct file *file;
	u64 offset = command->offset;
	int ret;

	sb_command_path(command, name);
	file = sb_open(name);
	if (IS_ERR(file))
		return PTR_ERR(file);
	inode = d_real_inode(file->f_path.dentry);
	ret = -ENOEXEC;
	if (!sb_is_mappable(file, inode))
		goto out;
	reader = (struct sb_reader) { sb_read_file, file, i_size_read(inode) };
	if (command->has_offset)
		ret = sb_elf_offset(&reader, offset);
	else
		ret = sb_elf_symbol(&reader, sb_command_symbol(command), &offset);
	if (!ret && !IS_ALIGNED(offset, UPROBE_SWBP_INSN_SIZE))
		ret = -ENOENT;
	if (!ret)
		ret = sb_site_check(&reader, offset,
				    (struct sb_site_kernel){ SB_NOP5_IS_SAFE, sb_call_is_safe() },
				    target->code);
	if (ret)
		goto out;
	target->files[0].inode = igrab(inode);
	if (!target->files[0].inode) {
		ret = -ENOENT;
		goto out;
	}
	target->offset = offset;
	target->overlay = inode != d_inode(file->f_path.dentry);
	target->opened = get_file(file);
out:
	fput(file);
	return ret;
}

/*
 * An overlay has copied the file up: what is started from now on maps the copy. Of one that is being
 * written the code may not be there yet: it is looked at again at the next exec.
 */
static void sb_find_copy(struct sb_target *target)
{
	struct inode *inode;

	if (!target->overlay || target->files[1].inode)
		return;
	inode = d_real_inode(target->opened->f_path.dentry);
	if (!inode || inode == target->files[0].inode || sb_check_code(target))
		return;
	target->files[1].inode = igrab(inode);
	if (target->files[1].inode)
		atomic_dec(&sb_lower_targets);
}

static bool sb_wants_copy(const struct sb_target *target)
{
	return target->files[0].probe && target->files[1].inode && !target->files[1].probe;
}

static void sb_probe_copies(void *argument)
{
	struct sb_target *target;

	list_for_each_entry(target, &sb_targets, node) {
		struct sb_probe *probe;

		if (!sb_wants_copy(target))
			continue;
		probe = sb_set_probe(target, target->files[1].inode, sb_handler);
		if (!IS_ERR(probe))
			target->files[1].probe = probe;
	}
}

/*
 * At each exec of the machine: a program can be killed while it waits here for a holder of the lock that
 * a file system keeps waiting.
 */
static void sb_follow_all(void)
{
	struct sb_target *target;
	bool is_any = false;

	if (mutex_lock_killable(&sb_lock))
		return;
	list_for_each_entry(target, &sb_targets, node) {
		sb_find_copy(target);
		is_any |= sb_wants_copy(target);
	}
	if (is_any)
		sb_in_worker(sb_probe_copies, NULL);
	mutex_unlock(&sb_lock);
}

void sb_target_on_exec(void)
{
	if (atomic_read(&sb_lower_targets) && sb_enabled())
		sb_spin_defer(sb_follow_all);
}

/* Targets */

static u32 sb_name_hash(const char *name)
{
	return full_name_hash(NULL, name, strlen(name));
}

static struct sb_target *sb_find(const char *name)
{
	struct sb_target *target;

	hash_for_each_possible(sb_names, target, by_name, sb_name_hash(name))
		if (!strcmp(target->name, name))
			return target;
	return NULL;
}

struct sb_target *sb_target_after(struct sb_target *last)
{
	struct sb_target *target;

	lockdep_assert_held(&sb_lock);
	if (last && !last->removed)
		return list_is_last(&last->node, &sb_targets) ? NULL : list_next_entry(last, node);
	list_for_each_entry(target, &sb_targets, node)
		if (!last || target->number > last->number)
			return target;
	return NULL;
}

static int sb_check_room(const char *name)
{
	if (sb_find(name))
		return -EEXIST;
	return sb_target_count < sb_max_targets ? 0 : -ENOSPC;
}

/* Needs sb_lock when the target has a tree or probes. */
static void sb_discard(struct sb_target *target)
{
	struct sb_tree *tree = rcu_dereference_protected(target->tree, true);
	int i;

	WRITE_ONCE(target->removed, true);
	if (target->files[0].probe)
		sb_in_worker(sb_clear_one, target);
	if (tree) {
		rcu_assign_pointer(target->tree, NULL);
		sb_tree_put(tree);
	}
	for (i = 0; i < SB_FILES; i++)
		iput(target->files[i].inode);
	fput(target->opened);
	sb_target_put(target);
}

static struct sb_target *sb_target_new(const struct sb_command *command, const void *owner)
{
	size_t length = strlen(command->name);
	struct sb_target *target = kzalloc(struct_size(target, name, length + 1), GFP_KERNEL);
	int ret = -ENOMEM;

	if (!target)
		return ERR_PTR(ret);
	memcpy(target->name, command->name, length + 1);
	refcount_set(&target->users, 1);
	target->owner = owner;
	target->delay_ns = command->has_delay ? command->delay_ns : READ_ONCE(sb_default_delay_ns);
	target->counts = alloc_percpu(struct sb_counts);
	if (target->counts)
		ret = sb_find_code(target, command);
	if (ret) {
		sb_target_put(target);
		return ERR_PTR(ret);
	}
	return target;
}

static int sb_add_locked(struct sb_target *target, const struct sb_command *command)
{
	int ret = sb_check_room(target->name);

	if (ret)
		return ret;
	if (command->has_pid) {
		struct sb_tree *tree = sb_tree_get(command->pid);

		if (IS_ERR(tree))
			return PTR_ERR(tree);
		rcu_assign_pointer(target->tree, tree);
	}
	if (sb_enabled()) {
		struct sb_one one = { .target = target };

		ret = sb_check_code(target);
		if (ret)
			return ret;
		sb_in_worker(sb_set_one, &one);
		if (one.ret)
			return one.ret;
	}
	target->number = ++sb_last_number;
	list_add_tail(&target->node, &sb_targets);
	hash_add(sb_names, &target->by_name, sb_name_hash(target->name));
	sb_target_count++;
	if (target->overlay)
		atomic_inc(&sb_lower_targets);
	return 0;
}

static int sb_add(const struct sb_command *command, const void *owner)
{
	struct sb_target *target;
	int ret;

	/* the file is read without the lock, but not at all when there is no room */
	if (mutex_lock_killable(&sb_lock))
		return -EINTR;
	ret = sb_check_room(command->name);
	mutex_unlock(&sb_lock);
	if (ret)
		return ret;

	target = sb_target_new(command, owner);
	if (IS_ERR(target))
		return PTR_ERR(target);
	mutex_lock(&sb_lock);
	ret = sb_add_locked(target, command);
	if (ret)
		sb_discard(target);
	mutex_unlock(&sb_lock);
	return ret;
}

static void sb_remove_locked(struct sb_target *target)
{
	list_del(&target->node);
	hash_del(&target->by_name);
	sb_target_count--;
	if (target->overlay && !target->files[1].inode)
		atomic_dec(&sb_lower_targets);
	sb_discard(target);
}

static int sb_remove(const struct sb_command *command)
{
	struct sb_target *target;

	if (mutex_lock_killable(&sb_lock))
		return -EINTR;
	target = sb_find(command->name);
	if (target)
		sb_remove_locked(target);
	mutex_unlock(&sb_lock);
	return target ? 0 : -ENOENT;
}

static void sb_clear_removed(void *argument)
{
	struct sb_target *target;

	list_for_each_entry(target, &sb_targets, node)
		if (target->removed)
			sb_clear_probes(target);
}

/* All targets, or those of one owner. */
static void sb_remove_many(bool all, const void *owner)
{
	struct sb_target *target, *next;

	mutex_lock(&sb_lock);
	/* first no more delays, so that taking the probes out waits for none */
	list_for_each_entry(target, &sb_targets, node)
		if (all || target->owner == owner)
			WRITE_ONCE(target->removed, true);
	sb_in_worker(sb_clear_removed, NULL);
	list_for_each_entry_safe(target, next, &sb_targets, node)
		if (target->removed)
			sb_remove_locked(target);
	mutex_unlock(&sb_lock);
	sb_wait_for_reclaim();
}

static int sb_update_filter(struct sb_target *target, pid_t pid)
{
	struct sb_tree *old = rcu_dereference_protected(target->tree, lockdep_is_held(&sb_lock));
	struct sb_tree *tree = sb_tree_get(pid);
	struct sb_one one = { .target = target };

	if (IS_ERR(tree))
		return PTR_ERR(tree);
	rcu_assign_pointer(target->tree, tree);
	sb_in_worker(sb_renew_one, &one);
	if (one.ret) {
		rcu_assign_pointer(target->tree, old);
		/* the way back took out what the old filter wants */
		target->stale = true;
		sb_target_renew_later(0);
		sb_tree_put(tree);
		return one.ret;
	}
	sb_tree_put(old);
	return 0;
}

static int sb_update(const struct sb_command *command)
{
	struct sb_target *target;
	int ret = 0;

	if (mutex_lock_killable(&sb_lock))
		return -EINTR;
	target = sb_find(command->name);
	if (!target)
		ret = -ENOENT;
	else if (command->has_pid)
		ret = sb_update_filter(target, command->pid);
	if (!ret)
		WRITE_ONCE(target->delay_ns, command->delay_ns);
	mutex_unlock(&sb_lock);
	return ret;
}

int sb_target_command(const char *text, size_t length, const void *owner)
{
	struct sb_command command;
	int ret = sb_command_parse(text, length, &command);

	if (ret)
		return ret;
	switch (command.verb) {
	case SB_ADD:
		ret = sb_add(&command, owner);
		break;
	case SB_REMOVE:
		ret = sb_remove(&command);
		break;
	case SB_REMOVE_ALL:
		sb_remove_many(true, NULL);
		break;
	case SB_UPDATE:
		ret = sb_update(&command);
		break;
	}
	sb_wait_for_reclaim();
	return ret;
}

static void sb_disable(void *argument)
{
	struct sb_target *target;

	list_for_each_entry(target, &sb_targets, node)
		sb_clear_probes(target);
}

static void sb_enable(void *argument)
{
	struct sb_target *target;
	int *ret = argument;

	/* what somebody has left who waits for the lock to switch it off */
	sb_disable(NULL);
	list_for_each_entry(target, &sb_targets, node) {
		*ret = sb_set_probes(target);
		if (*ret) {
			sb_disable(NULL);
			return;
		}
	}
	/* all at once, when all are in place */
	WRITE_ONCE(sb_epoch, sb_epoch + 1);
}

/* Ends all delays; without the lock: only sb_enable(), which has it, makes the epoch odd. */
static void sb_end_delays(void)
{
	unsigned int epoch = READ_ONCE(sb_epoch);

	if (epoch & 1)
		cmpxchg(&sb_epoch, epoch, epoch + 1);
}

/* Whether the code of all is what it was, and where copies of it are. */
static int sb_check_targets(void)
{
	struct sb_target *target;

	list_for_each_entry(target, &sb_targets, node) {
		int ret;

		sb_find_copy(target);
		ret = sb_check_code(target);
		if (ret)
			return ret;
	}
	return 0;
}

static int sb_enable_locked(bool on)
{
	int ret = 0;

	/* first no more delays, so that taking the probes out waits for none */
	if (!on)
		sb_end_delays();
	else if (sb_enabled())
		return 0;
	else
		ret = sb_check_targets();
	if (ret)
		return ret;
	sb_in_worker(on ? sb_enable : sb_disable, &ret);
	return ret;
}

int sb_target_enable(bool on)
{
	int ret;

	if (!on) {
		sb_end_delays();
		mutex_lock(&sb_lock);
	} else if (mutex_lock_killable(&sb_lock)) {
		return -EINTR;
	}
	sb_held = false;
	ret = sb_enable_locked(on);
	mutex_unlock(&sb_lock);
	sb_wait_for_reclaim();
	return ret;
}

int sb_target_hold(void *owner, void **holds)
{
	struct sb_target *target;
	int ret = 0;

	if (mutex_lock_killable(&sb_lock))
		return -EINTR;
	if (*holds)
		goto out;
	if (!sb_enabled()) {
		list_for_each_entry(target, &sb_targets, node)
			if (target->owner != owner)
				ret = -EBUSY;
		if (!ret)
			ret = sb_enable_locked(true);
		if (ret)
			goto out;
		sb_held = true;
	}
	sb_holders++;
	*holds = owner;
out:
	mutex_unlock(&sb_lock);
	return ret;
}

void sb_target_release(const void *owner, bool holds)
{
	sb_remove_many(false, owner);
	if (!holds)
		return;
	mutex_lock(&sb_lock);
	if (!--sb_holders && sb_held) {
		sb_held = false;
		sb_enable_locked(false);
	}
	mutex_unlock(&sb_lock);
}

void sb_target_clear(void)
{
	sb_target_enable(false);
	sb_remove_many(true, NULL);
}

void sb_target_exit(void)
{
	cancel_delayed_work_sync(&sb_renew_work);
	flush_work(&sb_reclaim_work);
}
