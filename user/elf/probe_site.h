// SPDX-License-Identifier: MIT
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace speedbump::elf {

// How the kernel gets past the probed instruction (probe_site_MACHINE.cpp); decides what a hit
// costs. The order is the order of cost. Numbers are part of the BPF ABI (bpf/abi.h).
enum class SiteKind : uint8_t {
    kOptimizedNop = 0, // 5-byte nop that Linux 6.18 rewrites into a call; on aarch64 every nop
    kEmulated = 1,     // nop, push %reg, relative jmp, jcc, call
    kSingleStep = 2,   // executed out of line, with a trap after it
    kJump = 3,         // no trap at all: a jump to code of ours (engine/inprocess)
};

// Where in its function an instruction is.
enum class SitePosition : uint8_t {
    kEntry,  // the first one, or right after the endbr64 that is: nothing lives below the stack
    kInside, // anywhere else: a leaf function may keep data below the stack pointer
};

// The kernel that will carry the probe; unless it is known, the careful answer.
struct SiteOptions {
    bool kernel_optimizes_nop5 = false; // rewrites them into a call (6.18)
    bool nop5_is_safe = false;          // it does not, or forked children can make that call
    bool no_shadow_stacks = false;      // processes can't have them here
};

// What is known of one instruction as a place for a probe.
struct SiteVerdict {
    bool allowed = false;
    SiteKind kind = SiteKind::kSingleStep; // when allowed
    uint8_t length = 0;                    // of the instruction; 0: the bytes are none
    const char* reason = "";               // why not, to follow "its first instruction "
};

// Whether a probe on this instruction changes time and nothing else, on every kernel from 6.1 on:
// a list of decoded forms, of which each is known to be executed right (docs/probe-sites.md).
// `code` begins with the instruction and may go on after it; `address` is where the file says it
// is loaded, relocation aside. By machine: probe_site_MACHINE.cpp.
SiteVerdict judge_site(std::basic_string_view<unsigned char> code, uint64_t address,
                       const SiteOptions& options, SitePosition position);

// The instruction as text in AT&T syntax, "push %rbp"; empty where the bytes are none.
std::string instruction_text(std::basic_string_view<unsigned char> code, uint64_t address);

} // namespace speedbump::elf
