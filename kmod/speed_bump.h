/* SPDX-License-Identifier: GPL-2.0-only */
/* What the parts of the module know of each other. */
#ifndef SB_SPEED_BUMP_H
#define SB_SPEED_BUMP_H

#include <linux/list.h>
#include <linux/mutex.h>
#include <linux/percpu.h>
#include <linux/refcount.h>

#include "command.h"
#include "compat.h"
#include "sb_common.h"
#include "site.h"

struct sb_target;
struct sb_tree;

/* One registration of a target; a target gets a fresh one each time that its probe is set. */
struct sb_probe {
	struct sb_uprobe uprobe;
	struct sb_target *target;
	struct list_head reclaim;
};

/*
 * The files behind a path: two on an overlay whose file was copied up while it was probed, because
 * processes that run already keep the lower one mapped.
 */
#define SB_FILES 2

struct sb_file {
	struct inode *inode;
	struct sb_probe *probe;		/* NULL while disabled */
};

struct sb_target {
	struct list_head node;		/* in sb_targets, by sb_lock */
	struct hlist_node by_name;
	struct file *opened;		/* pins the mount: it can't be unmounted */
	struct sb_file files[SB_FILES];
	bool overlay;			/* the path's own inode is not the file's */
	loff_t offset;
	u8 code[SB_SITE_MAX];		/* what stood there when it was checked */
	u64 delay_ns;
	u64 number;			/* ascending in sb_targets */
	bool removed;			/* ends its spins */
	bool emulated;			/* nothing is left to step behind its hits, as has been seen */
	bool stale;			/* its breakpoints are to be renewed; by sb_lock */
	const void *owner;		/* the open device it was added through, or NULL */
	struct sb_tree __rcu *tree;	/* the filter, or NULL */
	struct sb_counts __percpu *counts;
	refcount_t users;		/* the list, each probe, deferred spin, reader of the list */
	char name[];
};

/* main.c */
extern struct mutex sb_lock;		/* the list of targets and all that changes it */
extern u64 sb_default_delay_ns;	/* of targets to come */
extern unsigned int sb_max_targets;

/* spin.c */
/*
 * Odd while enabled; each change of `enabled` adds one, so a spin that compares it with the value
 * it began with can't miss a disable that was followed by an enable.
 */
extern unsigned int sb_epoch;
DECLARE_PER_CPU(struct sb_counts, sb_total);

static inline bool sb_enabled(void)
{
	return READ_ONCE(sb_epoch) & 1;
}

int sb_spin_init(void);
/* Waits until no spin is left and no task is inside this module's code. */
void sb_spin_exit(void);
/* Delays the calling task by what the target says, now or before it returns to its program. */
void sb_spin_hit(struct sb_target *target);
/* Runs `work` in the calling task before it returns to its program; 0 or a negative errno. */
int sb_spin_defer(void (*work)(void));

/* tree.c */
int sb_tree_init(void);
void sb_tree_exit(void);
/*
 * The tree of the process that the caller sees as `pid`, or of the first to get that number; shared
 * between targets. ERR_PTR(-ENOMEM). Needs sb_lock, as does sb_tree_put().
 */
struct sb_tree *sb_tree_get(pid_t pid);
void sb_tree_put(struct sb_tree *tree);
/* Whether a task belongs to the tree. Under rcu_read_lock(). */
bool sb_tree_has(const struct sb_tree *tree, struct task_struct *task);
/* Whether a process of the tree uses this memory. Under rcu_read_lock(). */
bool sb_tree_uses(const struct sb_tree *tree, struct mm_struct *mm);
pid_t sb_tree_pid(const struct sb_tree *tree);
/* From here on forks may have missed breakpoints that are being set: they ask for a renewal. */
void sb_tree_touch(struct sb_tree *tree);
/* Whether a renewal is wanted, and forgets it. */
bool sb_tree_take_renewal(struct sb_tree *tree);
/* Processes that could not be followed for want of memory. */
u64 sb_tree_lost(void);

/* target.c */
extern struct list_head sb_targets;
extern unsigned int sb_target_count;

/* Disables and removes everything. */
void sb_target_clear(void);
/* Waits for what sb_target_clear() left to free; nothing may call into target.c any more. */
void sb_target_exit(void);
/* Runs one command; owner as in struct sb_target. 0 or a negative errno. */
int sb_target_command(const char *text, size_t length, const void *owner);
int sb_target_enable(bool on);
/* Removes the owner's targets, and ends its hold. */
void sb_target_release(const void *owner, bool holds);
/* SB_DEVICE_HOLD; *holds becomes the owner. 0 or a negative errno. */
int sb_target_hold(void *owner, void **holds);
/* The sum over all CPUs. */
void sb_counts_sum(const struct sb_counts __percpu *counts, struct sb_counts *sum);
/* The next in the list, also when `last` is in it no more; NULL begins and ends. Needs sb_lock. */
struct sb_target *sb_target_after(struct sb_target *last);
void sb_target_put(struct sb_target *target);
/* The calling task has started a program. From a tracepoint: may not sleep. */
void sb_target_on_exec(void);
/* Trees changed: sets the breakpoints of their targets anew after `wait` jiffies. */
void sb_target_renew_later(unsigned long wait);

/* sysfs.c */
int sb_sysfs_init(void);
void sb_sysfs_exit(void);

/* device.c */
int sb_device_init(void);
void sb_device_exit(void);

#endif
