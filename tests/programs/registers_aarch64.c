// SPDX-License-Identifier: MIT
/*
 * A library whose functions hold known values in all registers for a while and say whether they are
 * still there: what an attach must bring back. For Python, by ctypes.
 */
#define _GNU_SOURCE
#include <stdint.h>
#include <string.h>
#include <sys/auxv.h>
#include <sys/prctl.h>

#ifndef PR_SVE_SET_VL
#define PR_SVE_SET_VL 50
#endif
#define HAS_SVE (1UL << 22)  /* HWCAP_SVE */
#define HAS_SME (1UL << 23)  /* HWCAP2_SME */

/* Vectors, x3 to x30, flags, and the control and status of floating point. */
struct plain {
    unsigned char vectors[32][16];
    uint64_t general[28];
    uint64_t nzcv, fpcr, fpsr;
};

/* Those of the longest vectors, 256 bytes; of shorter ones the first. */
struct scalable {
    unsigned char vectors[32 * 256];
    unsigned char predicates[16 * 32];
    unsigned char first_faults[32];
};

/* Loads what is at `in`, runs `rounds` times around, and stores it at `out`. */
void hold_plain(long rounds, const struct plain *in, struct plain *out);
void hold_scalable(long rounds, const struct scalable *in, struct scalable *out);
void hold_matrix(long rounds);

__asm__(
    ".text\n"
    ".macro each_vector what\n"
    ".irp n,0,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16,17,18,19,20,21,22,23,24,25,26,27,28,29,30,31\n"
    "\\what \\n\n"
    ".endr\n"
    ".endm\n"
    ".macro load_q n\n ldr q\\n, [x1, #16 * \\n]\n .endm\n"
    ".macro store_q n\n str q\\n, [x2, #16 * \\n]\n .endm\n"
    ".macro each_general what\n"
    ".irp n,3,4,5,6,7,8,9,10,11,12,13,14,15,16,17,18,19,20,21,22,23,24,25,26,27,28,29,30\n"
    "\\what \\n\n"
    ".endr\n"
    ".endm\n"
    ".macro load_x n\n ldr x\\n, [x1, #512 + 8 * (\\n - 3)]\n .endm\n"
    ".macro store_x n\n str x\\n, [x2, #512 + 8 * (\\n - 3)]\n .endm\n"
    ".macro keep\n"
    " sub sp, sp, #160\n"
    " stp x19, x20, [sp]\n stp x21, x22, [sp, #16]\n stp x23, x24, [sp, #32]\n"
    " stp x25, x26, [sp, #48]\n stp x27, x28, [sp, #64]\n stp x29, x30, [sp, #80]\n"
    " stp d8, d9, [sp, #96]\n stp d10, d11, [sp, #112]\n stp d12, d13, [sp, #128]\n"
    " stp d14, d15, [sp, #144]\n"
    ".endm\n"
    ".macro take_back\n"
    " ldp x19, x20, [sp]\n ldp x21, x22, [sp, #16]\n ldp x23, x24, [sp, #32]\n"
    " ldp x25, x26, [sp, #48]\n ldp x27, x28, [sp, #64]\n ldp x29, x30, [sp, #80]\n"
    " ldp d8, d9, [sp, #96]\n ldp d10, d11, [sp, #112]\n ldp d12, d13, [sp, #128]\n"
    " ldp d14, d15, [sp, #144]\n"
    " add sp, sp, #160\n"
    ".endm\n"

    ".globl hold_plain\n"
    ".type hold_plain, %function\n"
    "hold_plain:\n"
    " keep\n"
    " each_vector load_q\n"
    " ldr x3, [x1, #736]\n msr nzcv, x3\n"
    " ldr x3, [x1, #744]\n msr fpcr, x3\n"
    " ldr x3, [x1, #752]\n msr fpsr, x3\n"
    " each_general load_x\n"
    "1: sub x0, x0, #1\n cbnz x0, 1b\n"
    " each_general store_x\n"
    " mrs x3, nzcv\n str x3, [x2, #736]\n"
    " mrs x3, fpcr\n str x3, [x2, #744]\n"
    " mrs x3, fpsr\n str x3, [x2, #752]\n"
    " each_vector store_q\n"
    " msr fpcr, xzr\n"
    " take_back\n"
    " ret\n"

    ".arch armv8.2-a+sve\n"
    ".macro load_z n\n ldr z\\n, [x1, #\\n, mul vl]\n .endm\n"
    ".macro store_z n\n str z\\n, [x2, #\\n, mul vl]\n .endm\n"
    ".macro each_predicate what\n"
    ".irp n,0,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15\n"
    "\\what \\n\n"
    ".endr\n"
    ".endm\n"
    ".macro load_p n\n ldr p\\n, [x3, #\\n, mul vl]\n .endm\n"
    ".macro store_p n\n str p\\n, [x4, #\\n, mul vl]\n .endm\n"
    ".globl hold_scalable\n"
    ".type hold_scalable, %function\n"
    "hold_scalable:\n"
    " keep\n"
    " add x3, x1, #8192\n add x4, x2, #8192\n"
    " add x5, x3, #512\n add x6, x4, #512\n"
    " each_vector load_z\n"
    " ldr p0, [x5]\n wrffr p0.b\n"
    " each_predicate load_p\n"
    "1: sub x0, x0, #1\n cbnz x0, 1b\n"
    " each_predicate store_p\n"
    " rdffr p0.b\n str p0, [x6]\n"
    " each_vector store_z\n"
    " take_back\n"
    " ret\n"

    ".globl hold_matrix\n"
    ".type hold_matrix, %function\n"
    "hold_matrix:\n"
    " .inst 0xd503457f\n" /* smstart za */
    "1: sub x0, x0, #1\n cbnz x0, 1b\n"
    " .inst 0xd503447f\n" /* smstop za */
    " ret\n"
    ".arch armv8-a\n");

