/* SPDX-License-Identifier: MIT */
/* Builds ELF files by hand: symbol tables that no linker would make, and as large as wanted. */
#pragma once

#include <elf.h>
#include <stddef.h>
#include <stdint.h>

#if defined(__aarch64__)
#define SB_TEST_MACHINE EM_AARCH64
#else
#define SB_TEST_MACHINE EM_X86_64
#endif

/* The code segment of every made file: address, file offset and size. */
#define SB_TEST_CODE_ADDRESS 0x401000
#define SB_TEST_CODE_OFFSET 0x1000
#define SB_TEST_CODE_SIZE 0x1000

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
