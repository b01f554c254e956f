/* SPDX-License-Identifier: MIT */
/*
 * Tests of speed_bump.ko. Runs as root in a machine of its own (tests/kmod/run.sh): loads the
 * module from /speed_bump.ko, probes its own functions in forked children and the victims beside
 * it.
 *
 * module_test [NAME...]   all tests, or those whose names begin so
 * Environment: SB_FULL=1 for the full counts of the long tests.
 */
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

static int failures; /* of the test that runs */
static bool full_counts;

#define CHECK(condition, ...)                                        \
    do {                                                             \
        if (!(condition)) {                                          \
            failures++;                                              \
            printf("  %s:%d: %s: ", __FILE__, __LINE__, #condition); \
            printf("" __VA_ARGS__);                                  \
            printf("\n");                                            \
        }                                                            \
    } while (0)

/* The functions that are probed. One begins with an instruction that the kernel emulates, the other
 * with one that it steps over. */
__attribute__((noinline, used)) void work(void) {
    __asm__ volatile("nop");
}
__attribute__((noinline, used)) void stepped_work(void) {
#if defined(__x86_64__)
    __asm__ volatile("mov %%rax, %%rax" ::: "memory");
#else
    __asm__ volatile("mov x0, x0" ::: "memory");
#endif
}

/* Code of which any byte may be probed, and what may not. Only the nops are called. */
__asm__(
    ".text\n"
    ".type sled, @function\n"
    "sled: .fill 2400, 1, 0x90\n"
#if defined(__x86_64__)
    ".type vex_entry, @function\n"
    "vex_entry: vmovd %xmm0, %eax; ret\n"
    ".type evex_entry, @function\n"
    "evex_entry: .byte 0x62, 0xf2, 0x7d, 0x48, 0x7a, 0xc6; ret\n"
    ".type repeated_entry, @function\n"
    "repeated_entry: rep stosb; ret\n"
    ".type locked_entry, @function\n"
    "locked_entry: lock incl (%rdi); ret\n"
    ".type exchange_entry, @function\n"
    "exchange_entry: .byte 0x41, 0x90; ret\n"
    ".type flags_entry, @function\n"
    "flags_entry: pushf; pop %rax; ret\n"
    ".type nop_entry, @function\n"
    "nop_entry: .byte 0x0f, 0x1f, 0x44, 0, 0; ret\n"
    ".type nop_behind, @function\n"
    "nop_behind: endbr64; .byte 0x0f, 0x1f, 0x44, 0, 0; ret\n"
    ".type nop_inside, @function\n"
    "nop_inside: endbr64; mov %rdi, -8(%rsp); .byte 0x0f, 0x1f, 0x44, 0, 0; ret\n"
#endif
);

#if defined(__x86_64__)
void nop_entry(void);
void nop_behind(void);
#endif

static unsigned char work_byte(void) {
    return *(volatile unsigned char*)(uintptr_t)work;
}
static unsigned char untouched_byte;

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
static struct shared* shared;

static uint64_t now_ns(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (uint64_t)time.tv_sec * SECOND + (uint64_t)time.tv_nsec;
}

static void sleep_ms(unsigned ms) {
    usleep(ms * 1000);
}

static unsigned count_of(unsigned full, unsigned quick) {
    return full_counts ? full : quick;
}

/* 0 or the errno. */
static int put(const char* file, const void* text, size_t length) {
    int fd = open(file, O_WRONLY | O_CLOEXEC);
    if (fd < 0) return errno;
    ssize_t written = write(fd, text, length);
    int error = written < 0 ? errno : written != (ssize_t)length ? EIO : 0;
    close(fd);
    return error;
}

__attribute__((format(printf, 1, 2))) static int command(const char* format, ...) {
    char text[8192];
    va_list arguments;
    va_start(arguments, format);
    int length = vsnprintf(text, sizeof(text), format, arguments);
    va_end(arguments);
    return put(SYSFS "targets", text, (size_t)length);
}

static int enable(bool on) {
    return put(SYSFS "enabled", on ? "1\n" : "0\n", 2);
}

/* The whole file, to be freed. */
static char* slurp(const char* file) {
    size_t length = 0, space = 65536;
    char* text = malloc(space);
    int fd = open(file, O_RDONLY | O_CLOEXEC);
    ssize_t got;
    while (fd >= 0 && (got = read(fd, text + length, space - length - 1)) > 0) {
        length += (size_t)got;
        if (space - length < 8192) text = realloc(text, space *= 2);
    }
    if (fd >= 0) close(fd);
    text[length] = '\0';
    return text;
}

struct row {
    bool found;
    unsigned long long delay_ns, hits, pid, delays, requested_ns, measured_ns, offset;
};

static unsigned long long field(const char* line, const char* key) {
    char pattern[64];
    snprintf(pattern, sizeof(pattern), " %s=", key);
    const char* at = strstr(line, pattern);
    return at ? strtoull(at + strlen(pattern), NULL, 0) : 0;
}

static struct row row_of(const char* name) {
    struct row row = {0};
    char *list = slurp(SYSFS "targets_list"), *save = NULL;
    for (char* line = strtok_r(list, "\n", &save); line; line = strtok_r(NULL, "\n", &save)) {
        if (strncmp(line, name, strlen(name)) || line[strlen(name)] != ' ') continue;
        row = (struct row){true,
                           field(line, "delay_ns"),
                           field(line, "hits"),
                           field(line, "pid"),
                           field(line, "delays"),
                           field(line, "requested_ns"),
                           field(line, "measured_ns"),
                           field(line, "offset")};
    }
    free(list);
    return row;
}

static unsigned long long stat_of(const char* key) {
    char *text = slurp(SYSFS "stats"), pattern[64];
    snprintf(pattern, sizeof(pattern), "%s: ", key);
    const char* at = strstr(text, pattern);
    unsigned long long value = at ? strtoull(at + strlen(pattern), NULL, 10) : ~0ull;
    free(text);
    return value;
}

static unsigned list_lines(void) {
    char* list = slurp(SYSFS "targets_list");
    unsigned lines = 0;
    for (const char* at = list; *at; at++) lines += *at == '\n';
    free(list);
    return lines;
}

static int load_module(const char* parameters) {
    int fd = open("/speed_bump.ko", O_RDONLY | O_CLOEXEC);
    int error = syscall(SYS_finit_module, fd, parameters, 0) ? errno : 0;
    close(fd);
    return error;
}

static int unload_module(void) {
    return syscall(SYS_delete_module, "speed_bump", O_NONBLOCK) ? errno : 0;
}

static void clean(void) {
    enable(false);
    command("-*");
    put(SYSFS "default_delay_ns", "1000000", 7);
    memset(shared, 0, sizeof(*shared));
}

static uint64_t timed(void (*function)(void)) {
    uint64_t start = now_ns();
    function();
    return now_ns() - start;
}

static pid_t spawn(void (*body)(void)) {
    fflush(stdout);
    pid_t pid = fork();
    if (pid) return pid;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    body();
    _exit(0);
}

static int reap(pid_t pid) {
    int status = 0;
    while (waitpid(pid, &status, 0) < 0 && errno == EINTR) {
    }
    return status;
}

static void finish(pid_t pid) {
    kill(pid, SIGKILL);
    reap(pid);
}

static bool wait_for(atomic_int* flag, int value, unsigned ms) {
    for (uint64_t end = now_ns() + ms * MILLISECOND; now_ns() < end; sleep_ms(1))
        if (atomic_load(flag) >= value) return true;
    return atomic_load(flag) >= value;
}

/* Bodies of children. */
static void call_forever(void) {
    atomic_fetch_add(&shared->ready, 1);
    while (!atomic_load(&shared->stop)) {
        work();
        atomic_fetch_add(&shared->calls, 1);
    }
}

static void call_once_on_go(void) {
    atomic_fetch_add(&shared->ready, 1);
    while (!atomic_load(&shared->go)) usleep(200);
    uint64_t start = now_ns();
    work();
    atomic_store(&shared->elapsed_ns, now_ns() - start);
    atomic_store(&shared->done_ns, now_ns());
    atomic_store(&shared->patched, work_byte() != untouched_byte);
    atomic_fetch_add(&shared->ready, 1);
}

static int run_victim(const char* program, int calls) {
    char number[16];
    snprintf(number, sizeof(number), "%d", calls);
    fflush(stdout);
    pid_t pid = fork();
    if (!pid) {
        execl(program, program, number, NULL);
        _exit(127);
    }
    return reap(pid);
}

/* Files and formats */

static mode_t mode_of(const char* file) {
    struct stat status;
    return stat(file, &status) ? 0 : status.st_mode & 07777;
}

static void files_and_formats(void) {
    CHECK(mode_of(SYSFS "enabled") == 0644);
    CHECK(mode_of(SYSFS "default_delay_ns") == 0644);
    CHECK(mode_of(SYSFS "targets") == 0200);
    CHECK(mode_of(SYSFS "targets_list") == 0400);
    CHECK(mode_of(SYSFS "stats") == 0444);
    CHECK(mode_of("/dev/speed_bump") == 0600);
    char* text = slurp(SYSFS "enabled");
    CHECK(!strcmp(text, "0\n"), "%s", text);
    free(text);
    CHECK(command("+" WORK " 5000\n") == 0);
    CHECK(command("+" SELF ":stepped_work 7 pid=1") == 0);
    text = slurp(SYSFS "targets_list");
    CHECK(!strncmp(text, WORK " delay_ns=5000 hits=0 ", strlen(WORK) + 22), "%s", text);
    CHECK(strstr(text, "\n" SELF ":stepped_work delay_ns=7 hits=0 pid=1 ") != NULL, "%s", text);
    free(text);
    text = slurp(SYSFS "stats");
    CHECK(!strncmp(text, "enabled: 0\ntargets: 2\ntotal_hits: ", 34), "%s", text);
    CHECK(strstr(text, "\ntotal_delay_ns: ") != NULL, "%s", text);
    free(text);
    CHECK(enable(true) == 0 && stat_of("enabled") == 1);
    CHECK(enable(true) == 0 && stat_of("enabled") == 1);
    CHECK(enable(false) == 0 && stat_of("enabled") == 0);
    static const char* const bad[] = {"", "2", "-1", "x", "1 ", " 1", "1\n\n", "01x", "yes"};
    for (size_t i = 1; i < sizeof(bad) / sizeof(*bad); i++)
        CHECK(put(SYSFS "enabled", bad[i], strlen(bad[i])) == EINVAL, "%s", bad[i]);
    CHECK(put(SYSFS "default_delay_ns", "10000000000\n", 12) == 0);
    CHECK(put(SYSFS "default_delay_ns", "10000000001", 11) == ERANGE);
    CHECK(put(SYSFS "default_delay_ns", "99999999999999999999999", 23) == ERANGE);
    CHECK(put(SYSFS "default_delay_ns", "-5", 2) == EINVAL);
    CHECK(put(SYSFS "default_delay_ns", "5us", 3) == EINVAL);
    text = slurp(SYSFS "default_delay_ns");
    CHECK(!strcmp(text, "10000000000\n"), "%s", text);
    free(text);
}

/* Commands */

static void errno_of_commands(void) {
    static const struct {
        const char* text;
        int error;
    } cases[] = {
        {"", EINVAL}, /* skipped by write(2): nothing is written */
        {"\n", EINVAL},
        {"+", EINVAL},
        {"-", EINVAL},
        {"=", EINVAL},
        {"x" WORK, EINVAL},
        {WORK, EINVAL},
        {" +" WORK, EINVAL},
        {"+ " WORK, EINVAL},
        {"++" WORK, EINVAL},
        {"+" SELF, EINVAL},
        {"+" SELF ":", EINVAL},
        {"+:work", EINVAL},
        {"+bin/module_test:work", EINVAL},
        {"+./x:work", EINVAL},
        {"+" WORK " 5x", EINVAL},
        {"+" WORK " x", EINVAL},
        {"+" WORK " -5", EINVAL},
        {"+" WORK " +5", EINVAL},
        {"+" WORK " 0x10", EINVAL},
        {"+" WORK " 5 6", EINVAL},
        {"+" WORK " 5 pid=", EINVAL},
        {"+" WORK " 5 pid=-1", EINVAL},
        {"+" WORK " 5 pid=0", EINVAL},
        {"+" WORK " 5 pid=1x", EINVAL},
        {"+" WORK " 5pid=1", EINVAL},
        {"+" WORK " 5 pid=1 2", EINVAL},
        {"+" WORK " pid=1 5", EINVAL},
        {"+" WORK " 5 pid=99999999999", EINVAL},
        {"+" WORK " 5 PID=1", EINVAL},
        {"+" WORK " 5\n+" WORK, EINVAL},
        {"+" WORK "\n\n", EINVAL},
        {"+" WORK "\t5", EINVAL},
        {"+/bin/mod ule:work", EINVAL},
        {"+" SELF ":wo rk", EINVAL},
        {"+" WORK "\r\n", EINVAL},
        {"+" SELF ":0x", EINVAL},
        {"+" SELF ":0xzz", EINVAL},
        {"=" WORK, EINVAL},
        {"=" WORK " pid=1", EINVAL},
        {"-" WORK " 5", EINVAL},
        {"-* 5", EINVAL},
        {"-*x", EINVAL},
        {"+*", EINVAL},
        {"=* 5", EINVAL},
        {"+/no/such/file:work", ENOENT},
        {"+" SELF ":no_such_symbol", ENOENT},
        {"+" SELF "/work:work", ENOENT},
        {"-" WORK, ENOENT},
        {"=" WORK " 5", ENOENT},
        {"+" SELF ":0xffffffffff", ENOENT},
        {"+" SELF ":0", ENOENT},
        {"+" WORK " 10000000001", ERANGE},
        {"+" WORK " 18446744073709551617", ERANGE},
        {"=" WORK " 10000000001", ERANGE},
        {"+" WORK " 10000000000", 0},
        {"+" WORK " 10000000000", EEXIST},
        {"+" WORK, EEXIST},
        {"=" WORK " 0", 0},
        {"=" WORK " 5 pid=1\n", 0},
        {"-" WORK "\n", 0},
        {"-" WORK, ENOENT},
        {"+" WORK " pid=1", 0},
        {"-*\n", 0},
        {"-*", 0},
        {"+" WORK "\n", 0},
        {"-" WORK, 0},
        {"+" WORK " 5 pid=4194303", 0},
        {"-" WORK, 0},
    };
    for (size_t i = 1; i < sizeof(cases) / sizeof(*cases); i++) {
        int error = put(SYSFS "targets", cases[i].text, strlen(cases[i].text));
        CHECK(error == cases[i].error, "'%s': %d, not %d", cases[i].text, error, cases[i].error);
    }
    CHECK(list_lines() == 0);
}

static void nothing_is_smuggled_in(void) {
    static const char nul_inside[] = "+" SELF ":wo\0rk", nul_behind[] = "+" WORK "\0";
    CHECK(put(SYSFS "targets", nul_inside, sizeof(nul_inside) - 1) == EINVAL);
    CHECK(put(SYSFS "targets", nul_behind, sizeof(nul_behind) - 1) == EINVAL);
    /* sysfs hands over one page: a command padded to a page, and another behind it */
    char text[8192];
    memset(text, ' ', sizeof(text));
    memcpy(text, "+" WORK " 5", strlen("+" WORK " 5"));
    memcpy(text + 4096, "+" SELF ":stepped_work", strlen("+" SELF ":stepped_work"));
    CHECK(put(SYSFS "targets", text, sizeof(text)) != 0);
    CHECK(put(SYSFS "targets", text, 4096) == EINVAL);
    CHECK(list_lines() == 0);
}

static void lengths(void) {
    char path[300], link[300];
    /* a path of exactly 256 and 257 bytes through directories */
    snprintf(path, sizeof(path), "/tmp/%0120d", 0);
    mkdir(path, 0755);
    size_t length = strlen(path);
    memset(link, 'x', sizeof(link));
    memcpy(link, path, length);
    link[length] = '/';
    link[256] = '\0';
    CHECK(symlink(SELF, link) == 0, "%s", strerror(errno));
    CHECK(command("+%s:work", link) == 0);
    CHECK(row_of("/tmp").found == false);
    CHECK(list_lines() == 1);
    CHECK(command("-%s:work", link) == 0);
    link[256] = 'x';
    link[257] = '\0';
    CHECK(command("+%s:work", link) == ENAMETOOLONG);
    char symbol[140];
    memset(symbol, 's', sizeof(symbol));
    symbol[128] = '\0';
    struct test_symbol entry = {symbol, STT_FUNC, STB_GLOBAL, 1, SB_TEST_CODE_ADDRESS + 8, 0};
    struct test_elf elf = {.symtab = &entry, .symtab_count = 1};
    CHECK(make_elf("/tmp/long", &elf) == 0);
    CHECK(command("+/tmp/long:%s", symbol) == 0);
    CHECK(command("-/tmp/long:%s", symbol) == 0);
    symbol[128] = 's';
    symbol[129] = '\0';
    CHECK(command("+/tmp/long:%s", symbol) == ENAMETOOLONG);
    link[256] = '\0';
    unlink(link);
}

static void limits(void) {
    CHECK(command("+" SELF ":sled") == 0);
    unsigned long long base = row_of(SELF ":sled").offset;
    command("-*");
    for (unsigned i = 0; i < 64; i++) CHECK(command("+" SELF ":0x%llx %u", base + i * 4, i) == 0);
    CHECK(command("+" WORK) == ENOSPC);
    CHECK(command("+" SELF ":0x%llx", base) == EEXIST);
    CHECK(list_lines() == 64);
    CHECK(stat_of("targets") == 64);
    CHECK(command("-" SELF ":0x%llx", base + 8) == 0);
    CHECK(command("+" WORK) == 0);
    CHECK(command("-*") == 0);
    CHECK(list_lines() == 0);
}

static void write_file(const char* path, const void* data, size_t length) {
    int fd = open(path, O_CREAT | O_TRUNC | O_WRONLY | O_CLOEXEC, 0755);
    if (fd < 0 || write(fd, data, length) != (ssize_t)length) printf("  can't write %s\n", path);
    close(fd);
}

static void kinds_of_files(void) {
    Elf64_Ehdr header;
    struct test_symbol symbol = {"f", STT_FUNC, STB_GLOBAL, 1, SB_TEST_CODE_ADDRESS, 0};
    struct test_elf elf = {.symtab = &symbol, .symtab_count = 1};
    CHECK(make_elf("/tmp/good", &elf) == 0);
    CHECK(command("+/tmp/good:f") == 0);
    command("-*");
    char* good = malloc(65536);
    int fd = open("/tmp/good", O_RDONLY | O_CLOEXEC);
    ssize_t size = read(fd, good, 65536);
    close(fd);
    CHECK(size > 0x2000);
    write_file("/tmp/empty", "", 0);
    write_file("/tmp/text", "#!/bin/sh\necho no\n", 18);
    write_file("/tmp/short", good, 63);
    write_file("/tmp/cut", good, 4096);
    static const struct {
        const char* path;
        size_t at;
        unsigned char value;
    } changed[] = {
        {"/tmp/class32", EI_CLASS, ELFCLASS32},
        {"/tmp/other_order", EI_DATA, ELFDATA2MSB},
        {"/tmp/version", EI_VERSION, 9},
        {"/tmp/machine", offsetof(Elf64_Ehdr, e_machine), EM_PPC64},
        {"/tmp/core", offsetof(Elf64_Ehdr, e_type), ET_CORE},
        {"/tmp/object", offsetof(Elf64_Ehdr, e_type), ET_REL},
    };
    for (size_t i = 0; i < sizeof(changed) / sizeof(*changed); i++) {
        char* copy = malloc((size_t)size);
        memcpy(copy, good, (size_t)size);
        copy[changed[i].at] = (char)changed[i].value;
        write_file(changed[i].path, copy, (size_t)size);
        CHECK(command("+%s:f", changed[i].path) == ENOEXEC, "%s", changed[i].path);
        free(copy);
    }
    mkfifo("/tmp/fifo", 0644);
    static const char* const refused[] = {"/tmp/empty",
                                          "/tmp/text",
                                          "/tmp/short",
                                          "/tmp/cut",
                                          "/tmp",
                                          "/dev/null",
                                          "/dev/ttyS0",
                                          "/tmp/fifo",
                                          "/proc/cpuinfo",
                                          "/proc/kcore",
                                          "/sys/kernel/speed_bump/stats"};
    for (size_t i = 0; i < sizeof(refused) / sizeof(*refused); i++) {
        uint64_t start = now_ns();
        int error = command("+%s:f", refused[i]);
        CHECK(error == ENOEXEC, "%s: %d", refused[i], error);
        CHECK(now_ns() - start < SECOND, "%s", refused[i]);
    }
    memcpy(&header, good, sizeof(header));
    CHECK(header.e_shoff != 0);
    free(good);
}

/* Swaps a program and a link to a fifo under one name. */
static void swap_forever(void) {
    while (!atomic_load(&shared->stop)) {
        if (symlink("/tmp/swap_fifo", "/tmp/swap_new")) continue;
        rename("/tmp/swap_new", "/tmp/swap_name");
        if (link("/tmp/swap_good", "/tmp/swap_new")) continue;
        rename("/tmp/swap_new", "/tmp/swap_name");
    }
}

/* A fifo has a writer only while somebody has it open to read. */
static void watch_fifo(void) {
    while (!atomic_load(&shared->stop)) {
        int fd = open("/tmp/swap_fifo", O_WRONLY | O_NONBLOCK | O_CLOEXEC);
        if (fd < 0) continue;
        atomic_fetch_add(&shared->calls, 1);
        close(fd);
    }
}

/* What a name means may change while the module looks at it: it must not open what it has not
 * looked at. */
static void a_name_that_changes_is_not_opened(void) {
    struct test_symbol symbol = {"f", STT_FUNC, STB_GLOBAL, 1, SB_TEST_CODE_ADDRESS, 0};
    struct test_elf elf = {.symtab = &symbol, .symtab_count = 1};
    CHECK(make_elf("/tmp/swap_good", &elf) == 0 && mkfifo("/tmp/swap_fifo", 0644) == 0);
    CHECK(link("/tmp/swap_good", "/tmp/swap_name") == 0);
    pid_t swapper = spawn(swap_forever), watcher = spawn(watch_fifo);
    unsigned added = 0, refused = 0;
    for (uint64_t end = now_ns() + 2 * SECOND; now_ns() < end;) {
        int error = command("+/tmp/swap_name:f 0");
        CHECK(!error || error == ENOEXEC, "%d", error);
        ++*(error ? &refused : &added);
        command("-*");
    }
    atomic_store(&shared->stop, 1);
    reap(swapper);
    reap(watcher);
    printf("  %u times added, %u times refused\n", added, refused);
    CHECK(added > 0 && refused > 0);
    CHECK(atomic_load(&shared->calls) == 0, "%llu",
          (unsigned long long)atomic_load(&shared->calls));
}

static int drop_read_rights(void) {
    struct __user_cap_header_struct header = {_LINUX_CAPABILITY_VERSION_3, 0};
    struct __user_cap_data_struct data[2];
    if (syscall(SYS_capget, &header, data)) return errno;
    data[0].effective &= ~(1u << CAP_DAC_OVERRIDE | 1u << CAP_DAC_READ_SEARCH);
    return syscall(SYS_capset, &header, data) ? errno : 0;
}

static void may_not_read(void) {
    struct test_symbol symbol = {"f", STT_FUNC, STB_GLOBAL, 1, SB_TEST_CODE_ADDRESS, 0};
    struct test_elf elf = {.symtab = &symbol, .symtab_count = 1};
    CHECK(make_elf("/tmp/secret", &elf) == 0);
    CHECK(chown("/tmp/secret", 1000, 1000) == 0 && chmod("/tmp/secret", 0) == 0);
    fflush(stdout);
    pid_t pid = fork();
    if (!pid) {
        if (drop_read_rights()) _exit(1);
        _exit(command("+/tmp/secret:f") == EACCES ? 0 : 2);
    }
    int status = reap(pid);
    CHECK(status == 0, "%d", WEXITSTATUS(status));
}

static int hold(int fd) {
    return ioctl(fd, SB_DEVICE_HOLD) ? errno : 0;
}

static void only_root_writes(void) {
    fflush(stdout);
    pid_t pid = fork();
    if (!pid) {
        int fd = open(SYSFS "targets", O_WRONLY | O_CLOEXEC); /* opened as root, used by another */
        int device = open("/dev/speed_bump", O_RDWR | O_CLOEXEC);
        if (setgid(1000) || setuid(1000)) _exit(1);
        if (command("+" WORK) != EACCES || enable(true) != EACCES) _exit(2);
        if (put(SYSFS "default_delay_ns", "5", 1) != EACCES) _exit(3);
        if (put("/dev/speed_bump", "-*", 2) != EACCES) _exit(4);
        if (write(fd, "-*", 2) != -1 || errno != EPERM) _exit(5);
        if (device < 0 || write(device, "-*", 2) != -1 || errno != EPERM) _exit(6);
        if (hold(device) != EPERM) _exit(7);
        if (open(SYSFS "targets_list", O_RDONLY | O_CLOEXEC) >= 0 || errno != EACCES) _exit(8);
        _exit(0);
    }
    int status = reap(pid);
    CHECK(status == 0, "%d", WEXITSTATUS(status));
}

static void update_keeps_hits(void) {
    CHECK(command("+" WORK " 0") == 0 && enable(true) == 0);
    for (int i = 0; i < 7; i++) work();
    CHECK(row_of(WORK).hits == 7);
    CHECK(command("=" WORK " 2000000") == 0);
    struct row row = row_of(WORK);
    CHECK(row.hits == 7 && row.delay_ns == 2000000 && row.delays == 0);
    CHECK(timed(work) >= 2 * MILLISECOND);
    row = row_of(WORK);
    CHECK(row.hits == 8 && row.delays == 1);
    /* disabled and enabled again: the target stays, with its count */
    enable(false);
    work();
    enable(true);
    CHECK(row_of(WORK).hits == 8);
}

/* A target without a delay keeps the default of the moment at which it was added. */
static void default_delay(void) {
    CHECK(unload_module() == 0 && load_module("") == 0);
    char* text = slurp(SYSFS "default_delay_ns");
    CHECK(!strcmp(text, "1000000\n"), "%s", text);
    free(text);
    CHECK(command("+" WORK) == 0);
    CHECK(put(SYSFS "default_delay_ns", "3000000", 7) == 0);
    CHECK(command("+" SELF ":stepped_work") == 0 && enable(true) == 0);
    CHECK(row_of(WORK).delay_ns == 1000000 && row_of(SELF ":stepped_work").delay_ns == 3000000);
    CHECK(timed(stepped_work) >= 3 * MILLISECOND);
    CHECK(row_of(SELF ":stepped_work").requested_ns == 3000000);
    work();
    CHECK(row_of(WORK).requested_ns == 1000000);
    CHECK(command("=" WORK " 500") == 0 && row_of(WORK).delay_ns == 500);
}

#if defined(__x86_64__)
/* From 6.18 on a probed 5-byte nop becomes a call that ends forked children. */
static bool nop5_is_refused(void) {
    struct utsname name;
    unsigned major = 0, minor = 0;
    return uname(&name) || sscanf(name.release, "%u.%u", &major, &minor) != 2 || major > 6 ||
           (major == 6 && minor >= 18);
}

static void call_nops(void) {
    for (int i = 0; i < 20; i++) {
        nop_entry();
        nop_behind();
    }
    _exit(0);
}

/* An instruction that the kernel may get wrong is refused, by name and by offset. */
static void sites_that_are_refused(void) {
    static const char* const refused[] = {"vex_entry",    "evex_entry",     "repeated_entry",
                                          "locked_entry", "exchange_entry", "flags_entry"};
    static const char* const good[] = {"nop_behind", "nop_inside", "work"};
    const int of_nop = nop5_is_refused() ? EOPNOTSUPP : 0;
    unsigned long long offsets[3];
    for (size_t i = 0; i < sizeof(refused) / sizeof(*refused); i++)
        CHECK(command("+" SELF ":%s", refused[i]) == EOPNOTSUPP, "%s", refused[i]);
    for (size_t i = 0; i < sizeof(good) / sizeof(*good); i++) {
        CHECK(command("+" SELF ":%s", good[i]) == 0, "%s", good[i]);
        char name[64];
        snprintf(name, sizeof(name), SELF ":%s", good[i]);
        offsets[i] = row_of(name).offset;
        command("-*");
    }
    /* the 5-byte nop: at an entry, behind its endbr64, and where something may lie below the stack
     */
    CHECK(command("+" SELF ":nop_entry 0") == of_nop);
    CHECK(command("+" SELF ":0x%llx 0", offsets[0] + 4) == of_nop);
    CHECK(command("+" SELF ":0x%llx", offsets[1] + 9) == EOPNOTSUPP);
    CHECK(command("+" SELF ":0x%llx 0", offsets[0]) == 0);
    /* in this process and, with what became of them, in its children */
    CHECK(enable(true) == 0);
    for (int i = 0; i < 20; i++) {
        nop_entry();
        nop_behind();
    }
    CHECK(reap(spawn(call_nops)) == 0);
    CHECK(row_of(SELF ":nop_entry").hits == (of_nop ? 0 : 40));
    CHECK(stat_of("targets") == (of_nop ? 1 : 3));
    CHECK(put("/dev/speed_bump", "+" SELF ":vex_entry", strlen("+" SELF ":vex_entry")) ==
          EOPNOTSUPP);
}
#endif

static void live_and_without_trace(void) {
    CHECK(command("+" WORK " 0") == 0);
    CHECK(work_byte() == untouched_byte);
    CHECK(enable(true) == 0);
    CHECK(work_byte() != untouched_byte);
    CHECK(command("+" SELF ":stepped_work 1000") == 0);
    stepped_work();
    CHECK(row_of(SELF ":stepped_work").hits == 1);
    CHECK(command("-" WORK) == 0);
    CHECK(work_byte() == untouched_byte);
    work();
    CHECK(command("+" WORK " 0") == 0);
    work();
    CHECK(row_of(WORK).hits == 1);
    CHECK(enable(false) == 0);
    CHECK(work_byte() == untouched_byte);
    CHECK(row_of(SELF ":stepped_work").hits == 1);
}

/* Delays */

static void delays_are_held(void) {
    static const unsigned long long delays[] = {
        1000, 10000, 50000, 51000, 100000, 1000000, 10000000, 100000000, 1000000000, 10000000000};
    const size_t longest = sizeof(delays) / sizeof(*delays) - (full_counts ? 0 : 1);
    CHECK(command("+" WORK " 0") == 0 && command("+" SELF ":stepped_work 0") == 0);
    CHECK(enable(true) == 0);
    for (size_t i = 0; i < longest; i++) {
        unsigned long long delay = delays[i];
        unsigned calls = delay >= 100000000 ? 2 : 10;
        for (int stepped = 0; stepped < 2; stepped++) {
            const char* name = stepped ? SELF ":stepped_work" : WORK;
            uint64_t best = ~0ull, all = 0;
            command("=%s 0", name);
            struct row before = row_of(name);
            command("=%s %llu", name, delay);
            for (unsigned call = 0; call < calls; call++) {
                uint64_t took = timed(stepped ? stepped_work : work);
                CHECK(took >= delay, "%llu", (unsigned long long)took);
                if (took < best) best = took;
                all += took;
            }
            struct row after = row_of(name);
            CHECK(after.hits - before.hits == calls);
            CHECK(after.requested_ns - before.requested_ns == delay * calls);
            unsigned long long measured = after.measured_ns - before.measured_ns;
            CHECK(measured >= delay * calls && measured <= all, "%llu of %llu", measured,
                  (unsigned long long)all);
            /* the machine is emulated and shared: even the best of long calls is interrupted */
            CHECK(best < delay + delay / 2 + 20 * MILLISECOND, "%llu: %llu", delay,
                  (unsigned long long)best);
            command("=%s 0", name);
        }
    }
    CHECK(stat_of("total_hits") >= 100);
}

static void* thread_calls(void* argument) {
    for (int i = 0; i < *(int*)argument; i++) work();
    return NULL;
}

static void counts_are_exact(void) {
    int calls = (int)count_of(20000, 2000);
    pthread_t threads[4];
    CHECK(command("+" WORK " 0") == 0 && enable(true) == 0);
    for (int i = 0; i < 4; i++) pthread_create(&threads[i], NULL, thread_calls, &calls);
    for (int i = 0; i < 4; i++) pthread_join(threads[i], NULL);
    CHECK(row_of(WORK).hits == 4ull * (unsigned)calls, "%llu", row_of(WORK).hits);
}

static void kinds_of_programs(void) {
    static const char* const programs[] = {"/bin/victim_pie", "/bin/victim_fixed"};
    for (int i = 0; i < 2; i++) {
        CHECK(command("+%s:program_work 1000", programs[i]) == 0);
        CHECK(command("+/lib/libvictim.so:library_work 1000") == 0);
        CHECK(command("+/lib/libvictim.so:_ZN6victim7Service6answerEi 1000") == 0);
        enable(true);
        CHECK(run_victim(programs[i], 5) == 0);
        char name[64];
        snprintf(name, sizeof(name), "%s:program_work", programs[i]);
        struct row row = row_of(name);
        CHECK(row.hits == 5, "%s %llu", name, row.hits);
        CHECK(row_of("/lib/libvictim.so:library_work").hits == 5);
        CHECK(row_of("/lib/libvictim.so:_ZN6victim7Service6answerEi").hits == 5);
        command("-*");
        /* the same place by its offset, beside other spellings of the file's name */
        CHECK(command("+%s:0x%llx", programs[i], row.offset) == 0);
        CHECK(command("+/bin/../bin/%s:0x%llX", programs[i] + 5, row.offset) == 0);
        CHECK(run_victim(programs[i], 3) == 0);
        snprintf(name, sizeof(name), "%s:0x%llx", programs[i], row.offset);
        CHECK(row_of(name).hits == 3);
        snprintf(name, sizeof(name), "/bin/../bin/%s:0x%llX", programs[i] + 5, row.offset);
        CHECK(row_of(name).hits == 3);
        command("-*");
        enable(false);
    }
    /* without .symtab only the dynamic names are left */
    CHECK(command("+/lib/libvictim_stripped.so:library_work") == 0);
    CHECK(command("+/bin/victim_stripped:program_work") == ENOENT);
}

static unsigned long long offset_of(const char* path, const char* symbol, int* error) {
    char name[400];
    snprintf(name, sizeof(name), "%s:%s", path, symbol);
    *error = command("+%s", name);
    if (*error) return 0;
    unsigned long long offset = row_of(name).offset;
    command("-%s", name);
    return offset;
}

static void symbol_rules(void) {
    const uint64_t code = SB_TEST_CODE_ADDRESS;
    const struct test_symbol symtab[] = {
        {"undefined", STT_FUNC, STB_GLOBAL, SHN_UNDEF, code + 0x10, 0},
        {"absolute", STT_FUNC, STB_GLOBAL, SHN_ABS, code + 0x20, 0},
        {"common", STT_COMMON, STB_GLOBAL, SHN_COMMON, code + 0x30, 0},
        {"data", STT_OBJECT, STB_GLOBAL, 1, code + 0x40, 0},
        {"tls", STT_TLS, STB_GLOBAL, 1, code + 0x50, 0},
        {"file", STT_FILE, STB_LOCAL, 1, code + 0x60, 0},
        {"section", STT_SECTION, STB_LOCAL, 1, code + 0x70, 0},
        {"elsewhere", STT_FUNC, STB_GLOBAL, 1, 0x99999999, 0},
        {"mixed", STT_OBJECT, STB_GLOBAL, 1, code + 0x80, 0},
        {"mixed", STT_FUNC, STB_GLOBAL, SHN_UNDEF, 0, 0},
        {"mixed", STT_FUNC, STB_LOCAL, 1, code + 0x90, 0},
        {"versioned@V1", STT_FUNC, STB_GLOBAL, 1, code + 0xa0, 0},
        {"versioned@@V2", STT_FUNC, STB_GLOBAL, 1, code + 0xb0, 0},
        {"versioned@V3", STT_FUNC, STB_GLOBAL, 1, code + 0xc0, 0},
        {"only_old@V1", STT_FUNC, STB_GLOBAL, 1, code + 0xd0, 0},
        {"shadowed", STT_FUNC, STB_LOCAL, 1, code + 0xe0, 0},
        {"shadowed", STT_FUNC, STB_GLOBAL, 1, code + 0xf0, 0},
        {"label", STT_NOTYPE, STB_GLOBAL, 1, code + 0x100, 0},
        {"extended", STT_FUNC, STB_GLOBAL, SHN_XINDEX, code + 0x110, 0},
    };
    const struct test_symbol dynsym[] = {
        {"dyn_old", STT_FUNC, STB_GLOBAL, 1, code + 0x200, 0x8002},
        {"dyn_old", STT_FUNC, STB_GLOBAL, 1, code + 0x210, 3},
        {"dyn_old", STT_FUNC, STB_GLOBAL, 1, code + 0x220, 0x8004},
        {"undefined", STT_FUNC, STB_GLOBAL, 1, code + 0x230, 2},
    };
    struct test_elf elf = {.symtab = symtab,
                           .symtab_count = sizeof(symtab) / sizeof(*symtab),
                           .dynsym = dynsym,
                           .dynsym_count = sizeof(dynsym) / sizeof(*dynsym)};
    CHECK(make_elf("/tmp/rules", &elf) == 0);
    static const struct {
        const char* symbol;
        unsigned offset; /* into the code; 0: ENOENT */
    } expected[] = {
        {"absolute", 0},     {"common", 0},          {"data", 0},        {"tls", 0},
        {"file", 0},         {"section", 0},         {"elsewhere", 0},   {"mixed", 0x90},
        {"versioned", 0xb0}, {"versioned@V1", 0xa0}, {"only_old", 0xd0}, {"shadowed", 0xf0},
        {"label", 0x100},    {"extended", 0x110},    {"dyn_old", 0x210}, {"undefined", 0x230},
        {"version", 0},      {"ersioned", 0},
    };
    for (size_t i = 0; i < sizeof(expected) / sizeof(*expected); i++) {
        int error;
        unsigned long long offset = offset_of("/tmp/rules", expected[i].symbol, &error);
        if (!strcmp(expected[i].symbol, "ersioned")) {
            /* the end of another name is none of the table's names */
            CHECK(error == ENOENT, "%d", error);
        } else if (!expected[i].offset) {
            CHECK(error == ENOENT, "%s: %d", expected[i].symbol, error);
        } else {
            CHECK(!error && offset == SB_TEST_CODE_OFFSET + expected[i].offset, "%s: %d 0x%llx",
                  expected[i].symbol, error, offset);
        }
    }
}

static void huge_files(void) {
    const struct test_symbol wanted = {
        "wanted", STT_FUNC, STB_GLOBAL, 1, SB_TEST_CODE_ADDRESS + 0x123, 0};
    const struct {
        const char* what;
        struct test_elf elf;
    } cases[] = {
        {"a million symbols", {.symtab = &wanted, .symtab_count = 1, .filler_symbols = 1000000}},
        {"70,000 sections", {.symtab = &wanted, .symtab_count = 1, .filler_sections = 70000}},
        {"tables behind 3 GiB", {.symtab = &wanted, .symtab_count = 1, .tables_at = 3ull << 30}},
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); i++) {
        int error;
        CHECK(make_elf("/tmp/huge", &cases[i].elf) == 0, "%s", strerror(errno));
        uint64_t start = now_ns();
        unsigned long long offset = offset_of("/tmp/huge", "wanted", &error);
        printf("  %s: %llu ms\n", cases[i].what,
               (unsigned long long)((now_ns() - start) / MILLISECOND));
        CHECK(!error && offset == SB_TEST_CODE_OFFSET + 0x123, "%s: %d", cases[i].what, error);
        CHECK(command("+/tmp/huge:missing") == ENOENT);
        unlink("/tmp/huge");
    }
}

