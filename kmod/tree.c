// SPDX-License-Identifier: GPL-2.0-only
#include <linux/hashtable.h>
#include <linux/pid.h>
#include <linux/pid_namespace.h>
#include <linux/sched/mm.h>
#include <linux/sched/signal.h>
#include <linux/sched/task.h>
#include <linux/slab.h>
#include <linux/tracepoint.h>

#include "speed_bump.h"

/*
 * A tree is the set of its processes: those that descend from its root when it is made, and each
 * that a member forks. Parents may die and children be handed to others; membership stays.
 */
struct sb_tree {
	struct list_head node;		/* in sb_trees */
	struct list_head members;	/* by sb_tree_lock, read under RCU */
	struct pid_namespace *namespace;	/* in which `number` counts */
	struct pid *root;		/* NULL until a process has the number */
	pid_t number;
	unsigned int users;		/* by sb_lock */
	bool everyone;			/* process 1 of the host */
	bool dead;			/* by sb_tree_lock: takes no more members */
	bool scanning;
	bool renew;
	unsigned long touched;		/* jiffies */
	struct rcu_head rcu;
};

struct sb_member {
	struct hlist_node by_pid;
	struct list_head node;
	struct pid *pid;		/* of the thread group; pinned */
	struct sb_tree *tree;
	struct rcu_head rcu;
};

/*
 * Where the kernel does not say whose memory it is, children that were half made when breakpoints
 * were set get theirs by a renewal; so long after it all such forks have ended.
 */
#define SB_FORK_WINDOW HZ

static DEFINE_HASHTABLE(sb_members, 12);
static LIST_HEAD(sb_trees);
static DEFINE_SPINLOCK(sb_tree_lock);
/* trees that wait for their root or are being filled: forks and exits look closer */
static atomic_t sb_open_trees = ATOMIC_INIT(0);
static atomic64_t sb_lost = ATOMIC64_INIT(0);

static struct tracepoint *sb_fork_point;
static struct tracepoint *sb_exit_point;
static struct tracepoint *sb_exec_point;

static struct sb_member *sb_find_member(const struct sb_tree *tree, const struct pid *pid)
{
	struct sb_member *member;

	hash_for_each_possible_rcu(sb_members, member, by_pid, (unsigned long)pid)
		if (member->pid == pid && member->tree == tree)
			return member;
	return NULL;
}

bool sb_tree_has(const struct sb_tree *tree, struct task_struct *task)
{
	struct pid *pid;

	if (tree->everyone)
		return true;
	pid = task_tgid(task);
	return pid && sb_find_member(tree, pid);
}

#ifdef CONFIG_MEMCG
/*
 * Whether the memory belongs to a member's child, which may be half made: its fork copies the memory
 * before anybody can find the child, and breakpoints set in between would pass it by. Until the
 * child has a pid of its own, thread_pid is a copy of its parent's; then it has a real_parent.
 */
static bool sb_is_childs(const struct sb_tree *tree, struct mm_struct *mm)
{
	struct task_struct *owner = rcu_dereference(mm->owner);
	struct task_struct *parent;

	if (!owner)
		return false;
	parent = pid_task(READ_ONCE(owner->thread_pid), PIDTYPE_PID);
	/*
	 * Its pid does not lead to it yet: processors that write out of turn may show that before its
	 * real_parent. Better a breakpoint too many, which its first hit takes out.
	 */
	if (!parent)
		return true;
	if (parent == owner)
		parent = rcu_dereference(parent->real_parent);
	return sb_tree_has(tree, parent);
}
#else
static bool sb_is_childs(const struct sb_tree *tree, struct mm_struct *mm)
{
	return false;
}
#endif

bool sb_tree_uses(const struct sb_tree *tree, struct mm_struct *mm)
{
	struct sb_member *member;
	struct task_struct *leader, *thread;

	if (tree->everyone)
		return true;
	if ((current->mm == mm && sb_tree_has(tree, current)) || sb_is_childs(tree, mm))
		return true;
	list_for_each_entry_rcu(member, &tree->members, node) {
		leader = pid_task(member->pid, PIDTYPE_TGID);
		if (!leader)
			continue;
		/* a leader that has exited has no memory, its threads do */
		for_each_thread(leader, thread) {
			if (READ_ONCE(thread->mm) == mm)
				return true;
			if (READ_ONCE(thread->mm))
				break;
		}
	}
	return false;
}

pid_t sb_tree_pid(const struct sb_tree *tree)
{
	return tree->number;
}

u64 sb_tree_lost(void)
{
	return atomic64_read(&sb_lost);
}

void sb_tree_touch(struct sb_tree *tree)
{
	WRITE_ONCE(tree->touched, jiffies);
}

bool sb_tree_take_renewal(struct sb_tree *tree)
{
	return xchg(&tree->renew, false);
}

static void sb_free_member(struct rcu_head *head)
{
	struct sb_member *member = container_of(head, struct sb_member, rcu);

	put_pid(member->pid);
	kfree(member);
}

