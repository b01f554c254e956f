// SPDX-License-Identifier: MIT
#include "known.h"

namespace speedbump::sites {

std::vector<KnownCode> known_code(const Host& host) {
    // Up to the last kernel that has been seen to get it wrong; a later one may have been mended.
    const auto wrong = [&](const char* name, Bytes code, unsigned last) {
        const Known known = host.kernel <= last ? Known::kWrong : Known::kNothing;
        return KnownCode{name, std::move(code), {0}, known};
    };
    constexpr unsigned k6_18 = 0x0612, k7_2 = 0x0702;
    const Known over_red_zone = host.turns_nops_into_calls ? Known::kWrong : Known::kRight;
    // endbr64; mov %rdi,-8(%rsp); mov %rsi,-16(%rsp); nopl 0(%rax,%rax); mov -8(%rsp),%rax
    const Bytes leaf{0xf3, 0x0f, 0x1e, 0xfa, 0x48, 0x89, 0x7c, 0x24, 0xf8, 0x48, 0x89, 0x74,
                     0x24, 0xf0, 0x0f, 0x1f, 0x44, 0x00, 0x00, 0x48, 0x8b, 0x44, 0x24, 0xf8};
    const Bytes nop{0x0f, 0x1f, 0x44, 0x00, 0x00};
    const Bytes behind_endbr{0xf3, 0x0f, 0x1e, 0xfa, 0x0f, 0x1f, 0x44, 0x00, 0x00};
    return {
        wrong("vpbroadcastb %esi, %zmm16", {0x62, 0xe2, 0x7d, 0x48, 0x7a, 0xc6}, k7_2),
        wrong("vmovd %xmm0, %eax", {0xc5, 0xf9, 0x7e, 0xc0}, k7_2),
        wrong("vmovdqu %xmm0, -32(%rsp)", {0xc5, 0xfa, 0x7f, 0x44, 0x24, 0xe0}, k7_2),
        wrong("xchg %r8, %rax in 3 bytes", {0x49, 0x90}, k6_18),
        wrong("xchg %r8d, %eax", {0x41, 0x90}, k6_18),
        wrong("pushfq", {0x9c}, k7_2),
        wrong("rep stosb", {0xf3, 0xaa}, k7_2),
        {"nop of 5 bytes over a live red zone", leaf, {14}, over_red_zone},
        {"two probes side by side", {0x55, 0x48, 0x89, 0xe5}, {0, 1}, Known::kRight},
        {"a probe after a call", {0xe8, 0, 0, 0, 0, 0x58}, {0, 5}, Known::kRight},
        {"entered by a jump", {0xeb, 0x02, 0x90, 0x90, 0x55}, {0, 4}, Known::kRight},
        {"nop of 5 bytes", nop, {0}, Known::kRight, true},
        {"nop of 5 bytes at the end of a page", nop, {0}, Known::kRight, true, Place::kPageEnd},
        {"nop of 5 bytes across pages", nop, {0}, Known::kRight, true, Place::kAcrossPages},
        {"nop of 5 bytes behind endbr64", behind_endbr, {4}, Known::kRight, true},
        {"nop of 5 bytes, push", {0x0f, 0x1f, 0x44, 0x00, 0x00, 0x55}, {0, 5}, Known::kRight, true},
    };
}

} // namespace speedbump::sites