/* Process trees */

static void outsider_is_untouched(const char* what) {
    unsigned long long before = row_of(WORK).hits;
    CHECK(work_byte() == untouched_byte, "%s", what);
    for (int i = 0; i < 3; i++) work();
    CHECK(row_of(WORK).hits == before, "%s", what);
}

/* Lets the child of call_once_on_go() call: it must be delayed. */
static void expect_delayed(const char* what) {
    atomic_store(&shared->ready, 0);
    atomic_store(&shared->go, 1);
    CHECK(wait_for(&shared->ready, 1, 8000), "%s", what);
    CHECK(atomic_load(&shared->elapsed_ns) >= 5 * MILLISECOND, "%s: %llu", what,
          (unsigned long long)atomic_load(&shared->elapsed_ns));
    CHECK(atomic_load(&shared->patched) == 1, "%s", what);
}

static void filter_covers_a_process(void) {
    pid_t pid = spawn(call_once_on_go);
    CHECK(wait_for(&shared->ready, 1, 5000));
    CHECK(command("+" WORK " 5000000 pid=%d", pid) == 0 && enable(true) == 0);
    outsider_is_untouched("one process");
    expect_delayed("the process");
    CHECK(row_of(WORK).hits == 1 && (pid_t)row_of(WORK).pid == pid);
    reap(pid);
    outsider_is_untouched("after its end");
}

