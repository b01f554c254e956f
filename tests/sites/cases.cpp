// SPDX-License-Identifier: MIT
#include "cases.h"

#include <sys/syscall.h>

#include <algorithm>
#include <cstring>

namespace speedbump::sites {

namespace {

constexpr size_t kPage = 4096;
constexpr size_t kPad = 18;
constexpr size_t kRsp = 4;
constexpr uint64_t kArithmeticFlags = 0x8d5; // CF PF AF ZF SF OF
constexpr uint64_t kDirectionFlag = 0x400;
constexpr uint64_t kAlwaysSet = 0x202; // IF, and a bit that is always 1

template <typename T>
void put(uint8_t* to, T value) {
    std::memcpy(to, &value, sizeof value);
}

// Stores which pad it is and leaves; changes neither registers nor flags nor stack.
void write_pad(uint8_t* to, uint64_t number) {
    static constexpr uint8_t kStore[] = {0xc7, 0x04, 0x25}; // movl $number, landing
    static constexpr uint8_t kJump[] = {0xff, 0x24, 0x25};  // jmp *capture
    std::memcpy(to, kStore, 3);
    put(to + 3, static_cast<uint32_t>(kExit + offsetof(ExitPage, landing)));
    put(to + 7, static_cast<uint32_t>(number));
    std::memcpy(to + 11, kJump, 3);
    put(to + 14, static_cast<uint32_t>(kExit + offsetof(ExitPage, capture)));
}

// Somewhere in the middle of the scratch memory; mostly aligned, since many instructions demand it.
uint64_t scratch_address(Random& random) {
    return kScratch + 1024 + 64 * random.below(24) + (random.one_in(4) ? random.below(64) : 0);
}

// The number of the general register that holds it, or -1.
int general(ZydisRegister reg) {
    const ZydisRegister whole = ZydisRegisterGetLargestEnclosing(ZYDIS_MACHINE_MODE_LONG_64, reg);
    if (ZydisRegisterGetClass(whole) != ZYDIS_REGCLASS_GPR64) return -1;
    return ZydisRegisterGetId(whole);
}

bool is_stack_pointer(ZydisRegister reg) {
    return general(reg) == static_cast<int>(kRsp);
}

bool is_conditional_on_rcx(const ZydisDecodedInstruction& instruction) {
    return (instruction.attributes &
            (ZYDIS_ATTRIB_HAS_REP | ZYDIS_ATTRIB_HAS_REPE | ZYDIS_ATTRIB_HAS_REPNE)) != 0;
}

bool tests_a_bit(ZydisMnemonic mnemonic) {
    return mnemonic == ZYDIS_MNEMONIC_BT || mnemonic == ZYDIS_MNEMONIC_BTS ||
           mnemonic == ZYDIS_MNEMONIC_BTR || mnemonic == ZYDIS_MNEMONIC_BTC;
}

// --- the code of a slot

int64_t displacement(const Decoded& decoded, uintptr_t address, Random& random) {
    for (const ZydisDecodedOperand& operand : decoded.operands) {
        if (operand.type != ZYDIS_OPERAND_TYPE_MEMORY || !operand.mem.disp.has_displacement)
            continue;
        const auto target = static_cast<int64_t>(scratch_address(random));
        if (operand.mem.base == ZYDIS_REGISTER_RIP || operand.mem.base == ZYDIS_REGISTER_EIP)
            return target - static_cast<int64_t>(address + decoded.instruction.length);
        if (operand.mem.base == ZYDIS_REGISTER_NONE && operand.mem.index == ZYDIS_REGISTER_NONE)
            return operand.mem.segment == ZYDIS_REGISTER_FS
                       ? window_offset() + static_cast<int64_t>(random.below(kWindow / 2))
                       : target;
        if (is_stack_pointer(operand.mem.base))
            return static_cast<int64_t>(random.below(2000)) - 1000;
    }
    return static_cast<int32_t>(random.next());
}

void set_number(Bytes& code, size_t offset, size_t bits, int64_t value) {
    std::memcpy(code.data() + offset, &value, bits / 8);
}

void decode_all(Slot& slot) {
    slot.instructions.clear();
    for (size_t at = 0; at < slot.code.size();) {
        const auto decoded = decode(slot.code.data() + at, slot.code.size() - at);
        if (!decoded) break;
        slot.instructions.push_back(*decoded);
        at += decoded->instruction.length;
    }
}

// --- the state before

uint64_t random_register(Random& random) {
    const uint64_t value = random.next();
    switch (random.below(8)) {
        case 0:
            return 0;
        case 1:
            return value & 0xff;
        case 2:
            return static_cast<uint64_t>(-static_cast<int64_t>(value & 0xff));
        case 3:
            return uint64_t{1} << (value % 64);
        case 4:
            return value & 0xffffffff;
        default:
            return value;
    }
}

void random_vectors(Registers& registers, Random& random) {
    uint8_t* const area = registers.xsave;
    for (const Component& component : components())
        random.fill(area + component.offset, component.size);
    std::fill_n(area, 32, uint8_t{0});
    const uint64_t bits = random.next();
    // Exceptions are masked, mostly: one that is not ends in a signal. The precision is not 1,
    // which means nothing.
    put(area, static_cast<uint16_t>(0x40 | (bits & 0xc00) | ((bits & 0x3000) != 0 ? 0x300 : 0) |
                                    (random.one_in(8) ? bits & 0x3f : 0x3f)));
    put(area + 2, static_cast<uint16_t>(bits >> 16 & 0x7f00)); // the top, and condition codes
    put(area + 4, static_cast<uint8_t>(bits >> 32));           // which registers are empty
    // Rounding, flushing to zero, flags of exceptions; an unmasked one only without its flag.
    const auto masks = static_cast<uint32_t>(random.one_in(8) ? bits & 0x1f80 : 0x1f80);
    put(area + 24, static_cast<uint32_t>(masks | (bits >> 40 & 0xe040) |
                                         (masks == 0x1f80 ? bits >> 40 & 0x3f : 0)));
    for (size_t st = 0; st < 8; ++st) std::fill_n(area + 32 + 16 * st + 10, 6, uint8_t{0});
    put(area + 512, uint64_t{component_mask()});
}

void set_register(Registers& registers, ZydisRegister reg, uint64_t value) {
    uint64_t& whole = registers.general[general(reg)];
    whole = ZydisRegisterGetWidth(ZYDIS_MACHINE_MODE_LONG_64, reg) == 32
                ? (whole & 0xffffffff00000000) | (value & 0xffffffff)
                : value;
}

// Makes base and index such that the operand lies in the scratch memory.
void aim(Registers& registers, const ZydisDecodedOperandMem& operand, uint64_t target,
         Random& random) {
    const int base = general(operand.base);
    const int index = general(operand.index);
    uint64_t rest = target;
    if (operand.disp.has_displacement) rest -= static_cast<uint64_t>(operand.disp.value);
    if (operand.segment == ZYDIS_REGISTER_FS) rest -= fs_base();
    if (index >= 0 && (base < 0 || base == index)) {
        const uint64_t times = operand.scale + (base == index ? 1u : 0u);
        const auto number = static_cast<int64_t>(rest) / static_cast<int64_t>(times);
        set_register(registers, operand.index, static_cast<uint64_t>(number));
        return;
    }
    if (index >= 0) {
        registers.general[index] = random.below(16);
        rest -= registers.general[index] * operand.scale;
    }
    if (base >= 0 && !is_stack_pointer(operand.base)) set_register(registers, operand.base, rest);
}

// Where in the state the operand's memory is kept, or nullptr.
uint8_t* memory_of(State& state, const ZydisDecodedOperandMem& operand, uint64_t scratch) {
    if (!is_stack_pointer(operand.base)) return state.scratch + (scratch - kScratch);
    uint64_t address =
        state.registers.general[kRsp] +
        (operand.disp.has_displacement ? static_cast<uint64_t>(operand.disp.value) : 0);
    const int index = general(operand.index);
    if (index >= 0) address += state.registers.general[index] * operand.scale;
    const uint64_t offset = address - kStack;
    return offset <= kMemory - 8 ? state.stack + offset : nullptr;
}

void aim_operands(const Slot& slot, const Decoded& decoded, State& state, Random& random) {
    const ZydisDecodedInstruction& instruction = decoded.instruction;
    Registers& registers = state.registers;
    const bool branches = instruction.meta.branch_type != ZYDIS_BRANCH_TYPE_NONE;
    if (is_conditional_on_rcx(instruction)) registers.general[1] = random.below(24);
    if (instruction.mnemonic == ZYDIS_MNEMONIC_SYSCALL) registers.general[0] = SYS_getppid;
    for (size_t i = 0; i < instruction.operand_count; ++i) {
        const ZydisDecodedOperand& operand = decoded.operands[i];
        const bool is_visible = operand.visibility == ZYDIS_OPERAND_VISIBILITY_EXPLICIT;
        if (operand.type == ZYDIS_OPERAND_TYPE_REGISTER && is_visible) {
            const int number =
                is_stack_pointer(operand.reg.value) ? -1 : general(operand.reg.value);
            if (number >= 0 && branches) registers.general[number] = slot.target;
            if (number >= 0 && tests_a_bit(instruction.mnemonic))
                registers.general[number] = random.below(512);
        }
        if (operand.type != ZYDIS_OPERAND_TYPE_MEMORY) continue;
        uint64_t target = scratch_address(random);
        if (operand.mem.base == ZYDIS_REGISTER_RIP || operand.mem.base == ZYDIS_REGISTER_EIP)
            target =
                slot.address + instruction.length + static_cast<uint64_t>(operand.mem.disp.value);
        else if (operand.mem.base == ZYDIS_REGISTER_NONE &&
                 operand.mem.index == ZYDIS_REGISTER_NONE)
            target = static_cast<uint64_t>(operand.mem.disp.value);
        else
            aim(registers, operand.mem, target, random);
        const bool is_read = (operand.actions & ZYDIS_OPERAND_ACTION_MASK_READ) != 0;
        if (operand.mem.segment == ZYDIS_REGISTER_FS || !is_read) continue;
        uint8_t* const memory = memory_of(state, operand.mem, target);
        if (memory != nullptr && branches) put(memory, uint64_t{slot.target});
        if (memory != nullptr && instruction.meta.category == ZYDIS_CATEGORY_POP &&
            instruction.mnemonic == ZYDIS_MNEMONIC_POPFQ)
            put(memory, kAlwaysSet | (random.next() & kArithmeticFlags));
    }
}

} // namespace

std::string untried(const Decoded& decoded) {
    const ZydisDecodedInstruction& instruction = decoded.instruction;
    if (instruction.meta.branch_type == ZYDIS_BRANCH_TYPE_FAR) return "a far branch";
    switch (instruction.mnemonic) {
        case ZYDIS_MNEMONIC_INT:
        case ZYDIS_MNEMONIC_INT1:
        case ZYDIS_MNEMONIC_INT3:
        case ZYDIS_MNEMONIC_IRET:
        case ZYDIS_MNEMONIC_IRETD:
        case ZYDIS_MNEMONIC_IRETQ:
        case ZYDIS_MNEMONIC_SYSENTER:
            return "an interrupt";
        case ZYDIS_MNEMONIC_WRFSBASE:
        case ZYDIS_MNEMONIC_WRGSBASE:
        case ZYDIS_MNEMONIC_WRPKRU:
        case ZYDIS_MNEMONIC_XRSTOR:
        case ZYDIS_MNEMONIC_XRSTOR64:
            return "changes what the test itself needs";
        default:
            break;
    }
    for (size_t i = 0; i < instruction.operand_count; ++i)
        if (decoded.operands[i].type == ZYDIS_OPERAND_TYPE_REGISTER &&
            ZydisRegisterGetClass(decoded.operands[i].reg.value) == ZYDIS_REGCLASS_SEGMENT &&
            (decoded.operands[i].actions & ZYDIS_OPERAND_ACTION_MASK_WRITE) != 0)
            return "changes what the test itself needs";
    return {};
}

Slot make_slot(size_t number, const Bytes& code, Place place, Random& random) {
    Slot slot;
    slot.code = code;
    slot.at = 256 + random.below(kPage - 1024);
    if (place == Place::kPageEnd) slot.at = kPage - code.size();
    if (place == Place::kAcrossPages && code.size() > 1)
        slot.at = kPage - 1 - random.below(code.size() - 1);
    // the first page of the file has the headers that make it an ELF file
    slot.address = kCode + (number + 1) * kSlot + slot.at;
    slot.target = random.one_in(2) ? slot.address - 3 * kPad
                                   : slot.address + code.size() + kPad + random.below(32);
    decode_all(slot);
    slot.name = text_of(slot.instructions.front());
    return slot;
}

void choose_numbers(Slot& slot, Random& random) {
    const Decoded decoded = slot.instructions.front();
    const auto& raw = decoded.instruction.raw;
    if (decoded.instruction.mnemonic == ZYDIS_MNEMONIC_NOP) return;
    if (raw.disp.size != 0)
        set_number(slot.code, raw.disp.offset, raw.disp.size,
                   displacement(decoded, slot.address, random));
    for (const auto& immediate : raw.imm) {
        if (immediate.size == 0) continue;
        const auto next = static_cast<int64_t>(slot.address + decoded.instruction.length);
        int64_t value = static_cast<int64_t>(random.next());
        if (immediate.is_relative)
            value = static_cast<int64_t>(slot.target) - next;
        else if (random.one_in(2))
            value = static_cast<int8_t>(value);
        set_number(slot.code, immediate.offset, immediate.size, value);
    }
    decode_all(slot);
    slot.name = text_of(slot.instructions.front());
}

void write_slot(const Slot& slot, uint8_t* bytes) {
    std::memcpy(bytes + slot.at, slot.code.data(), slot.code.size());
    write_pad(bytes + slot.at + slot.code.size(), kLandedBehind);
    write_pad(bytes + slot.at + (slot.target - slot.address), kLandedAtTarget);
}

State make_state(const Slot& slot, Random& random) {
    State state{};
    random.fill(state.scratch, kMemory);
    random.fill(state.stack, kMemory);
    random.fill(state.window, kWindow);
    Registers& registers = state.registers;
    for (uint64_t& value : registers.general) value = random_register(random);
    registers.general[kRsp] =
        kStack + kMemory / 2 + 8 * random.below(32) + (random.one_in(16) ? random.below(8) : 0);
    registers.flags =
        kAlwaysSet | (random.next() & kArithmeticFlags) | (random.one_in(8) ? kDirectionFlag : 0);
    random_vectors(registers, random);
    for (const Decoded& decoded : slot.instructions) aim_operands(slot, decoded, state, random);
    return state;
}

} // namespace speedbump::sites