static uint64_t state = 88172645463325252u;

static void fill(void *place, size_t size)
{
    for (size_t i = 0; i < size; i++) {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        ((unsigned char *)place)[i] = (unsigned char)(state >> 32);
    }
}

/* How many of the bytes are not what they were. */
static long differences(const void *one, const void *other, size_t size)
{
    long count = 0;

    for (size_t i = 0; i < size; i++)
        count += ((const unsigned char *)one)[i] != ((const unsigned char *)other)[i];
    return count;
}

long check_plain(long rounds)
{
    static struct plain in, out;

    fill(&in, sizeof(in));
    in.nzcv &= 0xf0000000;
    in.fpcr &= 0x1c00000; /* how it rounds, and whether it flushes to zero */
    in.fpsr &= 0x800009f;
    memset(&out, 0, sizeof(out));
    hold_plain(rounds, &in, &out);
    return differences(&in, &out, sizeof(in));
}

/* -1: this processor has no such vectors of that many bytes. */
long check_scalable(long rounds, unsigned long bytes)
{
    static struct scalable in, out;
    long length;

    if ((getauxval(AT_HWCAP) & HAS_SVE) == 0)
        return -1;
    length = prctl(PR_SVE_SET_VL, bytes, 0, 0, 0);
    if (length < 0 || (unsigned long)(length & 0xffff) != bytes)
        return -1;
    fill(&in, sizeof(in));
    /* What of a predicate was not there before must be there in what first faults leave. */
    memset(in.first_faults, 0, sizeof(in.first_faults));
    memset(in.first_faults, 0xff, bytes / 16);
    memset(&out, 0, sizeof(out));
    hold_scalable(rounds, &in, &out);
    return differences(in.vectors, out.vectors, 32 * bytes) +
           differences(in.predicates, out.predicates, 16 * (bytes / 8)) +
           differences(in.first_faults, out.first_faults, bytes / 8);
}

/* -1: this processor has no matrix registers. */
long use_matrix(long rounds)
{
    if ((getauxval(AT_HWCAP2) & HAS_SME) == 0)
        return -1;
    hold_matrix(rounds);
    return 0;
}
