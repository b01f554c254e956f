// SPDX-License-Identifier: GPL-2.0-only
#include <linux/capability.h>
#include <linux/kobject.h>
#include <linux/slab.h>
#include <linux/sysfs.h>

#include "speed_bump.h"

/*
 * A text attribute ends at one page, and a reader of a binary one calls once a page while hit counts
 * grow and targets come and go. So it is kept of each reader behind which target it is, and what it
 * has not got of that one's line; those that stopped reading lose it to SB_LISTINGS_MAX others.
 */
#define SB_LISTINGS_MAX 64
/* a target's line: its name and what stands after it */
#define SB_LINE_MAX (SB_PATH_MAX + SB_SYMBOL_MAX + 256)

struct sb_listing {
	struct list_head node;
	const struct file *reader;
	loff_t offset;			/* where it reads on */
	struct sb_target *last;		/* held; NULL at the beginning */
	size_t taken, length;		/* of the line */
	char line[SB_LINE_MAX];
};

static LIST_HEAD(sb_listings);		/* by sb_lock; the longest unused first */
static unsigned int sb_listing_count;
static struct kobject *sb_kobject;

static void sb_drop_listing(struct sb_listing *listing)
{
	list_del(&listing->node);
	sb_listing_count--;
	if (listing->last)
		sb_target_put(listing->last);
	kfree(listing);
}

static size_t sb_print_target(struct sb_target *target, char *buffer, size_t space)
{
	struct sb_tree *tree = rcu_dereference_protected(target->tree, lockdep_is_held(&sb_lock));
	struct sb_counts sum;
	size_t length;

	sb_counts_sum(target->counts, &sum);
	length = scnprintf(buffer, space, "%s delay_ns=%llu hits=%llu", target->name,
			   READ_ONCE(target->delay_ns), sum.hits);
	if (tree)
		length += scnprintf(buffer + length, space - length, " pid=%d", sb_tree_pid(tree));
	length += scnprintf(buffer + length, space - length,
			    " delays=%llu requested_ns=%llu measured_ns=%llu offset=0x%llx%s\n",
			    sum.delays, sum.requested_ns, sum.measured_ns,
			    (u64)target->offset, target->owner ? " owner=device" : "");
	return length;
}

/* The listing that goes on at `offset`; a new one at 0; NULL when it is forgotten. */
static struct sb_listing *sb_find_listing(const struct file *reader, loff_t offset)
{
	struct sb_listing *listing, *found = NULL;

	list_for_each_entry(listing, &sb_listings, node)
		if (listing->reader == reader)
			found = listing;
	if (offset)
		return found && found->offset == offset ? found : NULL;
	if (!found && sb_listing_count == SB_LISTINGS_MAX)
		found = list_first_entry(&sb_listings, struct sb_listing, node);
	if (found)
		sb_drop_listing(found);
	listing = kzalloc(sizeof(*listing), GFP_KERNEL);
	if (!listing)
		return ERR_PTR(-ENOMEM);
	listing->reader = reader;
	list_add_tail(&listing->node, &sb_listings);
	sb_listing_count++;
	return listing;
}

/* Writes down the line of the next target; false at the end. */
static bool sb_list_next(struct sb_listing *listing)
{
	struct sb_target *target = sb_target_after(listing->last);

	if (!target)
		return false;
	refcount_inc(&target->users);
	if (listing->last)
		sb_target_put(listing->last);
	listing->last = target;
	listing->taken = 0;
	listing->length = sb_print_target(target, listing->line, sizeof(listing->line));
	return true;
}

static size_t sb_list(struct sb_listing *listing, char *buffer, size_t count)
{
	size_t done = 0;

	while (done < count && (listing->taken < listing->length || sb_list_next(listing))) {
		size_t part = min(count - done, listing->length - listing->taken);

		memcpy(buffer + done, listing->line + listing->taken, part);
		listing->taken += part;
		done += part;
	}
	return done;
}

static ssize_t targets_list_read(struct file *reader, struct kobject *object,
				 SB_BIN_ATTRIBUTE *attribute, char *buffer, loff_t offset,
				 size_t count)
{
	struct sb_listing *listing;
	ssize_t ret;

	if (mutex_lock_killable(&sb_lock))
		return -EINTR;
	listing = sb_find_listing(reader, offset);
	ret = PTR_ERR_OR_ZERO(listing);
	if (!IS_ERR_OR_NULL(listing)) {
		ret = sb_list(listing, buffer, count);
		listing->offset += ret;
		list_move_tail(&listing->node, &sb_listings);
		if (!ret)
			sb_drop_listing(listing);
	}
	mutex_unlock(&sb_lock);
	return ret;
}

static struct bin_attribute sb_targets_list = {
	.attr = { .name = "targets_list", .mode = 0400 },
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
	ret = sb_number_parse(buffer, count, SB_MAX_DELAY_NS, &delay_ns);
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
	struct sb_listing *listing, *next;

	/* waits for readers and writers */
	sysfs_remove_bin_file(sb_kobject, &sb_targets_list);
	sysfs_remove_group(sb_kobject, &sb_group);
	kobject_put(sb_kobject);
	list_for_each_entry_safe(listing, next, &sb_listings, node)
		sb_drop_listing(listing);
}
