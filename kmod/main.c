// SPDX-License-Identifier: GPL-2.0-only
#include <linux/module.h>
#include <linux/moduleparam.h>

#include "speed_bump.h"

#define SB_DEFAULT_DELAY_NS 1000000

DEFINE_MUTEX(sb_lock);
u64 sb_default_delay_ns = SB_DEFAULT_DELAY_NS;
unsigned int sb_max_targets = 64;

module_param_named(max_targets, sb_max_targets, uint, 0444);
MODULE_PARM_DESC(max_targets, "how many targets there may be at once (64; at most 65536)");

static int __init sb_init(void)
{
	int ret;

	if (!sb_max_targets || sb_max_targets > SB_MAX_TARGETS)
		return -EINVAL;
	if (SB_RT_IS_UNSAFE) {
		pr_err("speed_bump: a kernel with PREEMPT_RT has to be Linux 7.2 or later\n");
		return -EOPNOTSUPP;
	}
	ret = sb_spin_init();
	if (ret)
		return ret;
	ret = sb_tree_init();
	if (ret)
		goto out_spin;
	ret = sb_device_init();
	if (ret)
		goto out_tree;
	ret = sb_sysfs_init();
	if (ret)
		goto out_device;
	return 0;

out_device:
	sb_device_exit();
	sb_target_clear();
out_tree:
	sb_tree_exit();
	sb_target_exit();
out_spin:
	sb_spin_exit();
	return ret;
}

static void __exit sb_exit(void)
{
	sb_sysfs_exit();
	sb_device_exit();
	sb_target_clear();
	sb_tree_exit();
	sb_target_exit();
	sb_spin_exit();
}

module_init(sb_init);
module_exit(sb_exit);

MODULE_DESCRIPTION("delays for functions of programs, by uprobes that spin");
MODULE_LICENSE("GPL");
MODULE_VERSION("0.1.0");
