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

/* Begins a delay of 10 s in a child, ends it, and gives the time from when `end` returns to the
 * child's return: emulated processors run by turns, and the child may have had none before. */
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
        uint64_t ended = now_ns();
        reap(pid);
        uint64_t done = atomic_load(&shared->done_ns);
        /* a killed child returns nowhere: its end is the parent's news of it */
        if (!done) done = now_ns();
        CHECK(done - start < SECOND, "%llu", (unsigned long long)(done - start));
        times[i] = done > ended ? done - ended : 0;
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
static int end_by_quit(pid_t pid) {
    return kill(pid, SIGQUIT);
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
        bool kills;
    } ways[] = {{"SIGKILL", end_by_kill, true},
                {"SIGQUIT", end_by_quit, true},
                {"disable", end_by_disable, false},
                {"remove", end_by_remove, false},
                {"a lower delay", end_by_lowering, false},
                {"disable and enable", end_by_toggle, false}};
    const uint64_t kill_cost = cost_of_a_kill();
    printf("  a sleeping process is killed in %llu us\n", (unsigned long long)kill_cost / 1000);
    /* what checks each of the kernel's steps slows them; one processor is shared with the kernel's
     * threads */
    const bool one_cpu = sysconf(_SC_NPROCESSORS_ONLN) == 1;
    const uint64_t enough = (is_debug_kernel() || one_cpu ? 20 : 1) * MILLISECOND;
    for (size_t i = 0; i < sizeof(ways) / sizeof(*ways); i++) {
        uint64_t other = ways[i].kills ? kill_cost : 0;
        uint64_t took = cut_short(ways[i].end);
        took = took > other ? took - other : 0;
        printf("  %s ends a delay of 10 s in %llu us\n", ways[i].name,
               (unsigned long long)took / 1000);
        CHECK(took <= enough, "%s", ways[i].name);
    }
}

static void handle_signal(int number) {
    (void)number;
    atomic_fetch_add(&shared->calls, 1);
}

static void call_with_handlers(void) {
    sigset_t blocked;
    signal(SIGQUIT, handle_signal);
    signal(SIGABRT, SIG_IGN);
    sigemptyset(&blocked);
    sigaddset(&blocked, SIGTRAP);
    sigprocmask(SIG_BLOCK, &blocked, NULL);
    call_once_on_go();
}

/* Signals that would dump core, but for what the process does about them. */
void signals_that_kill_nobody(void) {
    CHECK(command("+" WORK " 300000000") == 0 && enable(true) == 0);
    pid_t pid = spawn(call_with_handlers);
    CHECK(wait_for(&shared->ready, 1, 5000));
    atomic_store(&shared->go, 1);
    for (int wait = 0; wait < 2000 && !row_of(WORK).hits; wait++) sleep_ms(1);
    CHECK(!kill(pid, SIGTRAP) && !kill(pid, SIGABRT) && !kill(pid, SIGQUIT));
    CHECK(reap(pid) == 0);
    CHECK(atomic_load(&shared->calls) == 1);
    CHECK(atomic_load(&shared->elapsed_ns) >= 300 * MILLISECOND);
}

/* More than the kernel has slots of one memory for instructions that it steps over. */
#define CROWD 40

static void (*crowd_calls)(void);

static void* call_in_a_crowd(void* argument) {
    (void)argument;
    atomic_fetch_add(&shared->ready, 1);
    while (!atomic_load(&shared->go)) usleep(1000);
    uint64_t took = timed(crowd_calls), longest = atomic_load(&shared->elapsed_ns);
    while (took > longest && !atomic_compare_exchange_weak(&shared->elapsed_ns, &longest, took)) {
    }
    return NULL;
}

static void be_a_crowd(void) {
    pthread_t threads[CROWD];
    for (int i = 0; i < CROWD; i++) pthread_create(&threads[i], NULL, call_in_a_crowd, NULL);
    for (int i = 0; i < CROWD; i++) pthread_join(threads[i], NULL);
    atomic_store(&shared->done_ns, now_ns());
}

