/* SPDX-License-Identifier: MIT */
/* The end of a spin: by a signal, a command, and beside other work. */
#include "module_tests.h"

/* The end of a spin */

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

void spins_end_early(void) {
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

void nobody_waits_for_a_spin(void) {
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

void a_spin_shares_its_cpu(void) {
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