static void make_grandchild(void) {
    if (!fork()) {
        if (!fork()) {
            call_once_on_go();
            _exit(0);
        }
        wait(NULL);
        _exit(0);
    }
    wait(NULL);
}

static void filter_covers_those_before(void) {
    pid_t pid = spawn(make_grandchild);
    CHECK(wait_for(&shared->ready, 1, 5000));
    CHECK(command("+" WORK " 5000000 pid=%d", pid) == 0 && enable(true) == 0);
    outsider_is_untouched("a grandchild that was there");
    expect_delayed("a grandchild that was there");
    reap(pid);
}

/* The parents are dead before the filter's root makes the next step: on go the last one calls. */
static void make_daemon_later(void) {
    atomic_fetch_add(&shared->ready, 1);
    while (!atomic_load(&shared->go)) usleep(200);
    atomic_store(&shared->go, 0);
    if (!fork()) {
        const pid_t parent = getpid();
        if (!fork()) {
            while (getppid() == parent) usleep(200); /* until it is an orphan */
            if (!fork()) {
                call_once_on_go();
                _exit(0);
            }
            _exit(0);
        }
        usleep(1000);
        _exit(0);
    }
    wait(NULL);
}

static void filter_covers_daemons(void) {
    pid_t pid = spawn(make_daemon_later);
    CHECK(wait_for(&shared->ready, 1, 5000));
    CHECK(command("+" WORK " 5000000 pid=%d", pid) == 0 && enable(true) == 0);
    atomic_store(&shared->ready, 0);
    atomic_store(&shared->go, 1);
    reap(pid); /* the root is dead too */
    CHECK(wait_for(&shared->ready, 1, 5000));
    sleep_ms(20);
    expect_delayed("a daemon without living ancestors");
    outsider_is_untouched("a daemon");
}

