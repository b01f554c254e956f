// SPDX-License-Identifier: MIT
// A small library with something of everything that the ELF reader looks at.
int seed_data = 3;
_Thread_local int seed_thread;

static int seed_one(int x) { return x * 3 + seed_data; }
static int seed_two(int x) { return x + seed_thread; }
static int (*seed_choose(void))(int) { return seed_two; }
int seed_indirect(int) __attribute__((ifunc("seed_choose")));

int seed_switch(int n) {
    switch (n) {
        case 0: return seed_one(1);
        case 1: return seed_indirect(5) + 2;
        case 2: return seed_one(n) * 3;
        case 3: return seed_two(n) - 4;
        case 4: return seed_indirect(7) ^ 5;
        case 5: return n * 6;
        default: return -1;
    }
}

int seed_alias(int) __attribute__((alias("seed_switch")));

int seed_loop(int n) {
    int sum = 0;
    while (n-- > 0) sum += seed_switch(n);
    return sum;
}

int (*seed_table[])(int) = {seed_one, seed_two, seed_switch, seed_loop};
