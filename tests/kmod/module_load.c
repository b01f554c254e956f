/* SPDX-License-Identifier: MIT */
/* Load, bad input, and what is left of them. */
#include "module_tests.h"

/* Load */

/*
 * What sets and takes out breakpoints and loads modules tells all processors of it. An emulator
 * that runs them by turns gives the other a whole turn each time that arm64 does so: as long as
 * that is busy, a test takes a hundred times as long, and once the kernel found one of them stuck
 * for 22 s.
 */
static void use_second_cpu(bool on) {
    if (getenv("SB_LOAD_ON_ONE_CPU")) put("/sys/devices/system/cpu/cpu1/online", on ? "1" : "0", 1);
}

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

void unload_under_load(void) {
    pid_t children[6];
    use_second_cpu(false);
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
    use_second_cpu(true);
}

static void add_and_remove_forever(void) {
    for (;;) {
        command("+" WORK " 0");
        command("-" WORK);
    }
}

/* A kernel function that sets and takes out breakpoints gives up for a task that is being killed.
 */
void killed_writers_leave_nothing(void) {
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

void churn_under_load(void) {
    pid_t children[4];
    use_second_cpu(false);
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
    use_second_cpu(true);
}

/* Bad input and leaks */

static bool is_expected(int error) {
    return !error || error == EINVAL || error == ENOENT || error == ENOEXEC ||
           error == ENAMETOOLONG || error == ERANGE || error == EEXIST || error == ENOSPC ||
           error == EOPNOTSUPP; /* a corrupt table may lead to what may not be probed */
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

void bad_input_leaks_nothing(void) {
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

void use_leaks_nothing(void) {
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

/* Of the debug kernel, which frees memory late and so is asked what nobody points to any more. */
void no_memory_is_lost(void) {
    for (int scan = 0; scan < 3; scan++) {
        sleep_ms(2000); /* what is younger is not reported */
        CHECK(put(KMEMLEAK, "scan", 4) == 0);
    }
    char* text = slurp(KMEMLEAK);
    CHECK(!strstr(text, "speed_bump"), "%s", text);
    free(text);
}
