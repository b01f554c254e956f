// SPDX-License-Identifier: MIT
#include "stacks/leaf.h"

#include <set>
#include <vector>

#include "elf/words_aarch64.h"

namespace speedbump::stacks {
namespace {

using elf::is_word;

constexpr size_t kMaxInstructions = 512; // that are looked at
constexpr uint32_t kLink = 30;
constexpr uint32_t kStack = 31; // or the zero register, as the instruction has it

// Whether it leaves link register and stack pointer alone. By the top level of the encodings (Arm
// Architecture Reference Manual, C4.1); what writes to a vector register of that number counts as
// if it did not.
bool keeps_both(uint32_t word) {
    const uint32_t to = word & 31;
    const uint32_t base = word >> 5 & 31;
    if (is_word(word, 0x1c000000, 0x10000000)) { // immediates; some of these write sp, and not xzr
        const bool is_sum = is_word(word, 0x1f000000, 0x11000000);
        const bool is_logical = is_word(word, 0x1f800000, 0x12000000);
        const uint32_t flags = is_sum ? 0x20000000 : 0x60000000;
        return to != kLink &&
               (to != kStack || (!is_sum && !is_logical) || is_word(word, flags, flags));
    }
    if (is_word(word, 0x0e000000, 0x0a000000)) // registers; with sp where no flags are set
        return to != kLink && (to != kStack || is_word(word, 0x20000000, 0x20000000));
    if (is_word(word, 0x0e000000, 0x0e000000)) return to != kLink; // floating point, vectors
    if (!is_word(word, 0x0a000000, 0x08000000))
        return false;                            // all others that are no loads, stores
    if (is_word(word, 0x3a000000, 0x28000000)) { // pairs
        const bool writes_base = is_word(word, 0x00800000, 0x00800000);
        return to != kLink && (word >> 10 & 31) != kLink &&
               !(writes_base && (base == kStack || base == kLink));
    }
    if (is_word(word, 0x3b000000, 0x18000000)) return to != kLink; // from where it is
    if (is_word(word, 0x3b000000, 0x39000000)) return to != kLink; // with a scaled offset
    if (!is_word(word, 0x3b000000, 0x38000000)) return false;
    const bool writes_base = is_word(word, 0x00000400, 0x00000400); // before or after
    return to != kLink && !(writes_base && (base == kStack || base == kLink));
}

// Hints (signing among them, but not of another register), barriers, mrs, msr, svc.
bool is_harmless_system(uint32_t word) {
    return is_word(word, 0xfffff01f, 0xd503201f) || is_word(word, 0xfffff01f, 0xd503301f) ||
           (is_word(word, 0xfff00000, 0xd5300000) && (word & 31) != kLink) ||
           is_word(word, 0xfff00000, 0xd5100000) || is_word(word, 0xffe0001f, 0xd4000001);
}

// A stub of a PLT ends so: "add x16, x16, #offset" or "autia1716", and "br x17".
bool ends_stub(uint32_t before, uint32_t word) {
    return word == 0xd61f0220 && (is_word(before, 0xffc003ff, 0x91000210) || before == 0xd503219f);
}

} // namespace

// A way from there to a return on which nothing is done to either. One is enough: where a function
// has its stack pointer and its return address depends on the place alone, or it could not be
// unwound with tables either.
bool is_in_leaf(uint64_t pc, const ReadCode& code) {
    std::set<uint64_t> seen;
    std::vector<uint64_t> waiting = {pc};
    while (!waiting.empty()) {
        uint64_t at = waiting.back();
        waiting.pop_back();
        uint32_t before = 0;
        while (seen.size() < kMaxInstructions && seen.insert(at).second) {
            const auto word = code(at);
            if (!word) break;
            if (*word == 0xd65f03c0 || ends_stub(before, *word)) return true; // ret
            before = *word;
            if (elf::is_branch(*word)) {
                at += static_cast<uint64_t>(elf::branch_distance(*word));
                continue;
            }
            if (elf::is_conditional_branch(*word))
                waiting.push_back(at + static_cast<uint64_t>(elf::condition_distance(*word)));
            else if (!keeps_both(*word) && !is_harmless_system(*word))
                break;
            at += 4;
        }
    }
    return false;
}

} // namespace speedbump::stacks
