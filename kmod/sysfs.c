// SPDX-License-Identifier: GPL-2.0-only
#include <linux/capability.h>
#include <linux/jiffies.h>
#include <linux/kobject.h>
#include <linux/mm.h>
#include <linux/slab.h>
#include <linux/sysfs.h>
#include <linux/workqueue.h>

#include "speed_bump.h"

/*
 * A text attribute ends at one page, and a reader of a binary one calls once a page while hit
 * counts grow. So the whole list is written down when somebody starts to read, and kept until he
 * has read its end; readers that never do lose it to time, or to SB_SNAPSHOTS_MAX later ones.
 */
#define SB_SNAPSHOTS_MAX 16
#define SB_SNAPSHOT_LIFE (60 * HZ)
/* a target's line: its name and what stands behind it */
#define SB_LINE_MAX (SB_PATH_MAX + SB_SYMBOL_MAX + 256)

struct sb_snapshot {
	struct list_head node;
	const struct file *reader;
	unsigned long used;	/* jiffies */
	size_t length;
	char text[];
};

static LIST_HEAD(sb_snapshots);	/* the longest unused first */
static unsigned int sb_snapshot_count;
static DEFINE_MUTEX(sb_snapshot_lock);
static struct kobject *sb_kobject;

static void sb_expire_snapshots(struct work_struct *work);
static DECLARE_DELAYED_WORK(sb_expire_work, sb_expire_snapshots);

static void sb_drop_snapshot(struct sb_snapshot *snapshot)
{
	list_del(&snapshot->node);
	sb_snapshot_count--;
	kvfree(snapshot);
}

static void sb_expire_snapshots(struct work_struct *work)
{
	struct sb_snapshot *snapshot, *next;

	mutex_lock(&sb_snapshot_lock);
	list_for_each_entry_safe(snapshot, next, &sb_snapshots, node)
		if (time_after_eq(jiffies, snapshot->used + SB_SNAPSHOT_LIFE))
			sb_drop_snapshot(snapshot);
	if (sb_snapshot_count)
		schedule_delayed_work(&sb_expire_work, SB_SNAPSHOT_LIFE);
	mutex_unlock(&sb_snapshot_lock);
}

static size_t sb_print_target(struct sb_target *target, char *buffer, size_t space)
{
	struct sb_tree *tree = rcu_dereference_protected(target->tree, lockdep_is_held(&sb_lock));
	struct sb_counts sum;
	size_t length;

	sb_counts_sum(target->counts, &sum);
	length = scnprintf(buffer, space, "%s delay_ns=%llu hits=%llu", target->name,
			   sb_target_delay(target), sum.hits);
	if (tree)
		length += scnprintf(buffer + length, space - length, " pid=%d", sb_tree_pid(tree));
	length += scnprintf(buffer + length, space - length,
			    " delays=%llu requested_ns=%llu measured_ns=%llu offset=0x%llx%s\n",
			    sum.delays, sum.requested_ns, sum.measured_ns,
			    (u64)target->offset, target->owner ? " owner=device" : "");
	return length;
}

static struct sb_snapshot *sb_take_snapshot(void)
{
	struct sb_snapshot *snapshot;
	struct sb_target *target;
	size_t space;

	if (mutex_lock_killable(&sb_lock))
		return ERR_PTR(-EINTR);
	space = (size_t)sb_target_count * SB_LINE_MAX + 1;
	snapshot = kvmalloc(struct_size(snapshot, text, space), GFP_KERNEL);
	if (!snapshot) {
		mutex_unlock(&sb_lock);
		return ERR_PTR(-ENOMEM);
	}
	snapshot->length = 0;
	list_for_each_entry(target, &sb_targets, node)
		snapshot->length += sb_print_target(target, snapshot->text + snapshot->length,
						    space - snapshot->length);
	mutex_unlock(&sb_lock);
	return snapshot;
}

static struct sb_snapshot *sb_find_snapshot(const struct file *reader)
{
	struct sb_snapshot *snapshot;

	list_for_each_entry(snapshot, &sb_snapshots, node)
		if (snapshot->reader == reader)
			return snapshot;
	return NULL;
}

static struct sb_snapshot *sb_start_snapshot(const struct file *reader)
{
	struct sb_snapshot *snapshot = sb_find_snapshot(reader);

	if (snapshot)
		sb_drop_snapshot(snapshot);
	snapshot = sb_take_snapshot();
	if (IS_ERR(snapshot))
		return snapshot;
	if (sb_snapshot_count == SB_SNAPSHOTS_MAX)
		sb_drop_snapshot(list_first_entry(&sb_snapshots, struct sb_snapshot, node));
	snapshot->reader = reader;
	list_add_tail(&snapshot->node, &sb_snapshots);
	sb_snapshot_count++;
	schedule_delayed_work(&sb_expire_work, SB_SNAPSHOT_LIFE);
	return snapshot;
}

