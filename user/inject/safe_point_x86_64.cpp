// SPDX-License-Identifier: MIT
#include "inject/safe_point.h"

#include <algorithm>
#include <array>
#include <cstring>

namespace speedbump::inject {
namespace {

using process::RemoteModule;

constexpr size_t kMaxStackScan = 16 << 20;
// cs, gs, fs and ss as the kernel stores them in a 64-bit signal frame, and the distance from the
// frame's first word (the restorer's address) to them.
constexpr uint64_t kFrameSelectors = 0x002b000000000033ULL;
constexpr size_t kSelectorsIndex = 24;

} // namespace

bool SafePoints::called_from_allocator(const user_regs_struct& regs) const {
    if (allocator_.empty()) return false;
    std::array<uint64_t, 64> words = {};
    size_t bytes = memory_.read_some(regs.rsp, words.data(), sizeof(words));
    return std::any_of(words.begin(), words.begin() + bytes / 8,
                       [&](uint64_t word) { return in_ranges(allocator_, word); });
}

// memmove and its kin push nothing, so the word at the stack pointer is their return address. That
// alone is no proof (it may be left over from an earlier call), so the call in front of it is
// followed through the PLT to the name it was linked to.
bool SafePoints::is_leaf(const user_regs_struct& regs) const {
    std::optional<uint64_t> back = memory_.value<uint64_t>(regs.rsp);
    if (!back || !is_user_code(*back)) return false;
    auto module = std::find_if(modules_->begin(), modules_->end(),
                               [&](const RemoteModule& m) { return m.contains_code(*back); });
    if (module == modules_->end()) return false;
    std::array<uint8_t, 6> call = {};
    if (memory_.read_some(*back - 6, call.data(), 6) != 6) return false;
    auto displacement = [](const uint8_t* bytes) {
        int32_t value;
        std::memcpy(&value, bytes, 4);
        return static_cast<uint64_t>(int64_t{value});
    };
    uint64_t slot = 0;
    if (call[0] == 0xff && call[1] == 0x15) { // call *disp(%rip)
        slot = *back + displacement(&call[2]);
    } else if (call[1] == 0xe8) { // call rel32, to a PLT entry: [endbr64] [bnd] jmp *disp(%rip)
        uint64_t entry = *back + displacement(&call[2]);
        std::array<uint8_t, 16> code = {};
        if (memory_.read_some(entry, code.data(), code.size()) != code.size()) return false;
        size_t at = 0;
        constexpr std::array<uint8_t, 4> kEndbr = {0xf3, 0x0f, 0x1e, 0xfa};
        if (std::equal(kEndbr.begin(), kEndbr.end(), code.begin())) at = kEndbr.size();
        if (code[at] == 0xf2) ++at;
        if (code[at] != 0xff || code[at + 1] != 0x25) return false;
        slot = entry + at + 6 + displacement(&code[at + 2]);
    } else {
        return false;
    }
    // The function may stand some way after its entry, but never before it.
    std::optional<uint64_t> target = memory_.value<uint64_t>(slot);
    constexpr uint64_t kLongestLeaf = 4096;
    if (!target || regs.rip < *target || regs.rip - *target > kLongestLeaf) return false;
    std::optional<std::string> name = module->symbol_of_slot(slot);
    return name && is_leaf_function(*name);
}

bool SafePoints::has_signal_frame(uint64_t stack_pointer, uint64_t stack_end) const {
    uint64_t from = stack_pointer & ~uint64_t{7};
    size_t size = std::min<uint64_t>(stack_end > from ? stack_end - from : 0, kMaxStackScan);
    std::vector<uint64_t> words(size / 8);
    words.resize(memory_.read_some(from, words.data(), words.size() * 8) / 8);
    for (size_t i = kSelectorsIndex; i < words.size(); ++i) {
        if (words[i] != kFrameSelectors) continue;
        uint64_t restorer = words[i - kSelectorsIndex];
        for (const RemoteModule& module : *modules_)
            if (module.contains_code(restorer)) return true;
    }
    return false;
}

} // namespace speedbump::inject
