// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

// One run of one instruction: from a whole state of the processor to a whole state. Everything
// lies below 2 GiB, so that 32-bit addresses and distances reach it.
namespace speedbump::sites {

constexpr uintptr_t kCode = 0x10000000;    // the probed file
constexpr uintptr_t kScratch = 0x20000000; // what memory operands point to
constexpr uintptr_t kStack = 0x20100000;
constexpr uintptr_t kExit = 0x30000000; // ExitPage
constexpr size_t kMemory = 4096;        // of scratch and stack each; unmapped around
constexpr size_t kWindow = 256;         // what operands in fs point to where they have no base
constexpr size_t kXsave = 2816;         // x87, SSE, AVX, AVX-512

// What code that has run leaves for good by: it takes no register and no stack.
struct ExitPage {
    uint64_t capture; // address of the code that stores the state
    uint32_t landing; // which landing pad it came by
};

// Known to machine.S.
struct Registers {
    uint64_t general[16]; // in the order of their encoding: rax rcx rdx rbx rsp rbp rsi rdi r8...
    uint64_t flags;
    uint64_t padding[7];
    alignas(64) uint8_t xsave[kXsave];
};
static_assert(offsetof(Registers, flags) == 128 && offsetof(Registers, xsave) == 192);

struct State {
    Registers registers;
    uint8_t scratch[kMemory];
    uint8_t stack[kMemory];
    uint8_t window[kWindow];
};

struct Outcome {
    State state;
    uint64_t rip = 0; // of the fault; else the number of the landing pad
    int signal = 0;   // 0: none
    int code = 0;
    uint64_t address = 0; // si_addr
    uint64_t trap = 0;
    uint64_t error = 0;
};

// A part of `Registers::xsave` that this processor has.
struct Component {
    const char* name;
    size_t offset;
    size_t size;
};
const std::vector<Component>& components();
constexpr size_t kX87Record = 6, kX87RecordSize = 10; // in `xsave`; of no component
uint32_t component_mask();                            // XCR0's bits of them

// Maps the fixed regions but kCode, and takes over the signals of faults. Once per process.
void prepare_machine();
// Whether the kernel can return to the program with this stack pointer. Processors return to any;
// a hypervisor that does it for the kernel (PVM) may refuse one that is no address, so that who is
// interrupted there, by a probe or by anything else, gets a signal.
bool may_return_to(uint64_t stack_pointer);
uint64_t fs_base();
int64_t window_offset(); // from fs_base()
// Runs from `state` on at `target` until a landing pad or a fault.
void run_machine(const State& state, uintptr_t target, Outcome& outcome);

} // namespace speedbump::sites