static void sb_drop_member(struct sb_member *member)
{
	lockdep_assert_held(&sb_tree_lock);
	hash_del_rcu(&member->by_pid);
	list_del_rcu(&member->node);
	call_rcu(&member->rcu, sb_free_member);
}

static void sb_forget(struct pid *pid)
{
	struct sb_member *member;
	struct hlist_node *next;

	spin_lock(&sb_tree_lock);
	hash_for_each_possible_safe(sb_members, member, next, by_pid, (unsigned long)pid)
		if (member->pid == pid)
			sb_drop_member(member);
	spin_unlock(&sb_tree_lock);
}

static bool sb_add_member(struct sb_tree *tree, struct task_struct *task)
{
	struct pid *pid = task_tgid(task);
	struct sb_member *member;

	if (!pid)
		return true;
	member = kmalloc(sizeof(*member), GFP_ATOMIC | __GFP_NOWARN);
	if (!member) {
		atomic64_inc(&sb_lost);
		return false;
	}
	spin_lock(&sb_tree_lock);
	if (tree->dead || sb_find_member(tree, pid)) {
		spin_unlock(&sb_tree_lock);
		kfree(member);
		return true;
	}
	member->pid = get_pid(pid);
	member->tree = tree;
	hash_add_rcu(sb_members, &member->by_pid, (unsigned long)pid);
	list_add_tail_rcu(&member->node, &tree->members);
	spin_unlock(&sb_tree_lock);
	/* pairs with the decrement before the exit hook, and with forks: one of two sees the other */
	smp_mb();
	if (!atomic_read(&task->signal->live))
		sb_forget(pid);
	return true;
}

/* Whether a task descends from the tree's root or from a member, as far as parents still live. */
static bool sb_descends(const struct sb_tree *tree, struct task_struct *task)
{
	for (;;) {
		struct task_struct *parent;

		if (task_tgid(task) && (task_tgid(task) == READ_ONCE(tree->root) ||
					sb_find_member(tree, task_tgid(task))))
			return true;
		parent = rcu_dereference(task->real_parent);
		/* the idle task, ancestor of what the kernel starts, is its own parent */
		if (parent == task || !parent->pid)
			return false;
		task = parent;
	}
}

static bool sb_scan(struct sb_tree *tree)
{
	struct task_struct *task;
	bool complete = true;

	rcu_read_lock();
	for_each_process(task)
		if (sb_descends(tree, task))
			complete = sb_add_member(tree, task) && complete;
	rcu_read_unlock();
	return complete;
}

/* Gives a waiting tree its root, once. */
static bool sb_bind(struct sb_tree *tree, struct pid *pid)
{
	bool bound;

	spin_lock(&sb_tree_lock);
	bound = !tree->root && !tree->dead;
	if (bound)
		WRITE_ONCE(tree->root, get_pid(pid));
	spin_unlock(&sb_tree_lock);
	if (bound)
		atomic_dec(&sb_open_trees);
	return bound;
}

static void sb_follow_open_trees(struct task_struct *parent, struct task_struct *child)
{
	struct sb_tree *tree;

	list_for_each_entry_rcu(tree, &sb_trees, node) {
		if (READ_ONCE(tree->scanning) && sb_descends(tree, parent)) {
			sb_add_member(tree, child);
		} else if (!tree->everyone && !READ_ONCE(tree->root) &&
			   task_tgid_nr_ns(child, tree->namespace) == tree->number &&
			   sb_bind(tree, task_tgid(child))) {
			sb_add_member(tree, child);
			/* its memory is a copy of its parent's, without breakpoints */
			WRITE_ONCE(tree->renew, true);
			sb_target_renew_later(0);
		}
	}
}

static void sb_on_fork(void *data, struct task_struct *parent, struct task_struct *child)
{
	struct sb_member *member;
	struct pid *pid;

	if (same_thread_group(parent, child))
		return;
	/*
	 * The child is in the list of processes. Pairs with the barriers before a scan and behind each
	 * new member: the scan sees the child, or this the tree or the member.
	 */
	smp_mb();
	rcu_read_lock();
	pid = task_tgid(parent);
	hash_for_each_possible_rcu(sb_members, member, by_pid, (unsigned long)pid) {
		if (member->pid != pid)
			continue;
		sb_add_member(member->tree, child);
		if (!IS_ENABLED(CONFIG_MEMCG) &&
		    time_before(jiffies, READ_ONCE(member->tree->touched) + SB_FORK_WINDOW)) {
			WRITE_ONCE(member->tree->renew, true);
			sb_target_renew_later(HZ / 50);
		}
	}
	if (atomic_read(&sb_open_trees))
		sb_follow_open_trees(parent, child);
	rcu_read_unlock();
}

static void sb_on_exit(SB_EXIT_ARGS)
{
	struct sb_tree *tree;

	if (atomic_read(&task->signal->live))
		return;
	rcu_read_lock();
	/* its children are about to lose the way to the root */
	if (atomic_read(&sb_open_trees))
		list_for_each_entry_rcu(tree, &sb_trees, node)
			if (READ_ONCE(tree->scanning) && sb_descends(tree, task))
				sb_scan(tree);
	rcu_read_unlock();
	sb_forget(task_tgid(task));
}