static void exec_on_go(void) {
    atomic_fetch_add(&shared->ready, 1);
    while (!atomic_load(&shared->go)) usleep(200);
    execl("/bin/victim_pie", "victim_pie", "4", NULL);
}

static void filter_survives_exec(void) {
    pid_t pid = spawn(exec_on_go);
    CHECK(wait_for(&shared->ready, 1, 5000));
    CHECK(command("+/bin/victim_pie:program_work 1000 pid=%d", pid) == 0 && enable(true) == 0);
    CHECK(run_victim("/bin/victim_pie", 3) == 0); /* another one */
    CHECK(row_of("/bin/victim_pie:program_work").hits == 0);
    atomic_store(&shared->go, 1);
    CHECK(reap(pid) == 0);
    CHECK(row_of("/bin/victim_pie:program_work").hits == 4);
}

static void* call_in_thread(void* unused) {
    (void)unused;
    call_once_on_go();
    return NULL;
}

static void leave_it_to_a_thread(void) {
    pthread_t thread;
    pthread_create(&thread, NULL, call_in_thread, NULL);
    /* the leader goes: a zombie without memory, its thread works on */
    syscall(SYS_exit, 0);
}

static void filter_covers_threads(void) {
    pid_t pid = spawn(leave_it_to_a_thread);
    CHECK(wait_for(&shared->ready, 1, 5000));
    sleep_ms(20);
    CHECK(command("+" WORK " 5000000 pid=%d", pid) == 0 && enable(true) == 0);
    expect_delayed("a thread whose leader is gone");
    outsider_is_untouched("a thread");
    reap(pid);
}

static void fork_into_namespace(void) {
    if (unshare(CLONE_NEWPID)) return;
    pid_t pid = fork();
    if (!pid) {
        call_once_on_go();
        _exit(0);
    }
    reap(pid);
}

static void filter_covers_namespaces(void) {
    pid_t pid = spawn(fork_into_namespace);
    CHECK(wait_for(&shared->ready, 1, 5000));
    CHECK(command("+" WORK " 5000000 pid=%d", pid) == 0 && enable(true) == 0);
    expect_delayed("in another PID namespace");
    reap(pid);
}

