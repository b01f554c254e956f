/* SPDX-License-Identifier: MIT */
/* The code that is probed on x86-64, and what may not be. */
#include "module_tests.h"

__attribute__((noinline, used)) void work(void) {
    __asm__ volatile("nop");
}
__attribute__((noinline, used)) void stepped_work(void) {
    __asm__ volatile("mov %%rax, %%rax" ::: "memory");
}

const unsigned char return_code[4] = {0xc3};
const size_t return_size = 1;

void nop_entry(void);
void nop_behind(void);

/* Code of which any byte may be probed, and what may not. Only the nops are called. */
__asm__(
    ".text\n"
    ".type sled, @function\n"
    "sled: .fill 2400, 1, 0x90\n"
    ".type refused_entry, @function\n"
    "refused_entry: vmovd %xmm0, %eax; ret\n"
    ".type evex_entry, @function\n"
    "evex_entry: .byte 0x62, 0xf2, 0x7d, 0x48, 0x7a, 0xc6; ret\n"
    ".type repeated_entry, @function\n"
    "repeated_entry: rep stosb; ret\n"
    ".type locked_entry, @function\n"
    "locked_entry: lock incl (%rdi); ret\n"
    ".type exchange_entry, @function\n"
    "exchange_entry: .byte 0x41, 0x90; ret\n"
    ".type flags_entry, @function\n"
    "flags_entry: pushf; pop %rax; ret\n"
    ".globl nop_entry\n"
    ".type nop_entry, @function\n"
    "nop_entry: .byte 0x0f, 0x1f, 0x44, 0, 0; ret\n"
    ".globl nop_behind\n"
    ".type nop_behind, @function\n"
    "nop_behind: endbr64; .byte 0x0f, 0x1f, 0x44, 0, 0; ret\n"
    ".type nop_inside, @function\n"
    "nop_inside: endbr64; mov %rdi, -8(%rsp); .byte 0x0f, 0x1f, 0x44, 0, 0; ret\n");

/* From 6.18 on a probed 5-byte nop becomes a call that ends forked children. */
static bool nop5_is_refused(void) {
    struct utsname name;
    unsigned major = 0, minor = 0;
    return uname(&name) || sscanf(name.release, "%u.%u", &major, &minor) != 2 || major > 6 ||
           (major == 6 && minor >= 18);
}

static void call_nops(void) {
    for (int i = 0; i < 20; i++) {
        nop_entry();
        nop_behind();
    }
    _exit(0);
}

/* An instruction that the kernel may get wrong is refused, by name and by offset. */
void sites_that_are_refused(void) {
    static const char* const refused[] = {"refused_entry", "evex_entry",     "repeated_entry",
                                          "locked_entry",  "exchange_entry", "flags_entry"};
    static const char* const good[] = {"nop_behind", "nop_inside", "work"};
    const int of_nop = nop5_is_refused() ? EOPNOTSUPP : 0;
    unsigned long long offsets[3];
    for (size_t i = 0; i < sizeof(refused) / sizeof(*refused); i++)
        CHECK(command("+" SELF ":%s", refused[i]) == EOPNOTSUPP, "%s", refused[i]);
    for (size_t i = 0; i < sizeof(good) / sizeof(*good); i++) {
        CHECK(command("+" SELF ":%s", good[i]) == 0, "%s", good[i]);
        char name[64];
        snprintf(name, sizeof(name), SELF ":%s", good[i]);
        offsets[i] = row_of(name).offset;
        command("-*");
    }
    /* the 5-byte nop: at an entry, after its endbr64, and where something may lie below the stack
     */
    CHECK(command("+" SELF ":nop_entry 0") == of_nop);
    CHECK(command("+" SELF ":0x%llx 0", offsets[0] + 4) == of_nop);
    CHECK(command("+" SELF ":0x%llx", offsets[1] + 9) == EOPNOTSUPP);
    CHECK(command("+" SELF ":0x%llx 0", offsets[0]) == 0);
    /* in this process and, with what became of them, in its children */
    CHECK(enable(true) == 0);
    for (int i = 0; i < 20; i++) {
        nop_entry();
        nop_behind();
    }
    CHECK(reap(spawn(call_nops)) == 0);
    CHECK(row_of(SELF ":nop_entry").hits == (of_nop ? 0 : 40));
    CHECK(stat_of("targets") == (of_nop ? 1 : 3));
    CHECK(put("/dev/speed_bump", "+" SELF ":refused_entry", strlen("+" SELF ":refused_entry")) ==
          EOPNOTSUPP);
}
