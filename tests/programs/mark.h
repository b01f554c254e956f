// SPDX-License-Identifier: MIT
// USDT marks without arguments, as <sys/sdt.h> of SystemTap writes them, on an instruction.
#pragma once

#define MARK(instruction, provider, name) MARK_WITH_SEMAPHORE(instruction, provider, name, "0")

// `semaphore` is the name of a SEMAPHORE.
#define MARK_WITH_SEMAPHORE(instruction, provider, name, semaphore)      \
    __asm__ volatile("990: " instruction                                 \
                     "\n"                                                \
                     ".pushsection .note.stapsdt, \"\", \"note\"\n"      \
                     ".balign 4\n"                                       \
                     ".4byte 992f - 991f, 994f - 993f, 3\n"              \
                     "991: .asciz \"stapsdt\"\n"                         \
                     "992: .balign 4\n"                                  \
                     "993: .8byte 990b, _.stapsdt.base, " semaphore      \
                     "\n"                                                \
                     ".asciz \"" provider "\", \"" name                  \
                     "\", \"\"\n"                                        \
                     "994: .balign 4\n"                                  \
                     ".popsection\n"                                     \
                     ".ifndef _.stapsdt.base\n"                          \
                     ".pushsection .stapsdt.base, \"a\", \"progbits\"\n" \
                     "_.stapsdt.base: .space 1\n"                        \
                     ".popsection\n"                                     \
                     ".endif")

// A word that is above 0 while one of its marks is probed. Outside of all namespaces.
#define SEMAPHORE(name) [[gnu::section(".probes"), gnu::used]] volatile unsigned short name = 0
