/* SPDX-License-Identifier: MIT */
/* What a hit costs, beside a trace event and an empty BPF program. */
#include "module_tests.h"

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

void cost_of_a_hit(void) {
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