/* A writer in a PID namespace names its own numbers: its process 1 is the namespace's. */
static void write_in_namespace(void) {
    if (unshare(CLONE_NEWPID)) return;
    pid_t pid = fork();
    if (!pid) {
        if (command("+" WORK " 5000000 pid=1")) _exit(1);
        call_once_on_go();
        _exit(0);
    }
    reap(pid);
}

static void filter_is_as_the_writer_sees(void) {
    pid_t pid = spawn(write_in_namespace);
    CHECK(wait_for(&shared->ready, 1, 5000));
    CHECK(enable(true) == 0);
    outsider_is_untouched("outside the namespace");
    expect_delayed("process 1 of the writer");
    reap(pid);
}

static void filter_of_everyone(void) {
    CHECK(command("+" WORK " 1000 pid=1") == 0 && enable(true) == 0);
    for (int i = 0; i < 3; i++) work();
    CHECK(row_of(WORK).hits == 3 && row_of(WORK).pid == 1);
}

static void filter_of_a_number_to_come(void) {
    pid_t number = getpid() + 3000;
    CHECK(command("+" WORK " 5000000 pid=%d", number) == 0 && enable(true) == 0);
    outsider_is_untouched("before there is one");
    char text[16];
    snprintf(text, sizeof(text), "%d", number - 1);
    if (put("/proc/sys/kernel/ns_last_pid", text, strlen(text))) {
        printf("  the kernel has no ns_last_pid\n");
        return;
    }
    pid_t pid = spawn(call_once_on_go);
    CHECK(pid == number, "%d %d", pid, number);
    CHECK(wait_for(&shared->ready, 1, 5000));
    sleep_ms(200); /* it gets its breakpoint behind its back */
    expect_delayed("the process that has the number now");
    outsider_is_untouched("afterwards");
    reap(pid);
    /* the number's next owner is another process */
    put("/proc/sys/kernel/ns_last_pid", text, strlen(text));
    unsigned long long hits = row_of(WORK).hits;
    memset(shared, 0, sizeof(*shared));
    atomic_store(&shared->go, 1);
    pid = spawn(call_once_on_go);
    reap(pid);
    CHECK(pid == number && row_of(WORK).hits == hits);
}

static void filter_moves(void) {
    pid_t one = spawn(call_once_on_go);
    CHECK(wait_for(&shared->ready, 1, 5000));
    CHECK(command("+" WORK " 5000000 pid=%d", getpid()) == 0 && enable(true) == 0);
    CHECK(work_byte() != untouched_byte);
    CHECK(timed(work) >= 5 * MILLISECOND);
    CHECK(command("=" WORK " 6000000 pid=%d", one) == 0);
    CHECK(row_of(WORK).hits == 1 && (pid_t)row_of(WORK).pid == one);
    outsider_is_untouched("the former one");
    expect_delayed("the new one");
    reap(one);
}

static void fork_storm(void) {
    uint64_t end = now_ns() + 300 * MILLISECOND;
    atomic_fetch_add(&shared->ready, 1);
    while (now_ns() < end) {
        pid_t pid = fork();
        if (!pid) {
            atomic_fetch_add(&shared->calls, 1);
            work();
            _exit(0);
        }
        reap(pid);
    }
    atomic_store(&shared->stop, 1);
    while (!atomic_load(&shared->go)) usleep(500);
    for (int i = 0; i < 20; i++) {
        pid_t pid = fork();
        if (!pid) {
            work();
            _exit(0);
        }
        reap(pid);
    }
}

/* Children whose fork is under way while the probe is set: afterwards none escapes. */
static void filter_against_forks(void) {
    pid_t pid = spawn(fork_storm);
    CHECK(wait_for(&shared->ready, 1, 5000));
    CHECK(enable(true) == 0);
    for (int i = 0; !atomic_load(&shared->stop); i++) {
        CHECK(command("+" WORK " 0 pid=%d", pid) == 0);
        if (!atomic_load(&shared->stop)) CHECK(command("-" WORK) == 0);
    }
    command("-*");
    CHECK(command("+" WORK " 0 pid=%d", pid) == 0);
    atomic_store(&shared->go, 1);
    reap(pid);
    CHECK(row_of(WORK).hits == 20, "%llu", row_of(WORK).hits);
    CHECK(stat_of("lost_processes") == 0);
}

static void crash(void) {
    struct rlimit limit = {RLIM_INFINITY, RLIM_INFINITY};
    setrlimit(RLIMIT_CORE, &limit);
    raise(SIGSEGV);
}

/* The kernel's own helper for core dumps has no ancestor that is a process. */
static void kernel_helpers_are_no_loop(void) {
    CHECK(put("/proc/sys/kernel/core_pattern", "|/bin/victim_pie 3", 18) == 0);
    pid_t pid = spawn(call_once_on_go);
    CHECK(command("+/bin/victim_pie:program_work 1000 pid=%d", pid) == 0 && enable(true) == 0);
    int status = reap(spawn(crash));
    CHECK(WIFSIGNALED(status) && WTERMSIG(status) == SIGSEGV);
    CHECK(row_of("/bin/victim_pie:program_work").hits == 0);
    CHECK(command("+" WORK " 0 pid=%d", getpid()) == 0);
    CHECK(WIFSIGNALED(reap(spawn(crash))));
    put("/proc/sys/kernel/core_pattern", "core", 4);
    finish(pid);
}

/* The end of a spin */

#define KMEMLEAK "/sys/kernel/debug/kmemleak"

static bool is_debug_kernel(void) {
    return !access(KMEMLEAK, F_OK);
}

#define TRIES 5

static int compare_times(const void* one, const void* other) {
    uint64_t a = *(const uint64_t*)one, b = *(const uint64_t*)other;
    return a < b ? -1 : a > b;
}

static uint64_t median_of(uint64_t times[TRIES]) {
    qsort(times, TRIES, sizeof(*times), compare_times);
    return times[TRIES / 2];
}

/* Begins a delay of 10 s in a child, ends it, and gives the time from `end` to the child's return.
 */
static uint64_t cut_short(int (*end)(pid_t pid)) {
    uint64_t times[TRIES];
    for (int i = 0; i < TRIES; i++) {
        clean();
        CHECK(command("+" WORK " 10000000000") == 0 && enable(true) == 0);
        pid_t pid = spawn(call_once_on_go);
        CHECK(wait_for(&shared->ready, 1, 5000));
        atomic_store(&shared->go, 1);
        for (int wait = 0; wait < 2000 && !row_of(WORK).hits; wait++) sleep_ms(1);
        sleep_ms(30);
        CHECK(atomic_load(&shared->done_ns) == 0);
        uint64_t start = now_ns();
        CHECK(end(pid) == 0);
        reap(pid);
        uint64_t done = atomic_load(&shared->done_ns);
        /* a killed child returns nowhere: its end is the parent's news of it */
        times[i] = (done ? done : now_ns()) - start;
        CHECK(times[i] < SECOND, "%llu", (unsigned long long)times[i]);
    }
    return median_of(times);
}

static void sleep_forever(void) {
    for (;;) pause();
}

/* What it takes to kill a child that does nothing. */
static uint64_t cost_of_a_kill(void) {
    uint64_t times[TRIES];
    for (int i = 0; i < TRIES; i++) {
        pid_t pid = spawn(sleep_forever);
        sleep_ms(30);
        uint64_t start = now_ns();
        finish(pid);
        times[i] = now_ns() - start;
    }
    return median_of(times);
}

static int end_by_kill(pid_t pid) {
    return kill(pid, SIGKILL);
}
static int end_by_disable(pid_t pid) {
    (void)pid;
    return enable(false);
}
static int end_by_remove(pid_t pid) {
    (void)pid;
    return command("-" WORK);
}
static int end_by_lowering(pid_t pid) {
    (void)pid;
    return command("=" WORK " 0");
}
static int end_by_toggle(pid_t pid) {
    (void)pid;
    int error = enable(false);
    return error ? error : enable(true);
}

static void spins_end_early(void) {
    static const struct {
        const char* name;
        int (*end)(pid_t);
    } ways[] = {{"SIGKILL", end_by_kill},
                {"disable", end_by_disable},
                {"remove", end_by_remove},
                {"a lower delay", end_by_lowering},
                {"disable and enable", end_by_toggle}};
    const uint64_t kill_cost = cost_of_a_kill();
    printf("  a sleeping process is killed in %llu us\n", (unsigned long long)kill_cost / 1000);
    /* what checks each of the kernel's steps slows them */
    const uint64_t enough = is_debug_kernel() ? 20 * MILLISECOND : MILLISECOND;
    for (size_t i = 0; i < sizeof(ways) / sizeof(*ways); i++) {
        uint64_t other = i ? 0 : kill_cost;
        uint64_t took = cut_short(ways[i].end);
        took = took > other ? took - other : 0;
        printf("  %s ends a delay of 10 s in %llu us\n", ways[i].name,
               (unsigned long long)took / 1000);
        CHECK(took <= enough, "%s", ways[i].name);
    }
}

static void nobody_waits_for_a_spin(void) {
    CHECK(command("+" WORK " 10000000000") == 0);
    CHECK(command("+" SELF ":stepped_work 5") == 0 && enable(true) == 0);
    unsigned long long offset = row_of(WORK).offset;
    pid_t pid = spawn(call_once_on_go);
    atomic_store(&shared->go, 1);
    for (int wait = 0; wait < 2000 && !row_of(WORK).hits; wait++) sleep_ms(1);
    uint64_t start = now_ns();
    CHECK(list_lines() == 2);
    CHECK(command("=" SELF ":stepped_work 6") == 0);
    CHECK(command("-" SELF ":stepped_work") == 0);
    CHECK(command("+" SELF ":stepped_work 7 pid=%d", getpid()) == 0);
    /* the place that spins, under another name */
    CHECK(command("+" SELF ":0x%llx 0", offset) == 0);
    CHECK(command("-" SELF ":0x%llx", offset) == 0);
    CHECK(command("=" WORK " 10000000000") == 0);
    CHECK(now_ns() - start < 3 * SECOND, "%llu", (unsigned long long)(now_ns() - start));
    CHECK(atomic_load(&shared->done_ns) == 0);
    start = now_ns();
    CHECK(command("-*") == 0);
    reap(pid);
    CHECK(now_ns() - start < SECOND);
}

static void pin_to(int cpu) {
    cpu_set_t set;
    CPU_ZERO(&set);
    CPU_SET(cpu, &set);
    sched_setaffinity(0, sizeof(set), &set);
}

static void count_on_cpu(void) {
    pin_to(0);
    for (;;) atomic_fetch_add(&shared->calls, 1);
}

static void spin_on_cpu(void) {
    pin_to(0);
    call_once_on_go();
}

static void a_spin_shares_its_cpu(void) {
    CHECK(command("+" WORK " 2000000000") == 0 && enable(true) == 0);
    pid_t spinner = spawn(spin_on_cpu);
    pid_t counter = spawn(count_on_cpu);
    CHECK(wait_for(&shared->ready, 1, 5000));
    uint64_t before = atomic_load(&shared->calls);
    sleep_ms(500);
    uint64_t alone = atomic_load(&shared->calls) - before;
    atomic_store(&shared->go, 1);
    for (int wait = 0; wait < 2000 && !row_of(WORK).hits; wait++) sleep_ms(1);
    before = atomic_load(&shared->calls);
    sleep_ms(500);
    uint64_t beside = atomic_load(&shared->calls) - before;
    CHECK(atomic_load(&shared->done_ns) == 0);
    CHECK(beside > alone / 10, "%llu of %llu", (unsigned long long)beside,
          (unsigned long long)alone);
    finish(counter);
    reap(spinner);
    CHECK(atomic_load(&shared->elapsed_ns) >= 2 * SECOND);
}

