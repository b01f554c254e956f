// SPDX-License-Identifier: MIT
#include "machine.h"

#include <cpuid.h>
#include <fmt/format.h>
#include <signal.h>
#include <sys/mman.h>
#include <ucontext.h>

#include <cstdlib>
#include <cstring>

extern "C" {
[[gnu::visibility("hidden")]] void machine_run();
[[gnu::visibility("hidden")]] extern char machine_capture[], machine_leave[], machine_far_stack[];
[[gnu::visibility("hidden")]] extern speedbump::sites::Registers machine_in, machine_out;
[[gnu::visibility("hidden")]] extern uint64_t machine_target, machine_own_stack;
[[gnu::visibility("hidden")]] extern uint32_t machine_components;
}

namespace speedbump::sites {

namespace {

thread_local uint8_t window[kWindow];
volatile bool running;
volatile bool is_far_stack_tried, is_far_stack_refused;
Outcome* current;
constexpr uint32_t kComponents = 0xe7; // x87, SSE, AVX, AVX-512: what kXsave has room for

ExitPage& exit_page() {
    return *reinterpret_cast<ExitPage*>(kExit);
}

[[noreturn]] void die(const char* what) {
    fmt::print(stderr, "sites: {}\n", what);
    std::_Exit(2);
}

// The state at a fault is that of the signal's frame.
void on_fault(int signal, siginfo_t* info, void* context) {
    if (!running) die("a fault outside of the tried instruction");
    auto* frame = static_cast<ucontext_t*>(context);
    auto& registers = frame->uc_mcontext.gregs;
    const auto leave = reinterpret_cast<greg_t>(machine_leave);
    if (is_far_stack_tried) { // here first by its fault, and then by its return
        is_far_stack_tried = registers[REG_RIP] != leave;
        is_far_stack_refused = !is_far_stack_tried;
        registers[REG_RIP] = leave;
        if (is_far_stack_refused) registers[REG_RSP] = static_cast<greg_t>(machine_own_stack);
        return;
    }
    static constexpr int kOrder[] = {REG_RAX, REG_RCX, REG_RDX, REG_RBX, REG_RSP, REG_RBP,
                                     REG_RSI, REG_RDI, REG_R8,  REG_R9,  REG_R10, REG_R11,
                                     REG_R12, REG_R13, REG_R14, REG_R15};
    for (size_t i = 0; i < 16; ++i) machine_out.general[i] = registers[kOrder[i]];
    machine_out.flags = registers[REG_EFL];
    std::memcpy(machine_out.xsave, frame->uc_mcontext.fpregs, kXsave);
    current->rip = registers[REG_RIP];
    current->signal = signal;
    current->code = info->si_code;
    current->address = reinterpret_cast<uint64_t>(info->si_addr);
    current->trap = registers[REG_TRAPNO];
    current->error = registers[REG_ERR];
    registers[REG_RIP] = leave;
    registers[REG_RSP] = static_cast<greg_t>(machine_own_stack);
    registers[REG_EFL] = 0x202;
}

void map_at(uintptr_t address, size_t size) {
    void* wanted = reinterpret_cast<void*>(address);
    if (mmap(wanted, size, PROT_READ | PROT_WRITE,
             MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0) != wanted)
        die("the memory below 2 GiB is taken");
}

} // namespace

const std::vector<Component>& components() {
    static const std::vector<Component> found = [] {
        unsigned enabled, high;
        asm("xgetbv" : "=a"(enabled), "=d"(high) : "c"(0));
        machine_components = enabled & kComponents;
        std::vector<Component> made{{"x87 control", 0, kX87Record},
                                    {"x87 data pointer", 16, 8},
                                    {"x87 registers", 32, 128},
                                    {"mxcsr", 24, 4},
                                    {"xmm", 160, 256}};
        static constexpr struct {
            unsigned number;
            const char* name;
        } kOthers[] = {{2, "ymm"}, {5, "mask registers"}, {6, "zmm"}, {7, "zmm16 to 31"}};
        for (const auto& [number, name] : kOthers) {
            unsigned size, offset, c, d;
            if ((machine_components >> number & 1) == 0) continue;
            if (__get_cpuid_count(0xd, number, &size, &offset, &c, &d) == 0 ||
                offset + size > kXsave)
                die("this processor stores its registers in an unknown layout");
            made.push_back({name, offset, size});
        }
        return made;
    }();
    return found;
}

uint32_t component_mask() {
    components();
    return machine_components;
}

void prepare_machine() {
    components();
    map_at(kScratch, kMemory);
    map_at(kStack, kMemory);
    map_at(kExit, sizeof(ExitPage));
    exit_page().capture = reinterpret_cast<uint64_t>(machine_capture);

    // Longer than said: on_fault() copies as much as the largest of states has.
    static uint8_t signal_stack[64 * 1024 + kXsave];
    stack_t stack{};
    stack.ss_sp = signal_stack;
    stack.ss_size = 64 * 1024;
    sigaltstack(&stack, nullptr);
    struct sigaction action {};
    action.sa_sigaction = on_fault;
    action.sa_flags = SA_SIGINFO | SA_ONSTACK;
    for (int signal : {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGTRAP, SIGSYS})
        sigaction(signal, &action, nullptr);

    is_far_stack_tried = true;
    running = true;
    machine_target = reinterpret_cast<uint64_t>(machine_far_stack);
    machine_run();
    is_far_stack_tried = false;
    running = false;
}

bool may_return_to(uint64_t stack_pointer) {
    const auto address = static_cast<int64_t>(stack_pointer);
    return !is_far_stack_refused || address == (address << 16) >> 16;
}

uint64_t fs_base() {
    uint64_t base; // the ABI keeps it at the start of what it points to
    asm("mov %%fs:0, %0" : "=r"(base));
    return base;
}

int64_t window_offset() {
    return static_cast<int64_t>(reinterpret_cast<uint64_t>(window) - fs_base());
}

void run_machine(const State& state, uintptr_t target, Outcome& outcome) {
    void* const scratch = reinterpret_cast<void*>(kScratch);
    void* const stack = reinterpret_cast<void*>(kStack);
    std::memcpy(&machine_in, &state.registers, sizeof machine_in);
    std::memcpy(scratch, state.scratch, kMemory);
    std::memcpy(stack, state.stack, kMemory);
    std::memcpy(window, state.window, kWindow);
    outcome = {};
    current = &outcome;
    exit_page().landing = 0;
    machine_target = target;
    running = true;
    machine_run();
    running = false;
    if (outcome.signal == 0) outcome.rip = exit_page().landing;
    std::memcpy(&outcome.state.registers, &machine_out, sizeof machine_out);
    std::memcpy(outcome.state.scratch, scratch, kMemory);
    std::memcpy(outcome.state.stack, stack, kMemory);
    std::memcpy(outcome.state.window, window, kWindow);
}

} // namespace speedbump::sites
