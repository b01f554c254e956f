/* SPDX-License-Identifier: GPL-2.0-only */
/* Every difference between kernel versions, and the one between kernel and user space builds. */
#ifndef SB_COMPAT_H
#define SB_COMPAT_H

#include <asm/unistd.h>
#include <linux/version.h>
#include <linux/uprobes.h>
#include <linux/fs.h>
#include <linux/shmem_fs.h>
#include <linux/sysfs.h>

/* 6.12 names a probe by struct uprobe and separates "stop" from "wait"; 6.13 adds handler data. */
#if LINUX_VERSION_CODE >= KERNEL_VERSION(6, 13, 0)
#define SB_HANDLER_ARGS struct uprobe_consumer *self, struct pt_regs *regs, __u64 *data
#else
#define SB_HANDLER_ARGS struct uprobe_consumer *self, struct pt_regs *regs
#endif

#if LINUX_VERSION_CODE >= KERNEL_VERSION(6, 12, 0)
#define SB_FILTER_ARGS struct uprobe_consumer *self, struct mm_struct *mm
#else
#define SB_FILTER_ARGS \
	struct uprobe_consumer *self, enum uprobe_filter_ctx context, struct mm_struct *mm
#endif

/*
 * 6.18 rewrites a probed 5-byte nop into a call of a trampoline that fork does not copy: a child that
 * makes the call ends with SIGSEGV. The uprobe system call came with that, and tells of backports.
 */
#if LINUX_VERSION_CODE >= KERNEL_VERSION(6, 18, 0) || defined(__NR_uprobe)
#define SB_NOP5_IS_SAFE false
#else
#define SB_NOP5_IS_SAFE true
#endif

/*
 * Of a probed call the kernel pushes or mends the address on the stack alone (emulate_push_stack(),
 * UPROBE_FIX_CALL in arch/x86/kernel/uprobes.c): its return would fault under a shadow stack.
 */
static inline bool sb_call_is_safe(void)
{
#ifdef X86_FEATURE_USER_SHSTK
	return !boot_cpu_has(X86_FEATURE_USER_SHSTK);
#else
	return true;
#endif
}

/* Before 7.2 (at the latest) tracepoints call with preemption off, where RT's locks can't be taken. */
#define SB_RT_IS_UNSAFE \
	(IS_ENABLED(CONFIG_PREEMPT_RT) && LINUX_VERSION_CODE < KERNEL_VERSION(7, 2, 0))

struct sb_uprobe {
	struct uprobe_consumer consumer;
	struct inode *inode;
	loff_t offset;
#if LINUX_VERSION_CODE >= KERNEL_VERSION(6, 12, 0)
	struct uprobe *uprobe;
#endif
};

/* Puts the breakpoints in: 0 or a negative errno. inode, offset and consumer are set. */
static inline int sb_uprobe_register(struct sb_uprobe *probe)
{
	int ret;

#if LINUX_VERSION_CODE >= KERNEL_VERSION(6, 12, 0)
	probe->uprobe = uprobe_register(probe->inode, probe->offset, 0, &probe->consumer);
	ret = PTR_ERR_OR_ZERO(probe->uprobe);
#else
	ret = uprobe_register(probe->inode, probe->offset, &probe->consumer);
#endif
	/* an errno that user space does not know: an instruction that can't be probed */
	return ret == -ENOTSUPP ? -EOPNOTSUPP : ret;
}

/* Takes the breakpoints out; handlers may still run until sb_uprobe_sync() returns. */
static inline void sb_uprobe_unregister(struct sb_uprobe *probe)
{
#if LINUX_VERSION_CODE >= KERNEL_VERSION(6, 12, 0)
	uprobe_unregister_nosync(probe->uprobe, &probe->consumer);
#else
	uprobe_unregister(probe->inode, probe->offset, &probe->consumer);
#endif
}

/* Waits once for the handlers of everything unregistered so far. */
static inline void sb_uprobe_sync(void)
{
#if LINUX_VERSION_CODE >= KERNEL_VERSION(6, 12, 0)
	uprobe_unregister_sync();
#endif
}

/* 6.16 tells the tracepoint whether the whole process ends. */
#if LINUX_VERSION_CODE >= KERNEL_VERSION(6, 16, 0)
#define SB_EXIT_ARGS void *data, struct task_struct *task, bool group_dead
#else
#define SB_EXIT_ARGS void *data, struct task_struct *task
#endif

/* 6.16 made the attribute that a binary file's reader gets const. */
#if LINUX_VERSION_CODE >= KERNEL_VERSION(6, 16, 0)
#define SB_BIN_ATTRIBUTE const struct bin_attribute
#else
#define SB_BIN_ATTRIBUTE struct bin_attribute
#endif

#endif
