/* SPDX-License-Identifier: MIT */
/* The functions that the benchmark calls: one for each kind of first instruction. */
    .text

    .macro function name
    .p2align 6
    .globl \name
    .type \name, @function
\name:
    .endm
    .macro done name
    .size \name, .-\name
    .endm

    function bench_nop5
    .byte 0x0f, 0x1f, 0x44, 0x00, 0x00
    ret
    done bench_nop5

    function bench_push
    push %rbp
    pop %rbp
    ret
    done bench_push

    /* What compilers emit with -fcf-protection: a push after endbr64. */
    function bench_endbr64
    endbr64
    push %rbp
    pop %rbp
    ret
    done bench_endbr64

    /* A prologue that moves first. */
    function bench_mov
    mov %rdi, %rax
    sub $8, %rsp
    push %rbx
    pop %rbx
    add $8, %rsp
    ret
    done bench_mov

    /* Nothing in it that the kernel emulates: stays single-stepped. */
    function bench_leaf
    mov %rdi, %rax
    ret
    done bench_leaf

    /* 10,000 functions for the attach benchmark. */
    .altmacro
    .macro numbered number
    function many_\number
    push %rbp
    pop %rbp
    ret
    done many_\number
    .endm
    .set count, 0
    .rept 10000
    numbered %count
    .set count, count + 1
    .endr

    /* Those of the first 2,000 by address. */
    .section .data.rel.ro, "aw", @progbits
    .balign 8
    .globl many_by_address
    .type many_by_address, @object
many_by_address:
    .macro listed number
    .quad many_\number
    .endm
    .set count, 0
    .rept 2000
    listed %count
    .set count, count + 1
    .endr
    .size many_by_address, .-many_by_address

    .section .note.GNU-stack, "", @progbits
