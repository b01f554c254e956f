/* SPDX-License-Identifier: MIT */
/*
 * What the tests of speed_bump.ko share: commands and what the module answers, children, and the
 * functions that are probed.
 */
#ifndef MODULE_HARNESS_H
#define MODULE_HARNESS_H

#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/bpf.h>
#include <linux/capability.h>
#include <linux/perf_event.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/utsname.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "device_abi.h"
#include "make_elf.h"

#define SYSFS "/sys/kernel/speed_bump/"
#define SELF "/bin/module_test"
#define WORK SELF ":work"
#define SECOND 1000000000ull
#define MILLISECOND 1000000ull
#define KMEMLEAK "/sys/kernel/debug/kmemleak"

extern int failures; /* of the test that runs */
extern bool full_counts;

#define CHECK(condition, ...)                                        \
    do {                                                             \
        if (!(condition)) {                                          \
            failures++;                                              \
            printf("  %s:%d: %s: ", __FILE__, __LINE__, #condition); \
            printf("" __VA_ARGS__);                                  \
            printf("\n");                                            \
        }                                                            \
    } while (0)

/* The functions that are probed, one of each machine: module_sites_x86_64.c,
 * module_sites_aarch64.c. One begins with an instruction that the kernel emulates, the other with
 * one that it steps over. Besides there are `sled`, 2400 bytes of which each fourth may be probed,
 * and `refused_entry`, which may not. */
void work(void);
void stepped_work(void);
extern const unsigned char return_code[4]; /* an instruction that returns, and of x86-64 more */
extern const size_t return_size;           /* of these belong to it */
extern unsigned char untouched_byte;       /* work_byte() without a probe */

/* What children tell their parents. */
struct shared {
    atomic_int go;
    atomic_int ready;
    atomic_int stop;
    _Atomic pid_t pid;
    _Atomic uint64_t calls;
    _Atomic uint64_t done_ns;
    _Atomic uint64_t elapsed_ns;
    atomic_int patched;
};
extern struct shared* shared;

struct row {
    bool found;
    unsigned long long delay_ns, hits, pid, delays, requested_ns, measured_ns, offset;
};

unsigned char work_byte(void);
uint64_t now_ns(void);
void sleep_ms(unsigned ms);
unsigned count_of(unsigned full, unsigned quick);
/* 0 or the errno. */
int put(const char* file, const void* text, size_t length);
__attribute__((format(printf, 1, 2))) int command(const char* format, ...);
int enable(bool on);
/* The whole file, to be freed. */
char* slurp(const char* file);
struct row row_of(const char* name);
unsigned long long stat_of(const char* key);
unsigned list_lines(void);
int load_module(const char* parameters);
int unload_module(void);
void clean(void);
uint64_t timed(void (*function)(void));
pid_t spawn(void (*body)(void));
int reap(pid_t pid);
void finish(pid_t pid);
bool wait_for(atomic_int* flag, int value, unsigned ms);
/* Bodies of children. */
void call_forever(void);
void call_once_on_go(void);
int run_victim(const char* program, int calls);
bool is_debug_kernel(void);

int hold(int fd);
void sleep_forever(void);
void write_file(const char* path, const void* data, size_t length);
unsigned long long kernel_memory_kib(void);

#endif