/* A process of threads that are all in a call of the function. */
static pid_t spawn_a_crowd(void (*function)(void), const char* name) {
    crowd_calls = function;
    pid_t pid = spawn(be_a_crowd);
    CHECK(wait_for(&shared->ready, CROWD, 5000));
    atomic_store(&shared->go, 1);
    for (int wait = 0; wait < 2000 && row_of(name).hits < CROWD; wait++) sleep_ms(1);
    CHECK(row_of(name).hits >= CROWD);
    return pid;
}

void a_crowd_is_delayed_at_once(void) {
    CHECK(command("+" SELF ":stepped_work 1000000000") == 0 && enable(true) == 0);
    reap(spawn_a_crowd(stepped_work, SELF ":stepped_work"));
    uint64_t longest = atomic_load(&shared->elapsed_ns);
    printf("  %d threads in a delay of 1 s: the longest took %llu ms\n", CROWD,
           (unsigned long long)(longest / MILLISECOND));
    CHECK(longest >= SECOND && longest < 1700 * MILLISECOND);
}

static void move_the_filter(void) {
    command("=" SELF ":stepped_work 10000000000 pid=1");
    atomic_fetch_add(&shared->calls, 1);
}

/* Whoever waits for spins in the handler keeps the lock meanwhile. */
void disabling_waits_for_nobody(void) {
    CHECK(command("+" SELF ":stepped_work 10000000000") == 0 && enable(true) == 0);
    pid_t crowd = spawn_a_crowd(stepped_work, SELF ":stepped_work");
    pid_t writer = spawn(move_the_filter);
    sleep_ms(300);
    CHECK(atomic_load(&shared->done_ns) == 0);
    printf("  the filter %s\n", atomic_load(&shared->calls) ? "waits for nobody" : "waits");
    uint64_t start = now_ns();
    CHECK(enable(false) == 0);
    reap(crowd);
    CHECK(now_ns() - start < SECOND, "%llu", (unsigned long long)(now_ns() - start));
    reap(writer);
}

/* Where the kernel emulates the instruction no slot is taken, and so none of the spins is in the
 * handler. */
void a_crowd_that_needs_no_slots(void) {
    CHECK(command("+" WORK " 60000") == 0 && enable(true) == 0);
    work();
    CHECK(command("=" WORK " 10000000000") == 0);
    pid_t crowd = spawn_a_crowd(work, WORK);
    CHECK(command("=" WORK " 10000000000 pid=1") == 0);
    CHECK(atomic_load(&shared->done_ns) == 0);
    CHECK(enable(false) == 0);
    reap(crowd);
}

/* What removes a trampoline of the kernel waits until each task has been seen outside of it. */
void a_spin_holds_up_no_tracer(void) {
    static const char* const tracer = "/sys/kernel/tracing/instances/speed_bump";
    char file[80];
    if (mkdir(tracer, 0755)) {
        printf("  the kernel has no tracing\n");
        return;
    }
    CHECK(command("+" WORK " 10000000000") == 0 && enable(true) == 0);
    snprintf(file, sizeof(file), "%s/set_ftrace_filter", tracer);
    CHECK(put(file, "do_sysinfo", 10) == 0);
    pid_t pid = spawn(call_once_on_go);
    CHECK(wait_for(&shared->ready, 1, 5000));
    snprintf(file, sizeof(file), "%s/current_tracer", tracer);
    CHECK(put(file, "function", 8) == 0);
    atomic_store(&shared->go, 1);
    for (int wait = 0; wait < 2000 && !row_of(WORK).hits; wait++) sleep_ms(1);
    uint64_t start = now_ns();
    CHECK(put(file, "nop", 3) == 0);
    uint64_t took = now_ns() - start;
    printf("  a tracer ends in %llu ms\n", (unsigned long long)(took / MILLISECOND));
    CHECK(atomic_load(&shared->done_ns) == 0);
    CHECK(enable(false) == 0);
    reap(pid);
    CHECK(rmdir(tracer) == 0);
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
