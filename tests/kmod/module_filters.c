/* SPDX-License-Identifier: MIT */
/* Which processes a target with pid= delays: those of a tree. */
#include "module_tests.h"

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

void filter_covers_a_process(void) {
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

void filter_covers_those_before(void) {
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

void filter_covers_daemons(void) {
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

void filter_survives_exec(void) {
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

void filter_covers_threads(void) {
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

void filter_covers_namespaces(void) {
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

void filter_is_as_the_writer_sees(void) {
    pid_t pid = spawn(write_in_namespace);
    CHECK(wait_for(&shared->ready, 1, 5000));
    CHECK(enable(true) == 0);
    outsider_is_untouched("outside the namespace");
    expect_delayed("process 1 of the writer");
    reap(pid);
}

void filter_of_everyone(void) {
    CHECK(command("+" WORK " 1000 pid=1") == 0 && enable(true) == 0);
    for (int i = 0; i < 3; i++) work();
    CHECK(row_of(WORK).hits == 3 && row_of(WORK).pid == 1);
}

void filter_of_a_number_to_come(void) {
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

void filter_moves(void) {
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
void filter_against_forks(void) {
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
void kernel_helpers_are_no_loop(void) {
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