/* The list */

static unsigned long long kernel_memory_kib(void) {
    sleep_ms(600); /* what waits for a grace period is freed */
    put("/proc/sys/vm/drop_caches", "3", 1);
    sleep_ms(100);
    char* text = slurp("/proc/meminfo");
    static const char* const keys[] = {"SUnreclaim:", "Percpu:", "VmallocUsed:"};
    unsigned long long sum = 0;
    for (int i = 0; i < 3; i++) {
        const char* at = strstr(text, keys[i]);
        if (at) sum += strtoull(at + strlen(keys[i]), NULL, 10);
    }
    free(text);
    return sum;
}

static void the_list_is_whole_lines(void) {
    unload_module();
    CHECK(load_module("max_targets=600") == 0);
    CHECK(command("+" SELF ":sled") == 0);
    unsigned long long base = row_of(SELF ":sled").offset;
    command("-*");
    /* made wide: the list has many pages, and lines cross their ends */
    for (unsigned i = 0; i < 500; i++)
        CHECK(command("+/bin/../bin/../bin/../bin/module_test:0x%llx %u", base + i * 4, i) == 0);
    command("-/bin/../bin/../bin/../bin/module_test:0x%llx", base);
    CHECK(command("+" WORK " 0") == 0);
    char *list = slurp(SYSFS "targets_list"), *save = NULL;
    CHECK(strlen(list) > 3 * 4096);
    unsigned lines = 0;
    CHECK(list[strlen(list) - 1] == '\n');
    for (char* line = strtok_r(list, "\n", &save); line; line = strtok_r(NULL, "\n", &save)) {
        CHECK(line[0] == '/' && strstr(line, " delay_ns=") && strstr(line, " hits=") &&
                  strstr(line, " offset=0x"),
              "'%s'", line);
        lines++;
    }
    CHECK(lines == 500, "%u", lines);
    free(list);
    /* small reads, while one of the targets comes and goes */
    int fd = open(SYSFS "targets_list", O_RDONLY | O_CLOEXEC);
    char text[100];
    ssize_t got;
    size_t total = 0;
    unsigned ends = 0;
    for (int i = 0; (got = read(fd, text, sizeof(text))) > 0; i++) {
        for (ssize_t at = 0; at < got; at++) ends += text[at] == '\n';
        total += (size_t)got;
        if (i % 50 == 0) command(i % 100 ? "+" WORK : "-" WORK);
    }
    close(fd);
    CHECK(ends == 499 || ends == 500, "%u", ends);
    CHECK(command("-*") == 0);
    unload_module();
    CHECK(load_module("") == 0);
}

/* Readers that stop half-way keep little, and what they stand on may be removed. */
static void readers_take_little_memory(void) {
    CHECK(unload_module() == 0 && load_module("max_targets=1000") == 0);
    struct test_symbol symbol = {"f", STT_FUNC, STB_GLOBAL, 1, SB_TEST_CODE_ADDRESS, 0};
    struct test_elf elf = {.symtab = &symbol, .symtab_count = 1};
    CHECK(make_elf("/tmp/code", &elf) == 0);
    for (unsigned target = 0; target < 1000; target++)
        CHECK(command("+/tmp/code:0x%x 0", 0x1000 + target) == 0);
    unsigned long long before = kernel_memory_kib();
    int readers[70];
    char text[1000];
    for (int i = 0; i < 70; i++) {
        readers[i] = open(SYSFS "targets_list", O_RDONLY | O_CLOEXEC);
        CHECK(read(readers[i], text, sizeof(text)) == sizeof(text));
    }
    unsigned long long after = kernel_memory_kib();
    printf("  70 readers: kernel memory %llu -> %llu KiB\n", before, after);
    CHECK(is_debug_kernel() || after < before + 1024);
    /* the first ones were forgotten for later ones; a reader that is not goes on with what is left
     */
    CHECK(read(readers[0], text, sizeof(text)) == 0);
    CHECK(read(readers[69], text, sizeof(text)) == sizeof(text));
    CHECK(command("-*") == 0);
    CHECK(command("+" WORK) == 0);
    size_t rest = 0;
    for (ssize_t got; (got = read(readers[69], text, sizeof(text))) > 0;) rest = (size_t)got;
    CHECK(rest > 0 && text[rest - 1] == '\n' && memmem(text, rest, WORK " ", strlen(WORK " ")));
    CHECK(unload_module() == 0 && load_module("") == 0);
    for (int i = 0; i < 70; i++) close(readers[i]);
}

static void many_targets(void) {
    unload_module();
    CHECK(load_module("max_targets=0") == EINVAL);
    CHECK(load_module("max_targets=4096") == 0);
    static const unsigned counts[] = {64, 4096};
    struct test_symbol symbol = {"f", STT_FUNC, STB_GLOBAL, 1, SB_TEST_CODE_ADDRESS, 0};
    struct test_elf elf = {.symtab = &symbol, .symtab_count = 1};
    CHECK(make_elf("/tmp/code", &elf) == 0);
    for (int i = 0; i < 2; i++) {
        uint64_t start = now_ns();
        for (unsigned target = 0; target < counts[i]; target++)
            CHECK(command("+/tmp/code:0x%x 0", 0x1000 + target) == 0);
        uint64_t added = now_ns();
        CHECK(enable(true) == 0);
        uint64_t enabled = now_ns();
        CHECK(list_lines() == counts[i]);
        uint64_t listed = now_ns();
        CHECK(enable(false) == 0);
        CHECK(enable(true) == 0);
        uint64_t again = now_ns();
        CHECK(command("-*") == 0);
        printf(
            "  %u targets: add %llu us each, enable %llu ms, list %llu ms, disable and enable "
            "%llu ms, remove all %llu ms\n",
            counts[i], (unsigned long long)(added - start) / counts[i] / 1000,
            (unsigned long long)(enabled - added) / MILLISECOND,
            (unsigned long long)(listed - enabled) / MILLISECOND,
            (unsigned long long)(again - listed) / MILLISECOND,
            (unsigned long long)(now_ns() - again) / MILLISECOND);
        enable(false);
    }
    CHECK(unload_module() == 0);
    CHECK(load_module("") == 0);
}

/* The device */

static void own_and_sleep(void) {
    int fd = open("/dev/speed_bump", O_RDWR | O_CLOEXEC);
    if (write(fd, "+" WORK " 1000", strlen("+" WORK " 1000")) < 0) _exit(1);
    atomic_store(&shared->ready, 1);
    for (;;) pause();
}

static void targets_die_with_their_owner(void) {
    CHECK(command("+" SELF ":stepped_work 0") == 0 && enable(true) == 0);
    pid_t pid = spawn(own_and_sleep);
    CHECK(wait_for(&shared->ready, 1, 5000));
    CHECK(row_of(WORK).found && work_byte() != untouched_byte);
    CHECK(command("+" WORK) == EEXIST);
    kill(pid, SIGKILL);
    reap(pid);
    CHECK(!row_of(WORK).found && work_byte() == untouched_byte);
    CHECK(row_of(SELF ":stepped_work").found);

    /* two descriptors of one opening: the last counts */
    int fd = open("/dev/speed_bump", O_RDWR | O_CLOEXEC);
    int copy = dup(fd);
    CHECK(write(fd, "+" WORK, strlen("+" WORK)) > 0);
    CHECK(write(fd, "+" WORK, strlen("+" WORK)) == -1 && errno == EEXIST);
    CHECK(write(fd, "nonsense", 8) == -1 && errno == EINVAL);
    close(fd);
    CHECK(row_of(WORK).found);
    close(copy);
    CHECK(!row_of(WORK).found);
}

static void hold_and_sleep(void) {
    int fd = open("/dev/speed_bump", O_RDWR);
    if (hold(fd)) _exit(1);
    atomic_store(&shared->ready, 1);
    sleep_forever();
}

static bool is_enabled(void) {
    char* text = slurp(SYSFS "enabled");
    bool enabled = *text == '1';
    free(text);
    return enabled;
}

/* On as long as somebody wants it, and as it was afterwards. */
static void a_device_holds_it_on(void) {
    pid_t pid = spawn(hold_and_sleep);
    CHECK(wait_for(&shared->ready, 1, 5000) && is_enabled());
    int fd = open("/dev/speed_bump", O_RDWR | O_CLOEXEC);
    CHECK(hold(fd) == 0 && hold(fd) == 0);
    finish(pid);
    CHECK(is_enabled());
    CHECK(write(fd, "+" WORK " 0", strlen("+" WORK " 0")) > 0 && work_byte() != untouched_byte);
    close(fd);
    CHECK(!is_enabled() && work_byte() == untouched_byte);

    /* targets of others would be live */
    CHECK(command("+" WORK " 0") == 0);
    fd = open("/dev/speed_bump", O_RDWR | O_CLOEXEC);
    CHECK(hold(fd) == EBUSY && !is_enabled());
    CHECK(ioctl(fd, SB_DEVICE_HOLD + 1) == -1 && errno == ENOTTY);
    CHECK(enable(true) == 0 && hold(fd) == 0);
    close(fd);
    CHECK(is_enabled());

    /* the word of whoever writes `enabled` counts */
    clean();
    fd = open("/dev/speed_bump", O_RDWR | O_CLOEXEC);
    CHECK(hold(fd) == 0 && enable(false) == 0 && !is_enabled());
    CHECK(enable(true) == 0);
    close(fd);
    CHECK(is_enabled());
}

/* File systems */

static void unmounting(void) {
    mkdir("/tmp/mounted", 0755);
    CHECK(mount("tmpfs", "/tmp/mounted", "tmpfs", 0, NULL) == 0);
    struct test_symbol symbol = {"f", STT_FUNC, STB_GLOBAL, 1, SB_TEST_CODE_ADDRESS, 0};
    struct test_elf elf = {.symtab = &symbol, .symtab_count = 1};
    CHECK(make_elf("/tmp/mounted/code", &elf) == 0);
    CHECK(command("+/tmp/mounted/code:f") == 0 && enable(true) == 0);
    CHECK(umount("/tmp/mounted") == -1 && errno == EBUSY);
    /* deleted while it is a target, and another in its place */
    CHECK(unlink("/tmp/mounted/code") == 0);
    CHECK(command("+/tmp/mounted/code:g") == ENOENT);
    CHECK(command("-/tmp/mounted/code:f") == 0);
    CHECK(umount("/tmp/mounted") == 0, "%s", strerror(errno));
    /* a lazy unmount, then remove */
    CHECK(mount("tmpfs", "/tmp/mounted", "tmpfs", 0, NULL) == 0);
    CHECK(make_elf("/tmp/mounted/code", &elf) == 0);
    CHECK(command("+/tmp/mounted/code:f") == 0);
    CHECK(umount2("/tmp/mounted", MNT_DETACH) == 0);
    CHECK(command("+/tmp/mounted/code:f") == EEXIST);
    CHECK(command("-/tmp/mounted/code:f") == 0);
}

