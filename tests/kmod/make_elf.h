/* SPDX-License-Identifier: MIT */
/* Builds ELF files by hand: symbol tables that no linker would make, and as large as wanted. */
#pragma once

#include <elf.h>
#include <stddef.h>
#include <stdint.h>

/* What the code of every made file consists of, nops, and how long one is. */
#if defined(__aarch64__)
#define SB_TEST_MACHINE EM_AARCH64
#define SB_TEST_NOP \
    { 0x1f, 0x20, 0x03, 0xd5 }
#define SB_TEST_STEP 4
#else
#define SB_TEST_MACHINE EM_X86_64
#define SB_TEST_NOP \
    { 0x90 }
#define SB_TEST_STEP 1
#endif

/* The code segment: address, file offset and size. */
#define SB_TEST_CODE_ADDRESS 0x401000
#define SB_TEST_CODE_OFFSET 0x1000
#define SB_TEST_CODE_SIZE (0x1000 * SB_TEST_STEP)

struct test_symbol {
    const char* name;
    unsigned char type; /* STT_… */
    unsigned char bind; /* STB_… */
    uint16_t section;   /* SHN_…, or 1, the code */
    uint64_t address;
    uint16_t version; /* of .dynsym entries; 0x8000 hides */
};

struct test_elf {
    const struct test_symbol* symtab; /* NULL: no table */
    size_t symtab_count;
    const struct test_symbol* dynsym;
    size_t dynsym_count;
    size_t filler_symbols;  /* more of them in .symtab, in front */
    size_t filler_sections; /* more sections, in front; over 0xff00 numbers are extended */
    uint64_t tables_at; /* where in the file the tables begin (a sparse file below), 0: at once */
};

/* Writes the file; 0 or -1 with errno. */
int make_elf(const char* path, const struct test_elf* elf);
