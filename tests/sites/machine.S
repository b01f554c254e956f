/* SPDX-License-Identifier: MIT */
/*
 * machine_run(): loads `machine_in`, goes to `machine_target`. What runs there leaves by
 * machine_capture, which stores everything in `machine_out`, or by a fault, whose handler returns to
 * machine_leave.
 */
	.set FLAGS, 128
	.set XSAVE, 192

	.text
	.globl	machine_run
	.hidden	machine_run
	.type	machine_run, @function
machine_run:
	push	%rbx
	push	%rbp
	push	%r12
	push	%r13
	push	%r14
	push	%r15
	pushfq
	mov	%rsp, machine_own_stack(%rip)
	mov	machine_components(%rip), %eax
	xor	%edx, %edx
	xrstor64 machine_in+XSAVE(%rip)
	push	machine_in+FLAGS(%rip)
	popfq
	mov	machine_in+0(%rip), %rax
	mov	machine_in+8(%rip), %rcx
	mov	machine_in+16(%rip), %rdx
	mov	machine_in+24(%rip), %rbx
	mov	machine_in+32(%rip), %rsp
	mov	machine_in+40(%rip), %rbp
	mov	machine_in+48(%rip), %rsi
	mov	machine_in+56(%rip), %rdi
	mov	machine_in+64(%rip), %r8
	mov	machine_in+72(%rip), %r9
	mov	machine_in+80(%rip), %r10
	mov	machine_in+88(%rip), %r11
	mov	machine_in+96(%rip), %r12
	mov	machine_in+104(%rip), %r13
	mov	machine_in+112(%rip), %r14
	mov	machine_in+120(%rip), %r15
	jmp	*machine_target(%rip)

	.globl	machine_capture
	.hidden	machine_capture
machine_capture:
	mov	%rax, machine_out+0(%rip)
	mov	%rcx, machine_out+8(%rip)
	mov	%rdx, machine_out+16(%rip)
	mov	%rbx, machine_out+24(%rip)
	mov	%rsp, machine_out+32(%rip)
	mov	%rbp, machine_out+40(%rip)
	mov	%rsi, machine_out+48(%rip)
	mov	%rdi, machine_out+56(%rip)
	mov	%r8, machine_out+64(%rip)
	mov	%r9, machine_out+72(%rip)
	mov	%r10, machine_out+80(%rip)
	mov	%r11, machine_out+88(%rip)
	mov	%r12, machine_out+96(%rip)
	mov	%r13, machine_out+104(%rip)
	mov	%r14, machine_out+112(%rip)
	mov	%r15, machine_out+120(%rip)
	mov	machine_own_stack(%rip), %rsp
	pushfq
	pop	machine_out+FLAGS(%rip)
	mov	machine_components(%rip), %eax
	xor	%edx, %edx
	xsave64	machine_out+XSAVE(%rip)

	.globl	machine_leave
	.hidden	machine_leave
machine_leave:
	mov	machine_own_stack(%rip), %rsp
	mov	machine_components(%rip), %eax
	xor	%edx, %edx
	xrstor64 initial(%rip)
	popfq
	pop	%r15
	pop	%r14
	pop	%r13
	pop	%r12
	pop	%rbp
	pop	%rbx
	ret
	.size	machine_run, . - machine_run

/* A fault with a stack pointer that is no address. */
	.globl	machine_far_stack
	.hidden	machine_far_stack
machine_far_stack:
	movabs	$0x4000000000000000, %rsp
	ud2

	.section .rodata
	/* a component that is not in the header gets its initial value; MXCSR is read all the same */
	.balign	64
initial:
	.zero	24
	.long	0x1f80
	.zero	2816 - 28

	.bss
	.balign	64
	.globl	machine_in, machine_out, machine_target, machine_own_stack, machine_components
	.hidden	machine_in, machine_out, machine_target, machine_own_stack, machine_components
machine_in:
	.zero	192 + 2816
machine_out:
	.zero	192 + 2816
machine_target:
	.zero	8
machine_own_stack:
	.zero	8
machine_components:
	.zero	8

	.section .note.GNU-stack, "", @progbits