static void overlay(void) {
    mkdir("/tmp/over", 0755);
    CHECK(mount("tmpfs", "/tmp/over", "tmpfs", 0, NULL) == 0);
    mkdir("/tmp/over/lower", 0755);
    mkdir("/tmp/over/upper", 0755);
    mkdir("/tmp/over/work", 0755);
    mkdir("/tmp/over/merged", 0755);
    fflush(stdout);
    CHECK(system("cp /bin/victim_pie /tmp/over/lower/victim") == 0);
    CHECK(mount("overlay", "/tmp/over/merged", "overlay", 0,
                "lowerdir=/tmp/over/lower,upperdir=/tmp/over/upper,workdir=/tmp/over/work") == 0,
          "%s", strerror(errno));
    const char *victim = "/tmp/over/merged/victim", *name = "/tmp/over/merged/victim:program_work";
    CHECK(command("+%s 0", name) == 0 && enable(true) == 0);
    CHECK(run_victim(victim, 3) == 0);
    CHECK(row_of(name).hits == 3, "%llu", row_of(name).hits);
    /* copied up under the live target */
    CHECK(chmod(victim, 0700) == 0);
    int fd = open(victim, O_RDWR | O_CLOEXEC);
    CHECK(fd >= 0);
    close(fd);
    struct stat status;
    CHECK(stat("/tmp/over/upper/victim", &status) == 0);
    CHECK(run_victim(victim, 4) == 0);
    CHECK(row_of(name).hits == 7, "%llu", row_of(name).hits);
    CHECK(run_victim(victim, 2) == 0);
    CHECK(row_of(name).hits == 9, "%llu", row_of(name).hits);
    /* added anew after it */
    CHECK(command("-%s", name) == 0 && command("+%s 0", name) == 0);
    CHECK(run_victim(victim, 5) == 0);
    CHECK(row_of(name).hits == 5);
    CHECK(umount("/tmp/over/merged") == -1 && errno == EBUSY);
    CHECK(command("-%s", name) == 0);
    CHECK(umount("/tmp/over/merged") == 0, "%s", strerror(errno));
    CHECK(umount("/tmp/over") == 0, "%s", strerror(errno));
}

/* Load */

static void write_forever(void) {
    unsigned random = (unsigned)getpid();
    while (!atomic_load(&shared->stop)) {
        switch (rand_r(&random) % 6) {
            case 0:
                command("+" WORK " %u", rand_r(&random) % 200000);
                break;
            case 1:
                command("-" WORK);
                break;
            case 2:
                command("+" SELF ":stepped_work 0 pid=%d", getppid());
                break;
            case 3:
                enable(rand_r(&random) % 4);
                break;
            case 4:
                list_lines();
                break;
            default:
                command("=" WORK " %u pid=1", rand_r(&random) % 100000);
                break;
        }
    }
}

static void both_forever(void) {
    while (!atomic_load(&shared->stop)) {
        work();
        stepped_work();
        atomic_fetch_add(&shared->calls, 1);
    }
}

static void unload_under_load(void) {
    pid_t children[6];
    for (int i = 0; i < 6; i++) children[i] = spawn(i < 3 ? both_forever : write_forever);
    for (unsigned i = 0; i < count_of(100, 4); i++) {
        sleep_ms(20);
        uint64_t start = now_ns();
        int error = unload_module();
        CHECK(error == 0, "%d", error);
        CHECK(now_ns() - start < 20 * SECOND);
        CHECK(access(SYSFS "stats", F_OK) != 0);
        CHECK(load_module("") == 0);
    }
    /* and with a long spin in flight */
    CHECK(command("-*") == 0);
    atomic_store(&shared->stop, 1);
    for (int i = 0; i < 6; i++) reap(children[i]);
    clean();
    CHECK(command("+" WORK " 10000000000") == 0 && enable(true) == 0);
    pid_t pid = spawn(call_once_on_go);
    atomic_store(&shared->go, 1);
    for (int wait = 0; wait < 2000 && !row_of(WORK).hits; wait++) sleep_ms(1);
    uint64_t start = now_ns();
    CHECK(unload_module() == 0);
    CHECK(now_ns() - start < 2 * SECOND, "%llu", (unsigned long long)(now_ns() - start));
    CHECK(reap(pid) == 0);
    CHECK(work_byte() == untouched_byte);
    CHECK(load_module("") == 0);
}

static void add_and_remove_forever(void) {
    for (;;) {
        command("+" WORK " 0");
        command("-" WORK);
    }
}

/* A kernel function that sets and takes out breakpoints gives up for a task that is being killed.
 */
static void killed_writers_leave_nothing(void) {
    unsigned random = 4, rounds = count_of(2000, 150);
    CHECK(enable(true) == 0);
    for (unsigned i = 0; i < rounds; i++) {
        pid_t pid = spawn(add_and_remove_forever);
        struct timespec pause = {0, 1000000 + rand_r(&random) % 4000000};
        nanosleep(&pause, NULL);
        finish(pid);
        int error = command("-" WORK);
        CHECK(error == 0 || error == ENOENT, "%d", error);
        if (work_byte() == untouched_byte) continue;
        CHECK(false, "a breakpoint is left after %u writers", i);
        break;
    }
}

static void churn_under_load(void) {
    pid_t children[4];
    for (int i = 0; i < 4; i++) children[i] = spawn(call_forever);
    CHECK(enable(true) == 0);
    unsigned rounds = count_of(10000, 150);
    uint64_t start = now_ns();
    for (unsigned i = 0; i < rounds; i++) {
        int added = command(i % 3 ? "+" WORK " 0" : "+" WORK " 1000 pid=%d", children[i % 4]);
        int removed = command("-" WORK);
        if (added || removed) {
            CHECK(!added && !removed, "%d %d", added, removed);
            break;
        }
    }
    printf("  %u adds and removes, %llu us each\n", rounds,
           (unsigned long long)(now_ns() - start) / rounds / 1000);
    CHECK(atomic_load(&shared->calls) > 100);
    for (int i = 0; i < 4; i++) finish(children[i]);
    CHECK(work_byte() == untouched_byte);
}

/* Bad input and leaks */

static bool is_expected(int error) {
    return !error || error == EINVAL || error == ENOENT || error == ENOEXEC ||
           error == ENAMETOOLONG || error == ERANGE || error == EEXIST || error == ENOSPC;
}

static void corrupt_files(unsigned count, const char* seed_file, unsigned* random) {
    FILE* file = fopen(seed_file, "rb");
    char *good = malloc(1 << 20), *bad = malloc(1 << 20);
    size_t size = fread(good, 1, 1 << 20, file);
    fclose(file);
    for (unsigned i = 0; i < count; i++) {
        size_t length = size;
        memcpy(bad, good, size);
        if (rand_r(random) % 4 == 0) length = (size_t)rand_r(random) % size;
        for (unsigned change = rand_r(random) % 16; change && length; change--) {
            /* mostly in the headers and tables: the first and the last parts */
            size_t at = (size_t)rand_r(random) % 3 == 0 ? (size_t)rand_r(random) % length
                        : (size_t)rand_r(random) % 2 == 0
                            ? (size_t)rand_r(random) % 128
                            : length - 1 - (size_t)rand_r(random) % (length < 4096 ? length : 4096);
            if (at >= length) continue;
            static const unsigned char values[] = {0, 1, 0x7f, 0x80, 0xff};
            bad[at] = (char)(rand_r(random) % 2 ? values[rand_r(random) % 5] : rand_r(random));
        }
        write_file("/tmp/corrupt", bad, length);
        int error = command("+/tmp/corrupt:library_work 0");
        CHECK(is_expected(error), "%d", error);
        if (!error) {
            CHECK(enable(true) == 0 || true);
            enable(false);
        }
        command("-*");
    }
    free(good);
    free(bad);
}

static void random_commands(unsigned count, unsigned* random) {
    static const char* const parts[] = {"+",           "-",     "=",
                                        "*",           ":",     " ",
                                        "/",           WORK,    SELF ":stepped_work",
                                        SELF,          "/tmp",  "/bin/victim_pie:program_work",
                                        "pid=",        "pid=1", "1000",
                                        "10000000001", "-1",    "\n",
                                        "\t",          "x",     "0x",
                                        "0x1000",      "%s%n",  "\xff",
                                        ".."};
    for (unsigned i = 0; i < count; i++) {
        char text[1024];
        size_t length = 0;
        for (unsigned n = 1 + rand_r(random) % 6; n; n--) {
            const char* part = parts[(unsigned)rand_r(random) % (sizeof(parts) / sizeof(*parts))];
            memcpy(text + length, part, strlen(part));
            length += strlen(part);
        }
        if (rand_r(random) % 8 == 0) text[(size_t)rand_r(random) % length] = (char)rand_r(random);
        int error = put(i % 2 ? SYSFS "targets" : "/dev/speed_bump", text, length);
        CHECK(is_expected(error), "%.*s: %d", (int)length, text, error);
        if (i % 64 == 0) enable(i / 64 % 2);
    }
    enable(false);
    char *list = slurp(SYSFS "targets_list"), *save = NULL;
    for (char* line = strtok_r(list, "\n", &save); line; line = strtok_r(NULL, "\n", &save))
        CHECK(!strncmp(line, "/bin/", 5) && strstr(line, " offset=0x"), "'%s'", line);
    free(list);
    command("-*");
}

static void bad_input_leaks_nothing(void) {
    unsigned random = 20261121;
    corrupt_files(20, "/lib/libvictim.so", &random);
    random_commands(200, &random);
    unsigned long long before = kernel_memory_kib();
    unsigned files = count_of(1000, 100), commands = count_of(10000, 1000);
    corrupt_files(files, "/lib/libvictim.so", &random);
    random_commands(commands, &random);
    unsigned long long after = kernel_memory_kib();
    printf("  %u corrupt files and %u random commands: kernel memory %llu -> %llu KiB\n", files,
           commands, before, after);
    CHECK(is_debug_kernel() || after < before + 1024);
}

static void use_leaks_nothing(void) {
    unsigned long long before = 0;
    unsigned rounds = count_of(20000, 1000);
    for (unsigned i = 0; i < rounds + 200; i++) {
        if (i == 200) before = kernel_memory_kib();
        command("+" WORK " 60000 pid=%d", getpid());
        enable(true);
        if (i % 50 == 0) work();
        command(i % 2 ? "-" WORK : "-*");
        if (i % 3 == 0) enable(false);
    }
    enable(false);
    unsigned long long after = kernel_memory_kib();
    printf("  %u targets made and removed: kernel memory %llu -> %llu KiB\n", rounds, before,
           after);
    CHECK(is_debug_kernel() || after < before + 256 + rounds / 10);
}

/* sbctl */

