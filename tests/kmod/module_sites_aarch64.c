/* SPDX-License-Identifier: MIT */
/* The code that is probed on aarch64, and what may not be. */
#include <sys/auxv.h>

#include "module_tests.h"

/* Kernels before 6.13 step over a nop. */
__attribute__((noinline, used)) void work(void) {
    __asm__ volatile("b 1f\n1:");
}
__attribute__((noinline, used)) void stepped_work(void) {
    __asm__ volatile("mov x0, x0" ::: "memory");
}

const unsigned char return_code[4] = {0xc0, 0x03, 0x5f, 0xd6};
const size_t return_size = 4;

/* What may not be probed is not called. The others compute, so that it is seen what a probe changes
 * in them; all give what they get, but with some of its bits changed. */
__asm__(
    ".text\n .p2align 2\n .arch armv8.5-a\n"
    ".type sled, %function\n"
    "sled: .fill 600, 4, 0xd503201f\n"
    ".type refused_entry, %function\n"
    "refused_entry: ldr x1, sled; ret\n"
    ".type vector_literal_entry, %function\n"
    "vector_literal_entry: ldr s1, sled; ret\n"
    ".type call_entry, %function\n"
    "call_entry: bl sled; ret\n"
    ".type indirect_entry, %function\n"
    "indirect_entry: blr x0; ret\n"
    ".type return_entry, %function\n"
    "return_entry: ret\n"
    ".type system_entry, %function\n"
    "system_entry: svc #0; ret\n"
    ".type flags_entry, %function\n"
    "flags_entry: mrs x0, nzcv; ret\n"
    ".type barrier_entry, %function\n"
    "barrier_entry: dmb ish; ret\n"
    ".type break_entry, %function\n"
    "break_entry: brk #5; ret\n"
    ".type atomic_entry, %function\n"
    "atomic_entry: ldadd x0, x1, [x2]; ret\n"
    ".type signal_return_entry, %function\n"
    "signal_return_entry: mov x8, #139; svc #0\n"
    /* x0 becomes x0 ^ 1 by an exclusive access */
    ".globl exclusive_flip\n .type exclusive_flip, %function\n"
    "exclusive_flip: sub sp, sp, #16; str x0, [sp]\n"
    "1: ldxr x1, [sp]; eor x1, x1, #1; stxr w2, x1, [sp]; cbnz w2, 1b\n"
    "ldr x0, [sp]; add sp, sp, #16; ret\n");

uint64_t exclusive_flip(uint64_t value);

/* Functions whose first instruction is of each kind that is probed: with and without probe they are
 * to give the same. Of those that are named for one the kernel itself does it, the others it steps.
 */
