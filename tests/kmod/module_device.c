/* SPDX-License-Identifier: MIT */
/* The list, the device that owns targets, and file systems. */
#include "module_tests.h"

/* The list */

void the_list_is_whole_lines(void) {
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
void readers_take_little_memory(void) {
    CHECK(unload_module() == 0 && load_module("max_targets=1000") == 0);
    struct test_symbol symbol = {"f", STT_FUNC, STB_GLOBAL, 1, SB_TEST_CODE_ADDRESS, 0};
    struct test_elf elf = {.symtab = &symbol, .symtab_count = 1};
    CHECK(make_elf("/tmp/code", &elf) == 0);
    for (unsigned target = 0; target < 1000; target++)
        CHECK(command("+/tmp/code:0x%x 0", SB_TEST_CODE_OFFSET + target * SB_TEST_STEP) == 0);
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

void many_targets(void) {
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
            CHECK(command("+/tmp/code:0x%x 0", SB_TEST_CODE_OFFSET + target * SB_TEST_STEP) == 0);
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

void targets_die_with_their_owner(void) {
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
void a_device_holds_it_on(void) {
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

void unmounting(void) {
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

static const char* const over_victim = "/tmp/over/merged/victim";
static const char* const over_name = "/tmp/over/merged/victim:program_work";

static void mount_overlay(void) {
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
}

static void unmount_overlay(void) {
    CHECK(umount("/tmp/over/merged") == 0, "%s", strerror(errno));
    CHECK(umount("/tmp/over") == 0, "%s", strerror(errno));
}

void overlay(void) {
    const char *victim = over_victim, *name = over_name;
    mount_overlay();
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
    unmount_overlay();
}

/* Writes over the file's own bytes, as some installers do. */
static void write_over(const char* path, const void* data, size_t length, off_t offset) {
    int fd = open(path, O_WRONLY | O_CLOEXEC);
    CHECK(fd >= 0 && pwrite(fd, data, length, offset) == (ssize_t)length, "%s", strerror(errno));
    close(fd);
}

/* What a return would be written over. */
struct code {
    unsigned char bytes[sizeof(return_code)];
};

static struct code code_of(const char* path, off_t offset) {
    struct code code;
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    CHECK(fd >= 0 && pread(fd, code.bytes, return_size, offset) == (ssize_t)return_size, "%s",
          strerror(errno));
    close(fd);
    return code;
}

void a_file_that_is_written_to(void) {
    static const char *const file = "/tmp/written", *const name = "/tmp/written:program_work";
    fflush(stdout);
    CHECK(system("cp /bin/victim_pie /tmp/written") == 0);
    CHECK(command("+" WORK " 0") == 0 && command("+%s 0", name) == 0);
    const off_t offset = (off_t)row_of(name).offset;
    const struct code code = code_of(file, offset);
    write_over(file, return_code, return_size, offset);
    CHECK(enable(true) == ESTALE);
    CHECK(stat_of("enabled") == 0 && work_byte() == untouched_byte);
    CHECK(run_victim(file, 3) == 0 && row_of(name).hits == 0);
    /* as it was */
    write_over(file, code.bytes, return_size, offset);
    CHECK(enable(true) == 0 && work_byte() != untouched_byte);
    CHECK(run_victim(file, 3) == 0 && row_of(name).hits == 3);
    CHECK(enable(false) == 0);
    /* another file under the name is none of the target's */
    CHECK(system("cp /bin/victim_stripped /tmp/other && mv /tmp/other /tmp/written") == 0);
    CHECK(enable(true) == 0);
    CHECK(run_victim(file, 3) == 0 && row_of(name).hits == 3);
    CHECK(command("-%s", name) == 0);
    unlink(file);
}

void an_overlay_that_is_written_to(void) {
    mount_overlay();
    CHECK(command("+%s 0", over_name) == 0 && enable(true) == 0);
    CHECK(run_victim(over_victim, 3) == 0 && row_of(over_name).hits == 3);
    const off_t offset = (off_t)row_of(over_name).offset;
    const struct code code = code_of(over_victim, offset);
    write_over(over_victim, return_code, return_size, offset);
    CHECK(run_victim(over_victim, 4) == 0);
    CHECK(row_of(over_name).hits == 3, "%llu", row_of(over_name).hits);
    write_over(over_victim, code.bytes, return_size, offset);
    CHECK(run_victim(over_victim, 5) == 0);
    CHECK(row_of(over_name).hits == 8, "%llu", row_of(over_name).hits);
    CHECK(command("-%s", over_name) == 0);
    unmount_overlay();
}

static void exec_traced(void) {
    ptrace(PTRACE_TRACEME, 0, NULL, NULL);
    raise(SIGSTOP);
    execl(over_victim, over_victim, "3", NULL);
}

static void unload(void) {
    atomic_store(&shared->calls, (uint64_t)unload_module());
    atomic_store(&shared->stop, 1);
}

/* What an exec leaves to be done later is done before its debugger stops it. */
void unload_beside_a_stopped_exec(void) {
    int status;
    mount_overlay();
    CHECK(command("+%s 0", over_name) == 0 && enable(true) == 0);
    pid_t pid = spawn(exec_traced);
    CHECK(waitpid(pid, &status, 0) == pid && WIFSTOPPED(status));
    CHECK(!ptrace(PTRACE_SETOPTIONS, pid, NULL, (void*)PTRACE_O_TRACEEXEC));
    CHECK(!ptrace(PTRACE_CONT, pid, NULL, NULL));
    CHECK(waitpid(pid, &status, 0) == pid && status >> 8 == (SIGTRAP | PTRACE_EVENT_EXEC << 8));
    pid_t unloader = spawn(unload);
    CHECK(wait_for(&shared->stop, 1, 5000));
    CHECK(atomic_load(&shared->calls) == 0, "%llu",
          (unsigned long long)atomic_load(&shared->calls));
    CHECK(!ptrace(PTRACE_CONT, pid, NULL, NULL));
    CHECK(reap(pid) == 0);
    reap(unloader);
    CHECK(load_module("") == 0);
    unmount_overlay();
}

/* A process that has never had a breakpoint, and maps what it is told to: its child calls it. */
int map_and_fork(const char* path, const char* offset) {
    const off_t at = (off_t)strtoull(offset, NULL, 10), page = at & -4096;
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    char* code = mmap(NULL, 4096, PROT_READ | PROT_EXEC, MAP_PRIVATE, fd, page);
    if (code == MAP_FAILED) return 1;
    creat("/tmp/late.mapped", 0600);
    while (access("/tmp/late.fork", F_OK)) usleep(1000);
    pid_t pid = fork();
    if (pid) return reap(pid);
    creat("/tmp/late.forked", 0600);
    while (access("/tmp/late.go", F_OK)) usleep(1000);
    for (int i = 0; i < 3; i++) ((void (*)(void))(void*)(code + (at - page)))();
    _exit(0);
}

static bool wait_for_file(const char* path) {
    for (int wait = 0; wait < 5000 && access(path, F_OK); wait++) sleep_ms(1);
    return !access(path, F_OK);
}

/* A breakpoint can't be set while the file is too short for its place. */
void a_failed_renewal_is_tried_again(void) {
    static const char *const file = "/tmp/late", *const name = "/tmp/late:program_work";
    const pid_t number = getpid() + 4000;
    char text[16];
    fflush(stdout);
    CHECK(system("rm -f /tmp/late.*; cp /bin/victim_pie /tmp/late") == 0);
    CHECK(command("+%s 0 pid=%d", name, number) == 0 && enable(true) == 0);
    snprintf(text, sizeof(text), "%llu", row_of(name).offset);
    pid_t parent = fork();
    if (!parent) {
        execl(SELF, SELF, "--map", file, text, NULL);
        _exit(127);
    }
    CHECK(wait_for_file("/tmp/late.mapped"));
    CHECK(truncate(file, 0) == 0);
    snprintf(text, sizeof(text), "%d", number - 1);
    if (put("/proc/sys/kernel/ns_last_pid", text, strlen(text))) {
        printf("  the kernel has no ns_last_pid\n");
        finish(parent);
        return;
    }
    creat("/tmp/late.fork", 0600);
    CHECK(wait_for_file("/tmp/late.forked"));
    CHECK(kill(number, 0) == 0);
    sleep_ms(300);
    CHECK(system("cat /bin/victim_pie >/tmp/late") == 0);
    sleep_ms(2500);
    creat("/tmp/late.go", 0600);
    CHECK(reap(parent) == 0);
    CHECK(row_of(name).hits == 3, "%llu", row_of(name).hits);
    CHECK(command("-%s", name) == 0);
    CHECK(system("rm -f /tmp/late /tmp/late.*") == 0);
}