/* Runs sbctl; its exit status, and what it printed. */
static int sbctl(const char* arguments, char* output, size_t space) {
    char line[1024];
    snprintf(line, sizeof(line), "/bin/sbctl %s 2>&1", arguments);
    fflush(stdout);
    FILE* pipe = popen(line, "r");
    size_t length = pipe ? fread(output, 1, space - 1, pipe) : 0;
    output[length] = '\0';
    int status = pipe ? pclose(pipe) : -1;
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

static void sbctl_speaks(void) {
    static const struct {
        const char* arguments;
        int status;
        const char* says;
    } cases[] = {
        {"--help", 0, "Examples:"},
        {"", 2, ""},
        {"nonsense", 2, ""},
        {"add", 2, ""},
        {"add " WORK " 5minutes", 2, "no known unit"},
        {"add " WORK " 5us --pid=-1", 2, ""},
        {"add " WORK " 20us", 0, ""},
        {"add " WORK " 20us", 1, "is there already"},
        {"add " SELF ":stepped_work --pid=1", 0, ""},
        {"add /no/such:f", 1, "no such file"},
        {"add /dev/null:f", 1, "not a program"},
        {"add '/a b:f 5'", 1, "malformed"},
        {"add nonsense", 1, "malformed"},
        {"add " SELF ":vex_entry", 1, "known to be safe to probe"},
        {"add " SELF ":f 11s", 1, "over 10 s"},
        {"update " WORK " 30us --pid=1", 0, ""},
        {"update " WORK, 2, ""},
        {"delay 7us", 0, ""},
        {"enable", 0, ""},
        {"status", 0, "enabled:        yes\ntargets:        2 of 64\n"},
        {"list", 0, WORK "                30us             0"},
        {"list --json", 0, "\"schema\": \"speedbump/sbctl-list/1\""},
        {"list --json", 0, "\"delay_ns\": 1000000"},
        {"status --json", 0, "\"default_delay_ns\": 7000"},
        {"disable", 0, ""},
        {"remove " WORK, 0, ""},
        {"remove " WORK, 1, "no such target"},
        {"remove '*'", 1, "malformed"},
        {"list", 0, "stepped_work"},
        {"clear", 0, ""},
        {"status", 0, "targets:        0 of 64"},
    };
    char output[4096], symbol[200];
    for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); i++) {
        int status = sbctl(cases[i].arguments, output, sizeof(output));
        CHECK(status == cases[i].status && strstr(output, cases[i].says), "sbctl %s: %d %s",
              cases[i].arguments, status, output);
    }
    memset(symbol, 's', sizeof(symbol));
    snprintf(symbol + 150, 2, "%s", "");
    char arguments[400];
    snprintf(arguments, sizeof(arguments), "add %s:%s", SELF, symbol);
    CHECK(sbctl(arguments, output, sizeof(output)) == 1 && strstr(output, "longer than"), "%s",
          output);
    CHECK(unload_module() == 0);
    CHECK(sbctl("list", output, sizeof(output)) == 1 && strstr(output, "is not loaded"), "%s",
          output);
    CHECK(load_module("max_targets=1") == 0);
    CHECK(sbctl("add " WORK, output, sizeof(output)) == 0, "%s", output);
    CHECK(sbctl("add " SELF ":stepped_work", output, sizeof(output)) == 1 &&
              strstr(output, "limit of targets"),
          "%s", output);
    CHECK(unload_module() == 0 && load_module("") == 0);
}

/* Cost */

static double per_call_ns(void (*function)(void), unsigned calls) {
    double best = 1e18;
    /* rounds short enough that many are not interrupted, on a machine that is shared */
    for (int round = 0; round < 150; round++) {
        uint64_t start = now_ns();
        for (unsigned i = 0; i < calls; i++) function();
        double took = (double)(now_ns() - start) / calls;
        if (took < best) best = took;
    }
    return best;
}

/* A BPF program that does nothing, attached as a uprobe to this process; -1 where that can't be. */
static int attach_empty_bpf(unsigned long long offset) {
    struct bpf_insn program[] = {
        {.code = BPF_ALU64 | BPF_MOV | BPF_K, .dst_reg = BPF_REG_0, .imm = 0},
        {.code = BPF_JMP | BPF_EXIT},
    };
    union bpf_attr load = {.prog_type = BPF_PROG_TYPE_KPROBE,
                           .insn_cnt = 2,
                           .insns = (uintptr_t)program,
                           .license = (uintptr_t) "GPL"};
    char* type = slurp("/sys/bus/event_source/devices/uprobe/type");
    struct perf_event_attr attribute = {.size = sizeof(attribute),
                                        .type = (uint32_t)atoi(type),
                                        .uprobe_path = (uintptr_t)SELF,
                                        .probe_offset = offset};
    free(type);
    int bpf = (int)syscall(SYS_bpf, BPF_PROG_LOAD, &load, sizeof(load));
    int event = (int)syscall(SYS_perf_event_open, &attribute, 0, -1, -1, PERF_FLAG_FD_CLOEXEC);
    if (bpf < 0 || event < 0 || ioctl(event, PERF_EVENT_IOC_SET_BPF, bpf) ||
        ioctl(event, PERF_EVENT_IOC_ENABLE, 0)) {
        close(event);
        event = -1;
    }
    close(bpf);
    return event;
}

struct costs {
    double plain, probed, filtered, outside, empty, bpf;
};

static void keep_least(double* least, double value) {
    if (value > 0 && (*least <= 0 || value < *least)) *least = value;
}

static void measure_costs(const char* name, void (*function)(void), struct costs* least) {
    keep_least(&least->plain, per_call_ns(function, 1000));
    CHECK(command("+%s 0", name) == 0 && enable(true) == 0);
    unsigned long long offset = row_of(name).offset;
    keep_least(&least->probed, per_call_ns(function, 50));
    CHECK(command("=%s 0 pid=%d", name, getpid()) == 0);
    keep_least(&least->filtered, per_call_ns(function, 50));
    CHECK(command("=%s 0 pid=4194000", name) == 0);
    keep_least(&least->outside, per_call_ns(function, 1000));
    command("-*");
    char event[200];
    int length = snprintf(event, sizeof(event), "p:empty " SELF ":0x%llx", offset);
    if (!put("/sys/kernel/tracing/uprobe_events", event, (size_t)length) &&
        !put("/sys/kernel/tracing/events/uprobes/empty/filter", "common_pid == 1234567", 21) &&
        !put("/sys/kernel/tracing/events/uprobes/empty/enable", "1", 1))
        keep_least(&least->empty, per_call_ns(function, 50));
    put("/sys/kernel/tracing/events/uprobes/empty/enable", "0", 1);
    put("/sys/kernel/tracing/uprobe_events", "-:empty", 7);
    int event_fd = attach_empty_bpf(offset);
    if (event_fd >= 0) keep_least(&least->bpf, per_call_ns(function, 50));
    close(event_fd);
    enable(false);
}

static void cost_of_a_hit(void) {
    static const struct {
        const char *name, *kind;
        void (*function)(void);
    } sites[] = {{WORK, "emulated", work}, {SELF ":stepped_work", "single-stepped", stepped_work}};
    for (int i = 0; i < 2; i++) {
        struct costs least = {0};
        /* in turn: a host may well run the machine at half its speed for a second */
        for (int pass = 0; pass < 5; pass++)
            measure_costs(sites[i].name, sites[i].function, &least);
        printf(
            "  %s: plain %.0f ns, module %.0f, with a filter %.0f, outside the filter %.0f, "
            "trace event %.0f, empty BPF uprobe %.0f\n",
            sites[i].kind, least.plain, least.probed, least.filtered, least.outside, least.empty,
            least.bpf);
        printf("  %s: module / trace event = %.2f, module / BPF = %.2f\n", sites[i].kind,
               least.empty > 0 ? least.probed / least.empty : 0,
               least.bpf > 0 ? least.probed / least.bpf : 0);
        if (least.bpf > 0) CHECK(least.probed < least.bpf * 1.5);
        CHECK(least.outside < least.plain * 1.5 + 20);
        if (least.empty > 0) CHECK(least.probed < least.empty * 1.5);
    }
}

/* Of the debug kernel, which frees memory late and so is asked what nobody points to any more. */
static void no_memory_is_lost(void) {
    for (int scan = 0; scan < 3; scan++) {
        sleep_ms(2000); /* what is younger is not reported */
        CHECK(put(KMEMLEAK, "scan", 4) == 0);
    }
    char* text = slurp(KMEMLEAK);
    CHECK(!strstr(text, "speed_bump"), "%s", text);
    free(text);
}

static const struct {
    const char* name;
    void (*run)(void);
} tests[] = {
#define TEST(name) \
    { #name, name }
    TEST(files_and_formats),
    TEST(errno_of_commands),
    TEST(nothing_is_smuggled_in),
    TEST(lengths),
    TEST(limits),
    TEST(kinds_of_files),
    TEST(may_not_read),
    TEST(only_root_writes),
    TEST(update_keeps_hits),
    TEST(default_delay),
#if defined(__x86_64__)
    TEST(sites_that_are_refused),
#endif
    TEST(a_name_that_changes_is_not_opened),
    TEST(live_and_without_trace),
    TEST(delays_are_held),
    TEST(counts_are_exact),
    TEST(kinds_of_programs),
    TEST(symbol_rules),
    TEST(huge_files),
    TEST(filter_covers_a_process),
    TEST(filter_covers_those_before),
    TEST(filter_covers_daemons),
    TEST(filter_survives_exec),
    TEST(filter_covers_threads),
    TEST(filter_covers_namespaces),
    TEST(filter_is_as_the_writer_sees),
    TEST(filter_of_everyone),
    TEST(filter_of_a_number_to_come),
    TEST(filter_moves),
    TEST(filter_against_forks),
    TEST(kernel_helpers_are_no_loop),
    TEST(spins_end_early),
    TEST(nobody_waits_for_a_spin),
    TEST(a_spin_shares_its_cpu),
    TEST(the_list_is_whole_lines),
    TEST(readers_take_little_memory),
    TEST(many_targets),
    TEST(targets_die_with_their_owner),
    TEST(a_device_holds_it_on),
    TEST(unmounting),
    TEST(overlay),
    TEST(unload_under_load),
    TEST(killed_writers_leave_nothing),
    TEST(churn_under_load),
    TEST(bad_input_leaks_nothing),
    TEST(use_leaks_nothing),
    TEST(no_memory_is_lost),
    TEST(sbctl_speaks),
    TEST(cost_of_a_hit),
};

int main(int argc, char** argv) {
    int passed = 0, failed = 0, skipped = 0;
    const int total = (int)(sizeof(tests) / sizeof(*tests));
    full_counts = getenv("SB_FULL") && !strcmp(getenv("SB_FULL"), "1");
    untouched_byte = work_byte();
    shared = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    int error = load_module("");
    if (shared == MAP_FAILED || error) {
        printf("can't load the module: %s\n0 passed, %d failed, 0 skipped\n", strerror(error),
               total);
        return 1;
    }
    for (int i = 0; i < total; i++) {
        bool wanted = argc < 2;
        for (int name = 1; name < argc; name++)
            wanted = wanted || !strncmp(tests[i].name, argv[name], strlen(argv[name]));
        if (!wanted) continue;
        const char* reason = NULL;
        if (tests[i].run == sbctl_speaks && access("/bin/sbctl", X_OK)) reason = "no sbctl given";
        if (tests[i].run == no_memory_is_lost && !is_debug_kernel()) reason = "no debug kernel";
        if (reason) {
            printf("SKIP %s: %s\n", tests[i].name, reason);
            skipped++;
            continue;
        }
        failures = 0;
        clean();
        uint64_t start = now_ns();
        tests[i].run();
        clean();
        printf("%s %s (%llu ms)\n", failures ? "FAIL" : "ok  ", tests[i].name,
               (unsigned long long)((now_ns() - start) / MILLISECOND));
        fflush(stdout);
        *(failures ? &failed : &passed) += 1;
    }
    error = unload_module();
    if (error) {
        printf("FAIL the module can't be unloaded: %s\n", strerror(error));
        failed++;
    }
    printf("%d passed, %d failed, %d skipped\n", passed, failed, skipped);
    return failed ? 1 : 0;
}
