/* SPDX-License-Identifier: MIT */
/* What kmod/command.c, kmod/elf.c and kmod/site*.c use of the kernel, in terms of the C library. */
#pragma once

#include <elf.h>
#include <errno.h>
#include <limits.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/types.h>

typedef uint64_t u64;
typedef uint32_t u32;
typedef uint16_t u16;
typedef uint8_t u8;

#define ARRAY_SIZE(array) (sizeof(array) / sizeof(*(array)))

#ifndef LLONG_MAX
#define LLONG_MAX __LONG_LONG_MAX__
#endif

#define ELF_DATA ELFDATA2LSB
#if defined(__aarch64__)
#define ELF_ARCH EM_AARCH64
#else
#define ELF_ARCH EM_X86_64
#endif
#define ELF_ST_TYPE(info) ELF64_ST_TYPE(info)
#define ELF_ST_BIND(info) ELF64_ST_BIND(info)

#define fls(value) ((value) ? 32 - __builtin_clz(value) : 0)
#define min_t(type, a, b) ((type)(a) < (type)(b) ? (type)(a) : (type)(b))
#define check_mul_overflow(a, b, result) __builtin_mul_overflow(a, b, result)
#define check_add_overflow(a, b, result) __builtin_add_overflow(a, b, result)

#define GFP_KERNEL 0
#define kzalloc(size, flags) calloc(1, size)
#define kfree(memory) free(memory)
#define kvmalloc(size, flags) malloc(size)
#define kvmalloc_array(count, size, flags) reallocarray(NULL, count, size)
#define kvfree(memory) free(memory)
