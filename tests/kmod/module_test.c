/* SPDX-License-Identifier: MIT */
/*
 * Tests of speed_bump.ko. Runs as root in a machine of its own (tests/kmod/run.sh): loads the
 * module from /speed_bump.ko, probes its own functions in forked children and the victims beside
 * it.
 *
 * module_test [NAME...]   all tests, or those whose names begin so
 * Environment: SB_FULL=1 for the full counts of the long tests; SB_LOAD_ON_ONE_CPU=1 takes the
 * second processor off while tests make load.
 */
#include "module_tests.h"

static const struct {
    const char* name;
    void (*run)(void);
} tests[] = {
#define TEST(name) {#name, name},
    MODULE_TESTS(TEST)
#undef TEST
};

/* By the machine's clock: the longest takes 10 s of it. */
static void give_up(int number) {
    (void)number;
    static const char text[] = "FAIL: the test that runs has no end\n";
    ssize_t written = write(STDOUT_FILENO, text, sizeof(text) - 1);
    _exit(written > 0 ? 1 : 2);
}

int main(int argc, char** argv) {
    int passed = 0, failed = 0, skipped = 0;
    const int total = (int)(sizeof(tests) / sizeof(*tests));
    if (argc == 4 && !strcmp(argv[1], "--map")) return map_and_fork(argv[2], argv[3]);
    full_counts = getenv("SB_FULL") && !strcmp(getenv("SB_FULL"), "1");
    untouched_byte = work_byte();
    shared = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    int error = load_module("");
    signal(SIGALRM, give_up);
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
        alarm(count_of(3600, 180));
        tests[i].run();
        clean();
        alarm(0);
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
