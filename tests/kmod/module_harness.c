/* SPDX-License-Identifier: MIT */
#include "module_harness.h"

int failures;
bool full_counts;
unsigned char untouched_byte;
struct shared* shared;

unsigned char work_byte(void) {
    return *(volatile unsigned char*)(uintptr_t)work;
}

uint64_t now_ns(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (uint64_t)time.tv_sec * SECOND + (uint64_t)time.tv_nsec;
}

void sleep_ms(unsigned ms) {
    usleep(ms * 1000);
}

unsigned count_of(unsigned full, unsigned quick) {
    return full_counts ? full : quick;
}

int put(const char* file, const void* text, size_t length) {
    int fd = open(file, O_WRONLY | O_CLOEXEC);
    if (fd < 0) return errno;
    ssize_t written = write(fd, text, length);
    int error = written < 0 ? errno : written != (ssize_t)length ? EIO : 0;
    close(fd);
    return error;
}

int command(const char* format, ...) {
    char text[8192];
    va_list arguments;
    va_start(arguments, format);
    int length = vsnprintf(text, sizeof(text), format, arguments);
    va_end(arguments);
    return put(SYSFS "targets", text, (size_t)length);
}

int enable(bool on) {
    return put(SYSFS "enabled", on ? "1\n" : "0\n", 2);
}

char* slurp(const char* file) {
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

static unsigned long long field(const char* line, const char* key) {
    char pattern[64];
    snprintf(pattern, sizeof(pattern), " %s=", key);
    const char* at = strstr(line, pattern);
    return at ? strtoull(at + strlen(pattern), NULL, 0) : 0;
}

struct row row_of(const char* name) {
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

unsigned long long stat_of(const char* key) {
    char *text = slurp(SYSFS "stats"), pattern[64];
    snprintf(pattern, sizeof(pattern), "%s: ", key);
    const char* at = strstr(text, pattern);
    unsigned long long value = at ? strtoull(at + strlen(pattern), NULL, 10) : ~0ull;
    free(text);
    return value;
}

unsigned list_lines(void) {
    char* list = slurp(SYSFS "targets_list");
    unsigned lines = 0;
    for (const char* at = list; *at; at++) lines += *at == '\n';
    free(list);
    return lines;
}

int load_module(const char* parameters) {
    int fd = open("/speed_bump.ko", O_RDONLY | O_CLOEXEC);
    int error = syscall(SYS_finit_module, fd, parameters, 0) ? errno : 0;
    close(fd);
    return error;
}

int unload_module(void) {
    return syscall(SYS_delete_module, "speed_bump", O_NONBLOCK) ? errno : 0;
}

void clean(void) {
    enable(false);
    command("-*");
    put(SYSFS "default_delay_ns", "1000000", 7);
    memset(shared, 0, sizeof(*shared));
}

uint64_t timed(void (*function)(void)) {
    uint64_t start = now_ns();
    function();
    return now_ns() - start;
}

pid_t spawn(void (*body)(void)) {
    fflush(stdout);
    pid_t pid = fork();
    if (pid) return pid;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    body();
    _exit(0);
}

int reap(pid_t pid) {
    int status = 0;
    while (waitpid(pid, &status, 0) < 0 && errno == EINTR) {
    }
    return status;
}

void finish(pid_t pid) {
    kill(pid, SIGKILL);
    reap(pid);
}

bool wait_for(atomic_int* flag, int value, unsigned ms) {
    for (uint64_t end = now_ns() + ms * MILLISECOND; now_ns() < end; sleep_ms(1))
        if (atomic_load(flag) >= value) return true;
    return atomic_load(flag) >= value;
}

void call_forever(void) {
    atomic_fetch_add(&shared->ready, 1);
    while (!atomic_load(&shared->stop)) {
        work();
        atomic_fetch_add(&shared->calls, 1);
    }
}

void call_once_on_go(void) {
    atomic_fetch_add(&shared->ready, 1);
    while (!atomic_load(&shared->go)) usleep(200);
    uint64_t start = now_ns();
    work();
    atomic_store(&shared->elapsed_ns, now_ns() - start);
    atomic_store(&shared->done_ns, now_ns());
    atomic_store(&shared->patched, work_byte() != untouched_byte);
    atomic_fetch_add(&shared->ready, 1);
}

int run_victim(const char* program, int calls) {
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

bool is_debug_kernel(void) {
    return !access(KMEMLEAK, F_OK);
}

int hold(int fd) {
    return ioctl(fd, SB_DEVICE_HOLD) ? errno : 0;
}

void sleep_forever(void) {
    for (;;) pause();
}

void write_file(const char* path, const void* data, size_t length) {
    int fd = open(path, O_CREAT | O_TRUNC | O_WRONLY | O_CLOEXEC, 0755);
    if (fd < 0 || write(fd, data, length) != (ssize_t)length) printf("  can't write %s\n", path);
    close(fd);
}

unsigned long long kernel_memory_kib(void) {
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
