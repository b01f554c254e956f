/* SPDX-License-Identifier: (GPL-2.0-only OR MIT) */
/*
 * The few kernel types that the programs read. CO-RE relocates each field against the running
 * kernel's BTF, so that one build runs from Linux 6.1 up and no vmlinux.h of the build host is
 * needed. Only the fields named here may be read.
 */
#ifndef SPEEDBUMP_KERNEL_H
#define SPEEDBUMP_KERNEL_H

#include <stdbool.h>

#include <linux/bpf.h>
#include <linux/types.h>

#include <bpf/bpf_core_read.h>
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_tracing.h>

#define PF_KTHREAD 0x00200000 /* include/linux/sched.h */
#define PF_EXITING 0x00000004
#define VM_UFFD_MISSING 0x00000200 /* include/linux/mm.h */
#define VM_UFFD_WP 0x00001000
#define SB_SIGKILL 9
#define SB_SIGNAL_GROUP_EXIT 4 /* of signal_struct.flags: all threads of the process end */

#pragma clang attribute push(__attribute__((preserve_access_index)), apply_to = record)

struct sb_sigset {
    unsigned long sig[1];
};

typedef struct sb_sigset sigset_t;

struct sigpending {
    sigset_t signal;
};

typedef struct {
    int counter;
} atomic_t;

struct signal_struct {
    atomic_t live;
    unsigned int flags;
};

struct upid {
    int nr;
};

struct pid {
    unsigned int level;
    struct upid numbers[1];
};

struct kernfs_node {
    __u64 id;
};

struct cgroup {
    int level;
    struct kernfs_node* kn;
    struct cgroup* ancestors[1];
};

struct css_set {
    struct cgroup* dfl_cgrp;
};

struct linux_binprm {
    unsigned int secureexec : 1;
};

struct uprobe_task {
    unsigned long xol_vaddr;
    unsigned long vaddr;
};

struct sched_info {
    unsigned long long run_delay;
    unsigned long long last_arrival; /* when it last got a CPU */
    unsigned long long last_queued;  /* 0 while it waits for none */
};

struct sched_entity {
    __u64 sum_exec_runtime;
};

struct task_struct {
    unsigned int flags;
    int pid;
    int tgid;
    struct task_struct* real_parent;
    struct task_struct* group_leader;
    struct signal_struct* signal;
    struct sigpending pending;
    struct pid* thread_pid;
    struct css_set* cgroups;
    __u64 start_boottime;
    __u64 self_exec_id;
    char comm[16];
    unsigned int __state;
    unsigned int on_cpu; /* int, from 7.2 on u8: libbpf fits loads of what is unsigned here */
    unsigned long nvcsw;
    unsigned long nivcsw;
    struct sched_entity se;
    struct sched_info sched_info;
    struct uprobe_task* utask;
};

struct pt_regs {
    unsigned long ip;
    unsigned long sp;
};

struct file;

struct vm_area_struct {
    unsigned long vm_flags;
    struct file* vm_file;
};

struct seq_file;

struct bpf_iter_meta {
    struct seq_file* seq;
};

struct bpf_iter__task {
    struct bpf_iter_meta* meta;
    struct task_struct* task;
};

#pragma clang attribute pop

/* The number of a thread in the PID namespace of this depth that it lies in; 0: it has none. */
static __always_inline __u32 sb_pid_at_level(struct task_struct* task, __u32 level) {
    struct pid* pid = BPF_CORE_READ(task, thread_pid);
    struct upid number;

    if (!pid || BPF_CORE_READ(pid, level) < level) return 0;
    bpf_probe_read_kernel(&number, sizeof(number),
                          (void*)pid + bpf_core_field_offset(struct pid, numbers) +
                              level * bpf_core_type_size(struct upid));
    return number.nr;
}

#endif /* SPEEDBUMP_KERNEL_H */