#define PROBED(name, code)                                                           \
    uint64_t name(uint64_t value, uint64_t* memory);                                 \
    __asm__(".text\n .p2align 2\n .arch armv8.5-a\n .globl " #name "\n .type " #name \
            ", %function\n" #name ": " code "; ret\n")
PROBED(does_b, "b 1f; mov x0, #0; 1: add x0, x0, #1");
PROBED(does_b_cond, "b.ne 1f; add x0, x0, #1; b 2f; 1: add x0, x0, #2; 2: nop");
PROBED(does_cbz, "cbz x0, 1f; add x0, x0, #3; 1: nop");
PROBED(does_cbnz, "cbnz w0, 1f; add x0, x0, #3; 1: nop");
PROBED(does_tbz, "tbz x0, #33, 1f; add x0, x0, #3; 1: nop");
PROBED(does_tbnz, "tbnz w0, #3, 1f; add x0, x0, #3; 1: nop");
PROBED(does_adr, "adr x2, .; adr x3, .; sub x2, x3, x2; add x0, x0, x2");
PROBED(does_adrp, "adrp x2, sled; adrp x3, sled; sub x2, x3, x2; add x0, x0, x2");
PROBED(does_br, "br x30");
PROBED(steps_nop, "nop; add x0, x0, #1");
PROBED(steps_bti, "bti c; add x0, x0, #1");
PROBED(steps_pac, "paciasp; add x0, x0, #1; autiasp");
PROBED(steps_thread, "mrs x2, tpidr_el0; mrs x3, tpidr_el0; sub x2, x2, x3; add x0, x0, x2");
PROBED(steps_mov, "mov w2, #7; add x0, x0, x2");
PROBED(steps_add, "add x0, x0, #5");
PROBED(steps_flags, "subs x2, x0, #5; cset x0, lt");
PROBED(steps_shift, "lsl x0, x0, #3");
PROBED(steps_csel, "csel x0, x0, x1, ne; mov x1, #0");
PROBED(steps_madd, "madd x0, x0, x0, x0");
PROBED(steps_load, "ldr x0, [x1, #8]");
PROBED(steps_store, "str x0, [x1, #16]; ldr x0, [x1, #16]");
PROBED(steps_pair, "stp x0, x1, [sp, #-16]!; ldp x0, x2, [sp], #16");
PROBED(steps_ordered, "ldar x2, [x1]; add x0, x0, x2");
PROBED(steps_float, "fmov d0, x0; fadd d0, d0, d0; fmov x0, d0");
PROBED(steps_vector, "movi d0, #0; fmov x2, d0; add x0, x0, x2");
PROBED(steps_dup, "dup v0.16b, w0; fmov x0, d0");

static const struct {
    const char* name;
    uint64_t (*call)(uint64_t value, uint64_t* memory);
} probed[] = {
#define ENTRY(name) \
    { #name, name }
    ENTRY(does_b),       ENTRY(does_b_cond), ENTRY(does_cbz),      ENTRY(does_cbnz),
    ENTRY(does_tbz),     ENTRY(does_tbnz),   ENTRY(does_adr),      ENTRY(does_adrp),
    ENTRY(does_br),      ENTRY(steps_nop),   ENTRY(steps_bti),     ENTRY(steps_pac),
    ENTRY(steps_thread), ENTRY(steps_mov),   ENTRY(steps_add),     ENTRY(steps_flags),
    ENTRY(steps_shift),  ENTRY(steps_csel),  ENTRY(steps_madd),    ENTRY(steps_load),
    ENTRY(steps_store),  ENTRY(steps_pair),  ENTRY(steps_ordered), ENTRY(steps_float),
    ENTRY(steps_vector), ENTRY(steps_dup),
#undef ENTRY
};
#define PROBED_COUNT (sizeof(probed) / sizeof(*probed))
#define VALUES 4

static const uint64_t values[VALUES] = {0, 8, 1ull << 33, 0xfffffffffffffff7};

static __attribute__((noinline)) void call_all(uint64_t results[PROBED_COUNT][VALUES]) {
    for (size_t i = 0; i < PROBED_COUNT; i++)
        for (size_t k = 0; k < VALUES; k++) {
            uint64_t memory[4] = {3, 5, 7, 9};
            results[i][k] = probed[i].call(values[k], memory);
        }
}

/* What an instruction of each kind does is the same with a probe on it, and a delay. */
static void probed_do_the_same(void) {
    uint64_t before[PROBED_COUNT][VALUES], probed_results[PROBED_COUNT][VALUES];
    call_all(before);
    for (size_t i = 0; i < PROBED_COUNT; i++)
        CHECK(
            command("+" SELF ":%s %u", probed[i].name, i % 3 == 0 ? 60000 : (unsigned)(i % 3)) == 0,
            "%s", probed[i].name);
    CHECK(enable(true) == 0);
    call_all(probed_results);
    for (size_t i = 0; i < PROBED_COUNT; i++) {
        char name[64];
        snprintf(name, sizeof(name), SELF ":%s", probed[i].name);
        CHECK(row_of(name).hits == VALUES, "%s: %llu", name, row_of(name).hits);
        for (size_t k = 0; k < VALUES; k++)
            CHECK(probed_results[i][k] == before[i][k], "%s of %llx: %llx, not %llx",
                  probed[i].name, (unsigned long long)values[k],
                  (unsigned long long)probed_results[i][k], (unsigned long long)before[i][k]);
    }
    clean();
}

/* Not where a trap would undo the access each time; right before it and behind it. */
static void exclusive_accesses_are_left_alone(void) {
    CHECK(command("+" SELF ":exclusive_flip 0") == 0);
    const unsigned long long entry = row_of(SELF ":exclusive_flip").offset;
    for (unsigned word = 1; word < 9; word++) {
        /* sub, str, ldxr, eor, stxr, cbnz, ldr, add, ret */
        const bool good = word == 1 || word == 5 || word == 6 || word == 7;
        CHECK(command("+" SELF ":0x%llx 0", entry + 4 * word) == (good ? 0 : EOPNOTSUPP), "%u",
              word);
    }
    CHECK(command("+" SELF ":0x%llx", entry + 2) == ENOENT);
    CHECK(enable(true) == 0);
    for (uint64_t value = 0; value < 20; value++) CHECK(exclusive_flip(value) == (value ^ 1));
    CHECK(stat_of("total_hits") >= 100 && row_of(SELF ":exclusive_flip").hits == 20);
    clean();
}

/* A page of functions that are called through a register once it is guarded: two begin with what
 * may be called so, and one does not. */
#define GUARDED_SIZE 4096
#define PROT_GUARDED 0x10 /* PROT_BTI */
extern char guarded_page[];
uint64_t guarded_bti(uint64_t value);
uint64_t guarded_pac(uint64_t value);
uint64_t guarded_bare(uint64_t value);
__asm__(
    ".pushsection .guarded, \"ax\", %progbits\n .p2align 12\n .arch armv8.5-a\n"
    ".globl guarded_page, guarded_bti, guarded_pac, guarded_bare\n"
    "guarded_page:\n"
    ".type guarded_bti, %function\n"
    "guarded_bti: bti c; add x0, x0, #1; ret\n"
    ".type guarded_pac, %function\n"
    "guarded_pac: paciasp; add x0, x0, #2; autiasp; ret\n"
    ".type guarded_bare, %function\n"
    "guarded_bare: add x0, x0, #3; ret\n"
    ".p2align 12\n"
    ".popsection\n");

typedef uint64_t (*volatile guarded_function)(uint64_t value);

static void call_without_a_pad(void) {
    const guarded_function function = guarded_bare;
    function(0);
}

/* The trap stands where the landing pad was, and the pad is stepped where memory is not guarded. */
static void landing_pads_are_probed(void) {
    const guarded_function bti = guarded_bti, pac = guarded_pac;
    if (!(getauxval(AT_HWCAP2) & HWCAP2_BTI)) {
        printf("  the processor guards no pages\n");
        return;
    }
    CHECK(mprotect(guarded_page, GUARDED_SIZE, PROT_READ | PROT_EXEC | PROT_GUARDED) == 0);
    const int status = reap(spawn(call_without_a_pad));
    CHECK(WIFSIGNALED(status) && WTERMSIG(status) == SIGILL, "the page is not guarded: %x", status);
    CHECK(command("+" SELF ":guarded_bti 60000") == 0 && command("+" SELF ":guarded_pac 0") == 0);
    CHECK(enable(true) == 0);
    for (uint64_t value = 0; value < 20; value++)
        CHECK(bti(value) == value + 1 && pac(value) == value + 2);
    CHECK(row_of(SELF ":guarded_bti").hits == 20 && row_of(SELF ":guarded_pac").hits == 20);
    clean();
}

/* An instruction that the kernel may get wrong is refused, by name and by offset. */
void sites_that_are_refused(void) {
    static const char* const refused[] = {"refused_entry",  "vector_literal_entry", "call_entry",
                                          "indirect_entry", "return_entry",         "system_entry",
                                          "flags_entry",    "barrier_entry",        "break_entry",
                                          "atomic_entry",   "signal_return_entry"};
    for (size_t i = 0; i < sizeof(refused) / sizeof(*refused); i++)
        CHECK(command("+" SELF ":%s", refused[i]) == EOPNOTSUPP, "%s", refused[i]);
    CHECK(put("/dev/speed_bump", "+" SELF ":refused_entry", strlen("+" SELF ":refused_entry")) ==
          EOPNOTSUPP);
    CHECK(command("+" SELF ":stepped_work") == 0);
    const unsigned long long offset = row_of(SELF ":stepped_work").offset;
    CHECK(command("+" SELF ":0x%llx", offset + 4) == EOPNOTSUPP); /* its ret */
    CHECK(command("+" SELF ":0x%llx", offset + 1) == ENOENT);
    clean();
    probed_do_the_same();
    exclusive_accesses_are_left_alone();
    landing_pads_are_probed();
}
