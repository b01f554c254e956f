// SPDX-License-Identifier: GPL-2.0-only
/* /dev/speed_bump: targets that live as long as the descriptor through which they were added. */
#include <linux/capability.h>
#include <linux/miscdevice.h>
#include <linux/module.h>
#include <linux/slab.h>
#include <linux/uaccess.h>

#include "device_abi.h"
#include "speed_bump.h"

/* private_data: the file itself once it holds the module on */
static int sb_device_open(struct inode *inode, struct file *file)
{
	file->private_data = NULL;
	return capable(CAP_SYS_ADMIN) ? stream_open(inode, file) : -EPERM;
}

static ssize_t sb_device_write(struct file *file, const char __user *buffer, size_t count,
			       loff_t *position)
{
	char *text;
	int ret;

	/* whoever opened it may have handed it on */
	if (!capable(CAP_SYS_ADMIN))
		return -EPERM;
	/* as in sysfs: one page holds more than any command */
	if (count > PAGE_SIZE)
		return -EINVAL;
	text = memdup_user(buffer, count);
	if (IS_ERR(text))
		return PTR_ERR(text);
	ret = sb_target_command(text, count, file);
	kfree(text);
	return ret ? ret : count;
}

static long sb_device_ioctl(struct file *file, unsigned int command, unsigned long argument)
{
	if (command != SB_DEVICE_HOLD)
		return -ENOTTY;
	return capable(CAP_SYS_ADMIN) ? sb_target_hold(file, &file->private_data) : -EPERM;
}

static int sb_device_release(struct inode *inode, struct file *file)
{
	sb_target_release(file, file->private_data);
	return 0;
}

static const struct file_operations sb_device_operations = {
	.owner = THIS_MODULE,
	.open = sb_device_open,
	.write = sb_device_write,
	.unlocked_ioctl = sb_device_ioctl,
	.compat_ioctl = compat_ptr_ioctl,
	.release = sb_device_release,
	.llseek = noop_llseek,
};

static struct miscdevice sb_device = {
	.minor = MISC_DYNAMIC_MINOR,
	.name = "speed_bump",
	.mode = 0600,
	.fops = &sb_device_operations,
};

int sb_device_init(void)
{
	return misc_register(&sb_device);
}

void sb_device_exit(void)
{
	misc_deregister(&sb_device);
}
