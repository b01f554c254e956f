// SPDX-License-Identifier: MIT
#include "inject/seccomp_filter.h"

#include <sys/syscall.h>

#include <array>
#include <cerrno>
#include <cstddef>
#include <cstring>

#include "inject/machine.h"

namespace speedbump::inject {
namespace {

// The state of one run.
struct Machine {
    uint32_t a = 0;
    uint32_t x = 0;
    std::array<uint32_t, BPF_MEMWORDS> memory{};
};

// The kernel knows of no other size (seccomp_check_filter()).
std::optional<uint32_t> load_word(const seccomp_data& call, uint32_t offset) {
    if (offset % 4 != 0 || offset > sizeof(call) - 4) return std::nullopt;
    uint32_t word;
    std::memcpy(&word, reinterpret_cast<const char*>(&call) + offset, sizeof(word));
    return word;
}

// False where the kernel would end the run with 0, at a division by nothing.
bool calculate(uint32_t operation, uint32_t operand, uint32_t& a) {
    switch (operation) {
        case BPF_ADD:
            a += operand;
            return true;
        case BPF_SUB:
            a -= operand;
            return true;
        case BPF_MUL:
            a *= operand;
            return true;
        case BPF_DIV:
            if (operand == 0) return false;
            a /= operand;
            return true;
        case BPF_AND:
            a &= operand;
            return true;
        case BPF_OR:
            a |= operand;
            return true;
        case BPF_XOR:
            a ^= operand;
            return true;
        case BPF_LSH:
            a <<= operand & 31;
            return true;
        case BPF_RSH:
            a >>= operand & 31;
            return true;
        default: // BPF_NEG
            a = 0 - a;
            return true;
    }
}

bool compare(uint32_t operation, uint32_t a, uint32_t operand) {
    switch (operation) {
        case BPF_JEQ:
            return a == operand;
        case BPF_JGT:
            return a > operand;
        case BPF_JGE:
            return a >= operand;
        default: // BPF_JSET
            return (a & operand) != 0;
    }
}

bool is_calculation(uint32_t operation) {
    return operation <= BPF_RSH || operation == BPF_NEG || operation == BPF_XOR;
}

// Loads and stores; false for what is none that the kernel accepts.
bool move(const sock_filter& step, const seccomp_data& call, Machine& machine) {
    const uint32_t k = step.k;
    const bool in_memory = k < machine.memory.size();
    switch (step.code) {
        case BPF_LD | BPF_W | BPF_ABS: {
            const std::optional<uint32_t> word = load_word(call, k);
            machine.a = word.value_or(0);
            return word.has_value();
        }
        case BPF_LD | BPF_W | BPF_LEN:
            machine.a = sizeof(call);
            return true;
        case BPF_LDX | BPF_W | BPF_LEN:
            machine.x = sizeof(call);
            return true;
        case BPF_LD | BPF_IMM:
            machine.a = k;
            return true;
        case BPF_LDX | BPF_IMM:
            machine.x = k;
            return true;
        case BPF_MISC | BPF_TAX:
            machine.x = machine.a;
            return true;
        case BPF_MISC | BPF_TXA:
            machine.a = machine.x;
            return true;
        case BPF_LD | BPF_MEM:
            if (in_memory) machine.a = machine.memory[k];
            return in_memory;
        case BPF_LDX | BPF_MEM:
            if (in_memory) machine.x = machine.memory[k];
            return in_memory;
        case BPF_ST:
            if (in_memory) machine.memory[k] = machine.a;
            return in_memory;
        case BPF_STX:
            if (in_memory) machine.memory[k] = machine.x;
            return in_memory;
        default:
            return false;
    }
}

// The strictest answer counts; as signed numbers they are in order (seccomp_run_filters()).
std::optional<uint32_t> run_filters(const std::vector<Filter>& filters, const seccomp_data& call) {
    uint32_t strictest = SECCOMP_RET_ALLOW;
    const auto action = [](uint32_t answer) {
        return static_cast<int32_t>(answer & SECCOMP_RET_ACTION_FULL);
    };
    for (const Filter& filter : filters) {
        const std::optional<uint32_t> answer = run_filter(filter, call);
        if (!answer) return std::nullopt;
        if (action(*answer) < action(strictest)) strictest = *answer;
    }
    return strictest;
}

std::string outcome_of(uint32_t answer) {
    switch (answer & SECCOMP_RET_ACTION_FULL) {
        case SECCOMP_RET_ERRNO:
            return std::string("the call would fail: ") +
                   std::strerror(static_cast<int>(answer & SECCOMP_RET_DATA));
        case SECCOMP_RET_TRAP:
            return "it would get a SIGSYS";
        case SECCOMP_RET_USER_NOTIF:
            return "another process would be asked";
        case SECCOMP_RET_TRACE:
            return "a tracer would be asked";
        default:
            return "it would be killed";
    }
}

// glibc asks for clone3 first, and is content with clone where that does not exist.
bool is_no_clone3(const NeededCall& call, uint32_t answer) {
    return call.number == SYS_clone3 && (answer & SECCOMP_RET_DATA) == ENOSYS;
}

} // namespace

std::optional<uint32_t> run_filter(const Filter& filter, const seccomp_data& call) {
    if (filter.size() > BPF_MAXINSNS) return std::nullopt;
    Machine machine;
    // Jumps go forward only, so this ends.
    for (size_t at = 0; at < filter.size(); ++at) {
        const sock_filter& step = filter[at];
        const uint32_t operation = BPF_OP(step.code);
        const uint32_t operand = BPF_SRC(step.code) == BPF_X ? machine.x : step.k;
        switch (BPF_CLASS(step.code)) {
            case BPF_RET:
                if (step.code == (BPF_RET | BPF_K)) return step.k;
                if (step.code == (BPF_RET | BPF_A)) return machine.a;
                return std::nullopt;
            case BPF_ALU:
                if (!is_calculation(operation) || (step.code & ~0xffU) != 0) return std::nullopt;
                if (!calculate(operation, operand, machine.a)) return 0;
                break;
            case BPF_JMP:
                if ((step.code & ~0xffU) != 0) return std::nullopt;
                if (operation == BPF_JA) {
                    if (step.k >= filter.size()) return std::nullopt;
                    at += step.k;
                } else if (operation <= BPF_JSET) {
                    at += compare(operation, machine.a, operand) ? step.jt : step.jf;
                } else {
                    return std::nullopt;
                }
                break;
            default:
                if (!move(step, call, machine)) return std::nullopt;
                break;
        }
    }
    return std::nullopt; // it ran off its end
}

std::optional<std::string> find_forbidden(const std::vector<Filter>& filters,
                                          const std::vector<NeededCall>& calls) {
    for (const NeededCall& needed : calls) {
        seccomp_data call{};
        call.nr = needed.number;
        call.arch = kAuditArchitecture;
        for (size_t i = 0; i < 6; ++i) call.args[i] = needed.arguments[i];
        const std::optional<uint32_t> answer = run_filters(filters, call);
        if (!answer) return std::string(needed.name) + " (the filter can't be understood)";
        const uint32_t action = *answer & SECCOMP_RET_ACTION_FULL;
        if (action == SECCOMP_RET_ALLOW || action == SECCOMP_RET_LOG) continue;
        if (action == SECCOMP_RET_ERRNO && (needed.may_fail || is_no_clone3(needed, *answer)))
            continue;
        return std::string(needed.name) + " (" + outcome_of(*answer) + ")";
    }
    return std::nullopt;
}

} // namespace speedbump::inject
