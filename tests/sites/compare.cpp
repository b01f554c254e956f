// SPDX-License-Identifier: MIT
#include "compare.h"

#include <fmt/format.h>

#include <cstring>

namespace speedbump::sites {

namespace {

constexpr size_t kRsp = 4;
// What a nop that has become a call leaves below the stack pointer: the address it returns to, and
// three registers that the kernel's trampoline keeps there.
constexpr size_t kCallFrame = 32;
// Set in the frame of a signal when a fault is to be resumed; no program sees it elsewhere.
constexpr uint64_t kResumeFlag = 0x10000;

// Adds to `text` where two pieces of memory differ first.
void compare_bytes(std::string& text, const char* name, const void* plain, const void* probed,
                   size_t size, int64_t origin) {
    if (std::memcmp(plain, probed, size) == 0) return;
    const auto* a = static_cast<const uint8_t*>(plain);
    const auto* b = static_cast<const uint8_t*>(probed);
    size_t at = 0;
    while (a[at] == b[at]) ++at;
    text += fmt::format("{}{} at {}: {:#x}, not {:#x}", text.empty() ? "" : "; ", name,
                        origin + static_cast<int64_t>(at), b[at], a[at]);
}

void compare_number(std::string& text, const char* name, uint64_t plain, uint64_t probed) {
    if (plain != probed)
        text +=
            fmt::format("{}{}: {:#x}, not {:#x}", text.empty() ? "" : "; ", name, probed, plain);
}

} // namespace

std::string difference(const Slot& slot, const State& before, const Outcome& plain,
                       const Outcome& probed) {
    std::string text;
    compare_number(text, "signal", plain.signal, probed.signal);
    compare_number(text, "reached", plain.rip, probed.rip);
    compare_number(text, "si_code", plain.code, probed.code);
    compare_number(text, "si_addr", plain.address, probed.address);
    compare_number(text, "error code", plain.error, probed.error);

    static constexpr const char* kNames[] = {"rax", "rcx", "rdx", "rbx", "rsp", "rbp",
                                             "rsi", "rdi", "r8",  "r9",  "r10", "r11",
                                             "r12", "r13", "r14", "r15"};
    const Registers& a = plain.state.registers;
    const Registers& b = probed.state.registers;
    for (size_t i = 0; i < 16; ++i) compare_number(text, kNames[i], a.general[i], b.general[i]);
    compare_number(text, "flags", a.flags & ~kResumeFlag, b.flags & ~kResumeFlag);
    for (const Component& one : components())
        compare_bytes(text, one.name, a.xsave + one.offset, b.xsave + one.offset, one.size, 0);

    const State& c = plain.state;
    const State& d = probed.state;
    compare_bytes(text, "memory", c.scratch, d.scratch, kMemory, 0);
    compare_bytes(text, "thread-local memory", c.window, d.window, kWindow, 0);
    const size_t stack = before.registers.general[kRsp] - kStack;
    const size_t below = stack - (slot.may_push ? kCallFrame : 0);
    compare_bytes(text, "below the stack pointer", c.stack, d.stack, below,
                  -static_cast<int64_t>(stack));
    compare_bytes(text, "stack", c.stack + stack, d.stack + stack, kMemory - stack, 0);
    return text;
}

Tolerated tolerated(const Outcome& plain, const Outcome& probed) {
    const uint8_t* const a = plain.state.registers.xsave;
    const uint8_t* const b = probed.state.registers.xsave;
    return {plain.trap != probed.trap,
            std::memcmp(a + kX87Record, b + kX87Record, kX87RecordSize) != 0};
}

} // namespace speedbump::sites