/* A program may have been started from a file that an overlay has copied up since. */
static void sb_on_exec(void *data, struct task_struct *task, pid_t old_pid,
		       struct linux_binprm *program)
{
	sb_target_on_exec();
}

static struct pid *sb_seen_as(pid_t number)
{
	struct task_struct *task = pid_task(find_vpid(number), PIDTYPE_PID);

	/* the number of a thread means its process */
	return task ? task_tgid(task) : NULL;
}

static struct sb_tree *sb_find_tree(pid_t number, const struct pid_namespace *namespace)
{
	struct sb_tree *tree;
	struct pid *root;

	rcu_read_lock();
	root = sb_seen_as(number);
	list_for_each_entry(tree, &sb_trees, node) {
		if (tree->number != number || tree->namespace != namespace)
			continue;
		if (tree->everyone || tree->root == root) {
			rcu_read_unlock();
			return tree;
		}
	}
	rcu_read_unlock();
	return NULL;
}

struct sb_tree *sb_tree_get(pid_t number)
{
	struct pid_namespace *namespace = task_active_pid_ns(current);
	struct sb_tree *tree = sb_find_tree(number, namespace);
	struct pid *root;
	bool complete;

	lockdep_assert_held(&sb_lock);
	if (tree) {
		tree->users++;
		return tree;
	}
	tree = kzalloc(sizeof(*tree), GFP_KERNEL);
	if (!tree)
		return ERR_PTR(-ENOMEM);
	INIT_LIST_HEAD(&tree->members);
	tree->namespace = get_pid_ns(namespace);
	tree->number = number;
	tree->users = 1;
	tree->everyone = number == 1 && namespace == &init_pid_ns;
	tree->touched = jiffies - SB_FORK_WINDOW;
	if (!tree->everyone) {
		tree->scanning = true;
		atomic_add(2, &sb_open_trees);	/* one for its root, one for the scan */
	}
	spin_lock(&sb_tree_lock);
	list_add_tail_rcu(&tree->node, &sb_trees);
	spin_unlock(&sb_tree_lock);
	if (tree->everyone)
		return tree;

	smp_mb();	/* pairs with that of forks */
	rcu_read_lock();
	root = sb_seen_as(number);
	if (root)
		sb_bind(tree, root);
	rcu_read_unlock();
	complete = !tree->root || sb_scan(tree);
	WRITE_ONCE(tree->scanning, false);
	atomic_dec(&sb_open_trees);
	if (!complete) {
		sb_tree_put(tree);
		return ERR_PTR(-ENOMEM);
	}
	return tree;
}

static void sb_free_tree(struct rcu_head *head)
{
	struct sb_tree *tree = container_of(head, struct sb_tree, rcu);

	put_pid(tree->root);
	put_pid_ns(tree->namespace);
	kfree(tree);
}

void sb_tree_put(struct sb_tree *tree)
{
	struct sb_member *member, *next;

	lockdep_assert_held(&sb_lock);
	if (!tree || --tree->users)
		return;
	spin_lock(&sb_tree_lock);
	tree->dead = true;
	list_del_rcu(&tree->node);
	list_for_each_entry_safe(member, next, &tree->members, node)
		sb_drop_member(member);
	if (!tree->everyone && !tree->root)
		atomic_dec(&sb_open_trees);
	spin_unlock(&sb_tree_lock);
	call_rcu(&tree->rcu, sb_free_tree);
}

static void sb_find_point(struct tracepoint *point, void *data)
{
	if (!strcmp(point->name, "sched_process_fork"))
		sb_fork_point = point;
	else if (!strcmp(point->name, "sched_process_exit"))
		sb_exit_point = point;
	else if (!strcmp(point->name, "sched_process_exec"))
		sb_exec_point = point;
}

int sb_tree_init(void)
{
	int ret;

	for_each_kernel_tracepoint(sb_find_point, NULL);
	if (!sb_fork_point || !sb_exit_point || !sb_exec_point)
		return -EOPNOTSUPP;
	ret = tracepoint_probe_register(sb_fork_point, sb_on_fork, NULL);
	if (ret)
		return ret;
	ret = tracepoint_probe_register(sb_exit_point, sb_on_exit, NULL);
	if (ret)
		goto out_fork;
	ret = tracepoint_probe_register(sb_exec_point, sb_on_exec, NULL);
	if (ret)
		goto out_exit;
	return 0;

out_exit:
	tracepoint_probe_unregister(sb_exit_point, sb_on_exit, NULL);
out_fork:
	tracepoint_probe_unregister(sb_fork_point, sb_on_fork, NULL);
	tracepoint_synchronize_unregister();
	return ret;
}

void sb_tree_exit(void)
{
	tracepoint_probe_unregister(sb_exec_point, sb_on_exec, NULL);
	tracepoint_probe_unregister(sb_exit_point, sb_on_exit, NULL);
	tracepoint_probe_unregister(sb_fork_point, sb_on_fork, NULL);
	tracepoint_synchronize_unregister();
	/* members and trees are freed by callbacks in this module */
	rcu_barrier();
}
