/* SPDX-License-Identifier: MIT */
/* What a call that hits a probe is delayed, and which names are found. */
#include "module_tests.h"

void live_and_without_trace(void) {
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

void delays_are_held(void) {
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

void counts_are_exact(void) {
    int calls = (int)count_of(20000, 2000);
    pthread_t threads[4];
    CHECK(command("+" WORK " 0") == 0 && enable(true) == 0);
    for (int i = 0; i < 4; i++) pthread_create(&threads[i], NULL, thread_calls, &calls);
    for (int i = 0; i < 4; i++) pthread_join(threads[i], NULL);
    CHECK(row_of(WORK).hits == 4ull * (unsigned)calls, "%llu", row_of(WORK).hits);
}

void kinds_of_programs(void) {
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

void symbol_rules(void) {
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

void huge_files(void) {
    const struct test_symbol wanted = {
        "wanted", STT_FUNC, STB_GLOBAL, 1, SB_TEST_CODE_ADDRESS + 0x124, 0};
    const struct {
        const char* what;
        struct test_elf elf;
    } cases[] = {
        {"a million symbols", {.symtab = &wanted, .symtab_count = 1, .filler_symbols = 1000000}},
        {"70,000 sections", {.symtab = &wanted, .symtab_count = 1, .filler_sections = 70000}},
        {"tables past 3 GiB", {.symtab = &wanted, .symtab_count = 1, .tables_at = 3ull << 30}},
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); i++) {
        int error;
        CHECK(make_elf("/tmp/huge", &cases[i].elf) == 0, "%s", strerror(errno));
        uint64_t start = now_ns();
        unsigned long long offset = offset_of("/tmp/huge", "wanted", &error);
        printf("  %s: %llu ms\n", cases[i].what,
               (unsigned long long)((now_ns() - start) / MILLISECOND));
        CHECK(!error && offset == SB_TEST_CODE_OFFSET + 0x124, "%s: %d", cases[i].what, error);
        CHECK(command("+/tmp/huge:missing") == ENOENT);
        unlink("/tmp/huge");
    }
}