static ssize_t targets_list_read(struct file *reader, struct kobject *object,
				 SB_BIN_ATTRIBUTE *attribute, char *buffer, loff_t offset,
				 size_t count)
{
	struct sb_snapshot *snapshot;
	ssize_t ret;

	mutex_lock(&sb_snapshot_lock);
	snapshot = offset ? sb_find_snapshot(reader) : sb_start_snapshot(reader);
	/* read past the end before, or forgotten: the end, never a part of another list */
	if (IS_ERR_OR_NULL(snapshot)) {
		ret = PTR_ERR_OR_ZERO(snapshot);
		goto out;
	}
	ret = memory_read_from_buffer(buffer, count, &offset, snapshot->text, snapshot->length);
	snapshot->used = jiffies;
	list_move_tail(&snapshot->node, &sb_snapshots);
	if (!ret)
		sb_drop_snapshot(snapshot);
out:
	mutex_unlock(&sb_snapshot_lock);
	return ret;
}

static struct bin_attribute sb_targets_list = {
	.attr = { .name = "targets_list", .mode = 0444 },
	.read = targets_list_read,
};

static ssize_t enabled_show(struct kobject *object, struct kobj_attribute *attribute, char *buffer)
{
	return sysfs_emit(buffer, "%d\n", sb_enabled());
}

static ssize_t enabled_store(struct kobject *object, struct kobj_attribute *attribute,
			     const char *buffer, size_t count)
{
	u64 on;
	int ret;

	if (!capable(CAP_SYS_ADMIN))
		return -EPERM;
	ret = sb_number_parse(buffer, count, 1, &on);
	if (!ret)
		ret = sb_target_enable(on);
	else if (ret == -ERANGE)
		ret = -EINVAL;
	return ret ? ret : count;
}

static ssize_t default_delay_ns_show(struct kobject *object, struct kobj_attribute *attribute,
				     char *buffer)
{
	return sysfs_emit(buffer, "%llu\n", READ_ONCE(sb_default_delay_ns));
}

static ssize_t default_delay_ns_store(struct kobject *object, struct kobj_attribute *attribute,
				      const char *buffer, size_t count)
{
	u64 delay_ns;
	int ret;

	if (!capable(CAP_SYS_ADMIN))
		return -EPERM;
	ret = sb_number_parse(buffer, count, SB_DELAY_MAX_NS, &delay_ns);
	if (ret)
		return ret;
	WRITE_ONCE(sb_default_delay_ns, delay_ns);
	return count;
}

static ssize_t targets_store(struct kobject *object, struct kobj_attribute *attribute,
			     const char *buffer, size_t count)
{
	int ret;

	if (!capable(CAP_SYS_ADMIN))
		return -EPERM;
	ret = sb_target_command(buffer, count, NULL);
	return ret ? ret : count;
}

static ssize_t stats_show(struct kobject *object, struct kobj_attribute *attribute, char *buffer)
{
	struct sb_counts sum;

	sb_counts_sum(&sb_total, &sum);
	return sysfs_emit(buffer,
			  "enabled: %d\ntargets: %u\ntotal_hits: %llu\ntotal_delay_ns: %llu\n"
			  "total_delays: %llu\ntotal_requested_ns: %llu\nmax_targets: %u\n"
			  "lost_processes: %llu\n",
			  sb_enabled(), READ_ONCE(sb_target_count), sum.hits, sum.measured_ns,
			  sum.delays, sum.requested_ns, sb_max_targets, sb_tree_lost());
}

static struct kobj_attribute sb_enabled_attribute =
	__ATTR(enabled, 0644, enabled_show, enabled_store);
static struct kobj_attribute sb_default_delay_attribute =
	__ATTR(default_delay_ns, 0644, default_delay_ns_show, default_delay_ns_store);
static struct kobj_attribute sb_targets_attribute = __ATTR(targets, 0200, NULL, targets_store);
static struct kobj_attribute sb_stats_attribute = __ATTR(stats, 0444, stats_show, NULL);

static struct attribute *sb_attributes[] = {
	&sb_enabled_attribute.attr,
	&sb_default_delay_attribute.attr,
	&sb_targets_attribute.attr,
	&sb_stats_attribute.attr,
	NULL
};

static const struct attribute_group sb_group = { .attrs = sb_attributes };

int sb_sysfs_init(void)
{
	int ret;

	sb_kobject = kobject_create_and_add("speed_bump", kernel_kobj);
	if (!sb_kobject)
		return -ENOMEM;
	ret = sysfs_create_group(sb_kobject, &sb_group);
	if (!ret)
		ret = sysfs_create_bin_file(sb_kobject, &sb_targets_list);
	if (ret)
		sb_sysfs_exit();
	return ret;
}

void sb_sysfs_exit(void)
{
	struct sb_snapshot *snapshot, *next;

	/* waits for readers and writers */
	sysfs_remove_bin_file(sb_kobject, &sb_targets_list);
	sysfs_remove_group(sb_kobject, &sb_group);
	kobject_put(sb_kobject);
	cancel_delayed_work_sync(&sb_expire_work);
	list_for_each_entry_safe(snapshot, next, &sb_snapshots, node)
		sb_drop_snapshot(snapshot);
}
