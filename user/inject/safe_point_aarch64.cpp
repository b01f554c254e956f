// SPDX-License-Identifier: MIT
#include "inject/safe_point.h"

#include <algorithm>
#include <array>
#include <cstring>

namespace speedbump::inject {
namespace {

using process::RemoteModule;

constexpr size_t kMaxStackScan = 16 << 20;
// The first record of a signal's frame, of the vector registers: its kind and size. From there back
// in words, what the kernel writes into a frame: the processor's state, and two that are zero.
constexpr uint64_t kFirstRecord = uint64_t{528} << 32 | 0x46508001;
constexpr size_t kStateBack = 2;
constexpr size_t kLinkBack = 57;
constexpr size_t kFlagsBack = 58;
constexpr uint64_t kModeMask = 0x1f; // of the state; a 64-bit program's is 0

// A return address without its signature (PAC), for looking at only.
uint64_t unsigned_address(uint64_t address) {
    constexpr uint64_t kAddressBits = (uint64_t{1} << 48) - 1; // what programs get unasked
    return address & kAddressBits;
}

int64_t sign_extend(uint64_t value, unsigned bits) {
    return static_cast<int64_t>(value << (64 - bits)) >> (64 - bits);
}

constexpr uint64_t kPageOffset = 4095; // of adrp, whatever the kernel's pages are

// The slot through which an entry of a procedure linkage table jumps: [bti c] adrp x16, page;
// ldr x17, [x16, #offset]; add x16, x16, #offset; br x17.
std::optional<uint64_t> slot_of(uint64_t entry, const std::array<uint32_t, 5>& code) {
    constexpr uint32_t kBtiC = 0xd503245f;
    const size_t at = code[0] == kBtiC ? 1 : 0;
    const uint32_t adrp = code[at];
    const uint32_t load = code[at + 1];
    constexpr uint32_t kBranch = 0xd61f0220; // br x17
    if ((adrp & 0x9f00001f) != 0x90000010 || (load & 0xffc003ff) != 0xf9400211 ||
        code[at + 3] != kBranch)
        return std::nullopt;
    const uint64_t pages = (uint64_t{adrp >> 5 & 0x7ffff} << 2) | (adrp >> 29 & 3);
    const uint64_t page =
        ((entry + at * 4) & ~kPageOffset) + static_cast<uint64_t>(sign_extend(pages, 21) * 4096);
    return page + (load >> 10 & 0xfff) * 8;
}

} // namespace

bool SafePoints::called_from_allocator(const user_regs_struct& regs) const {
    if (allocator_.empty()) return false;
    std::array<uint64_t, 64> words = {};
    size_t bytes = memory_.read_some(regs.sp, words.data(), sizeof(words));
    return in_ranges(allocator_, unsigned_address(regs.regs[30])) ||
           std::any_of(words.begin(), words.begin() + bytes / 8, [&](uint64_t word) {
               return in_ranges(allocator_, unsigned_address(word));
           });
}

// memmove and its kin save nothing, so the link register has their return address. That alone is no
// proof (it may be left over from an earlier call), so the call in front of it is followed through
// the PLT to the name it was linked to.
bool SafePoints::is_leaf(const user_regs_struct& regs) const {
    const uint64_t back = regs.regs[30];
    if (!is_user_code(back)) return false;
    auto module = std::find_if(modules_->begin(), modules_->end(),
                               [&](const RemoteModule& m) { return m.contains_code(back); });
    if (module == modules_->end()) return false;
    const auto call = memory_.value<uint32_t>(back - 4);
    if (!call || *call >> 26 != 0x25) return false; // bl
    const uint64_t entry = back - 4 + static_cast<uint64_t>(sign_extend(*call & 0x3ffffff, 26) * 4);
    std::array<uint32_t, 5> code = {};
    if (memory_.read_some(entry, code.data(), sizeof(code)) != sizeof(code)) return false;
    const auto slot = slot_of(entry, code);
    if (!slot) return false;
    // The function may stand some way after its entry, but never before it.
    const auto target = memory_.value<uint64_t>(*slot);
    constexpr uint64_t kLongestLeaf = 4096;
    if (!target || regs.pc < *target || regs.pc - *target > kLongestLeaf) return false;
    const auto name = module->symbol_of_slot(*slot);
    return name && is_leaf_function(*name);
}

bool SafePoints::has_signal_frame(uint64_t stack_pointer, uint64_t stack_end) const {
    const uint64_t from = stack_pointer & ~uint64_t{15}; // so are frames aligned
    size_t size = std::min<uint64_t>(stack_end > from ? stack_end - from : 0, kMaxStackScan);
    std::vector<uint64_t> words(size / 8);
    words.resize(memory_.read_some(from, words.data(), words.size() * 8) / 8);
    for (size_t i = kFlagsBack; i < words.size(); i += 2)
        if (words[i] == kFirstRecord && words[i - kFlagsBack] == 0 && words[i - kLinkBack] == 0 &&
            (words[i - kStateBack] & kModeMask) == 0 && words[i - kStateBack] >> 32 == 0)
            return true;
    return false;
}

} // namespace speedbump::inject
