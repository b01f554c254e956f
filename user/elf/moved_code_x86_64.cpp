// SPDX-License-Identifier: MIT
#include "elf/moved_code.h"

#include <Zydis/Zydis.h>

#include <algorithm>
#include <cstring>

namespace speedbump::elf {
namespace {

using Bytes = std::basic_string_view<unsigned char>;

constexpr uint64_t kAlignment = 16; // of functions, and of blocks that are aligned at all

struct DecodedInstruction {
    ZydisDecodedInstruction decoded;
    ZydisDecodedOperand operands[ZYDIS_MAX_OPERAND_COUNT];
};

class Decoder {
  public:
    Decoder() { ZydisDecoderInit(&decoder_, ZYDIS_MACHINE_MODE_LONG_64, ZYDIS_STACK_WIDTH_64); }
    bool decode(Bytes code, DecodedInstruction& out) const {
        return ZYAN_SUCCESS(ZydisDecoderDecodeFull(&decoder_, code.data(), code.size(),
                                                   &out.decoded, out.operands));
    }

  private:
    ZydisDecoder decoder_;
};

// Kinds of instructions that work on registers and memory, and on nothing else.
bool is_plain(const ZydisDecodedInstruction& instruction) {
    switch (instruction.meta.category) {
        case ZYDIS_CATEGORY_DATAXFER:
        case ZYDIS_CATEGORY_BINARY:
        case ZYDIS_CATEGORY_LOGICAL:
        case ZYDIS_CATEGORY_LOGICAL_FP:
        case ZYDIS_CATEGORY_SHIFT:
        case ZYDIS_CATEGORY_ROTATE:
        case ZYDIS_CATEGORY_BITBYTE:
        case ZYDIS_CATEGORY_CMOV:
        case ZYDIS_CATEGORY_SETCC:
        case ZYDIS_CATEGORY_CONVERT:
        case ZYDIS_CATEGORY_NOP:
        case ZYDIS_CATEGORY_WIDENOP:
        case ZYDIS_CATEGORY_BMI1:
        case ZYDIS_CATEGORY_BMI2:
        case ZYDIS_CATEGORY_LZCNT:
        case ZYDIS_CATEGORY_SSE:
        case ZYDIS_CATEGORY_AVX:
        case ZYDIS_CATEGORY_AVX2:
        case ZYDIS_CATEGORY_BROADCAST:
            return true;
        case ZYDIS_CATEGORY_PUSH:
            return instruction.mnemonic == ZYDIS_MNEMONIC_PUSH;
        case ZYDIS_CATEGORY_POP:
            return instruction.mnemonic == ZYDIS_MNEMONIC_POP;
        case ZYDIS_CATEGORY_MISC:
            return instruction.mnemonic == ZYDIS_MNEMONIC_LEA ||
                   instruction.mnemonic == ZYDIS_MNEMONIC_LEAVE;
        default:
            return false;
    }
}

bool is_usual_register(ZydisRegister number) {
    switch (ZydisRegisterGetClass(number)) {
        case ZYDIS_REGCLASS_GPR8:
        case ZYDIS_REGCLASS_GPR16:
        case ZYDIS_REGCLASS_GPR32:
        case ZYDIS_REGCLASS_GPR64:
        case ZYDIS_REGCLASS_XMM:
        case ZYDIS_REGCLASS_YMM:
        case ZYDIS_REGCLASS_ZMM:
        case ZYDIS_REGCLASS_MASK:
        case ZYDIS_REGCLASS_FLAGS:
            return true;
        default:
            return number == ZYDIS_REGISTER_MXCSR;
    }
}

bool has_usual_operands(const DecodedInstruction& instruction) {
    for (size_t i = 0; i < instruction.decoded.operand_count; ++i) {
        const ZydisDecodedOperand& operand = instruction.operands[i];
        if (operand.type == ZYDIS_OPERAND_TYPE_REGISTER && !is_usual_register(operand.reg.value))
            return false;
        if (operand.type == ZYDIS_OPERAND_TYPE_POINTER) return false;
        if (operand.type == ZYDIS_OPERAND_TYPE_IMMEDIATE && operand.imm.is_relative) return false;
        if (operand.type != ZYDIS_OPERAND_TYPE_MEMORY) continue;
        // A store to thread-local memory may start a restartable sequence.
        const bool writes = (operand.actions & ZYDIS_OPERAND_ACTION_MASK_WRITE) != 0;
        if (writes &&
            (operand.mem.segment == ZYDIS_REGISTER_FS || operand.mem.segment == ZYDIS_REGISTER_GS))
            return false;
        if (operand.mem.base == ZYDIS_REGISTER_EIP) return false;
        if (operand.mem.base == ZYDIS_REGISTER_RIP && instruction.decoded.raw.disp.size != 32)
            return false;
    }
    return true;
}

// Whether it does the same wherever it lies, once its address of data is adjusted.
bool is_movable(const DecodedInstruction& instruction) {
    return is_plain(instruction.decoded) && has_usual_operands(instruction);
}

bool is_relative_to_itself(const DecodedInstruction& instruction) {
    for (size_t i = 0; i < instruction.decoded.operand_count; ++i)
        if (instruction.operands[i].type == ZYDIS_OPERAND_TYPE_MEMORY &&
            instruction.operands[i].mem.base == ZYDIS_REGISTER_RIP)
            return true;
    return false;
}

enum class Form {
    kNone,         // may not be moved
    kPlain,        // is_movable()
    kCondition,    // a jump to a place of the file, or not
    kJump,         // a jump to a place of the file
    kCall,         // the same of a call
    kIndirectJump, // to what a register or memory holds
    kReturn,
};

// Branches in the encodings that compilers emit: without prefixes, but for a return's `rep` and the
// REX of an indirect jump.
Form form_of(const DecodedInstruction& instruction, Bytes code) {
    if (is_movable(instruction)) return Form::kPlain;
    const size_t length = instruction.decoded.length;
    if (length == 2 && (code[0] & 0xf0) == 0x70) return Form::kCondition;
    if (length == 6 && code[0] == 0x0f && (code[1] & 0xf0) == 0x80) return Form::kCondition;
    if ((length == 2 && code[0] == 0xeb) || (length == 5 && code[0] == 0xe9)) return Form::kJump;
    if (length == 5 && code[0] == 0xe8) return Form::kCall;
    if ((length == 1 && code[0] == 0xc3) || (length == 2 && code[0] == 0xf3 && code[1] == 0xc3))
        return Form::kReturn;
    const size_t opcode = (code[0] & 0xf0) == 0x40 ? 1 : 0;
    const bool is_jump =
        opcode + 1 < length && code[opcode] == 0xff && (code[opcode + 1] & 0x38) == 0x20;
    return is_jump && has_usual_operands(instruction) ? Form::kIndirectJump : Form::kNone;
}

bool goes_on(Form form) {
    return form == Form::kPlain || form == Form::kCondition;
}

// Up to where nops and breakpoints fill the space behind code, if they fill it.
size_t end_of_padding(const Decoder& decoder, Bytes code, size_t at, uint64_t address) {
    DecodedInstruction instruction;
    const size_t least = at + (kAlignment - (address + at) % kAlignment) % kAlignment;
    while (at < least) {
        const Bytes rest = code.substr(std::min(at, code.size()));
        const bool is_padding = decoder.decode(rest, instruction) &&
                                (instruction.decoded.mnemonic == ZYDIS_MNEMONIC_NOP ||
                                 instruction.decoded.mnemonic == ZYDIS_MNEMONIC_INT3);
        if (!is_padding) return 0;
        at += instruction.decoded.length;
    }
    return at;
}

int64_t target_of(const DecodedInstruction& instruction, uint64_t address) {
    return static_cast<int64_t>(address) + instruction.decoded.length +
           instruction.operands[0].imm.value.s;
}

// Code for an address that refers to others.
class Copy {
  public:
    explicit Copy(uint64_t address) : address_(address) {}

    void append(Bytes code) { bytes_ += code; }
    // The last four bytes of an instruction, which count from its end.
    void distance_to(int64_t target) {
        const int64_t distance = target - static_cast<int64_t>(address_ + bytes_.size() + 4);
        put(bytes_.size(), distance);
    }
    void put(size_t at, int64_t value) {
        const auto narrow = static_cast<int32_t>(value);
        is_in_reach_ &= narrow == value;
        bytes_.resize(std::max(bytes_.size(), at + sizeof narrow));
        std::memcpy(bytes_.data() + at, &narrow, sizeof narrow);
    }
    void byte(unsigned value) { bytes_ += static_cast<unsigned char>(value); }
    size_t size() const { return bytes_.size(); }
    bool is_in_reach() const { return is_in_reach_; }
    std::basic_string<unsigned char>& take() { return bytes_; }

  private:
    uint64_t address_;
    std::basic_string<unsigned char> bytes_;
    bool is_in_reach_ = true;
};

} // namespace

uint8_t straight_on(Bytes code) {
    DecodedInstruction instruction;
    if (!Decoder().decode(code, instruction)) return 0;
    const bool is_mark = instruction.decoded.mnemonic == ZYDIS_MNEMONIC_ENDBR64;
    return is_mark || is_movable(instruction) ? instruction.decoded.length : 0;
}

namespace {

bool is_stack_pointer(const ZydisDecodedOperand& operand) {
    return operand.type == ZYDIS_OPERAND_TYPE_REGISTER &&
           ZydisRegisterGetLargestEnclosing(ZYDIS_MACHINE_MODE_LONG_64, operand.reg.value) ==
               ZYDIS_REGISTER_RSP;
}

// By how much it lowers the stack pointer.
std::optional<int64_t> growth_by(const DecodedInstruction& instruction) {
    const ZydisDecodedOperand* const operands = instruction.operands;
    const auto changes_it = [](const ZydisDecodedOperand& operand) {
        return is_stack_pointer(operand) &&
               (operand.actions & ZYDIS_OPERAND_ACTION_MASK_WRITE) != 0;
    };
    if (std::none_of(operands, operands + instruction.decoded.operand_count, changes_it)) return 0;
    if (instruction.decoded.mnemonic == ZYDIS_MNEMONIC_PUSH)
        return instruction.decoded.operand_width / 8;
    if (operands[0].type != ZYDIS_OPERAND_TYPE_REGISTER ||
        operands[0].reg.value != ZYDIS_REGISTER_RSP)
        return std::nullopt;
    const ZydisDecodedOperand& source = operands[1];
    switch (instruction.decoded.mnemonic) {
        case ZYDIS_MNEMONIC_SUB:
            if (source.type == ZYDIS_OPERAND_TYPE_IMMEDIATE) return source.imm.value.s;
            return std::nullopt;
        case ZYDIS_MNEMONIC_ADD:
            if (source.type == ZYDIS_OPERAND_TYPE_IMMEDIATE) return -source.imm.value.s;
            return std::nullopt;
        case ZYDIS_MNEMONIC_LEA:
            if (source.mem.base == ZYDIS_REGISTER_RSP && source.mem.index == ZYDIS_REGISTER_NONE)
                return -source.mem.disp.value;
            return std::nullopt;
        default:
            return std::nullopt;
    }
}

} // namespace

std::optional<uint32_t> stack_growth(Bytes code) {
    constexpr int64_t kMost = 1 << 24;
    const Decoder decoder;
    DecodedInstruction instruction;
    int64_t growth = 0;
    while (!code.empty()) {
        if (!decoder.decode(code, instruction)) return std::nullopt;
        const auto more = growth_by(instruction);
        if (!more || *more < 0 || *more > kMost - growth) return std::nullopt;
        growth += *more;
        code.remove_prefix(instruction.decoded.length);
    }
    return static_cast<uint32_t>(growth);
}

std::optional<Range> movable_range(Bytes code, uint64_t address) {
    const Decoder decoder;
    DecodedInstruction instruction;
    Range range;
    size_t at = 0;
    while (at < kJumpBytes) {
        const Bytes rest = code.substr(std::min(at, code.size()));
        if (!decoder.decode(rest, instruction)) return std::nullopt;
        const Form form = form_of(instruction, rest);
        if (form == Form::kNone || (form == Form::kCall && at > 0)) return std::nullopt;
        if (form != Form::kPlain) range.branches.push_back(static_cast<uint8_t>(at));
        range.places.push_back(static_cast<uint8_t>(at));
        at += instruction.decoded.length;
        range.code = static_cast<uint8_t>(at);
        if (at >= kJumpBytes || goes_on(form)) continue;
        if (end_of_padding(decoder, code, at, address) < kJumpBytes) return std::nullopt;
        at = kJumpBytes;
    }
    range.length = static_cast<uint8_t>(at);
    range.is_redirected = code[0] == 0xe8 || code[0] == 0xe9;
    return range;
}

std::optional<MovedRange> move_range(Bytes code, uint64_t from, uint64_t to) {
    const auto range = movable_range(code, from);
    if (!range) return std::nullopt;
    const Decoder decoder;
    DecodedInstruction instruction;
    Copy copy(to);
    MovedRange moved;
    for (const uint8_t at : range->places) {
        const Bytes rest = code.substr(at);
        if (!decoder.decode(rest, instruction)) return std::nullopt;
        const size_t here = copy.size();
        moved.places.push_back(static_cast<uint8_t>(here));
        switch (form_of(instruction, rest)) {
            case Form::kNone:
                return std::nullopt;
            case Form::kCondition:
                copy.byte(0x0f);
                copy.byte(0x80 | (code[at] == 0x0f ? code[at + 1] & 0xf : code[at] & 0xf));
                copy.distance_to(target_of(instruction, from + at));
                break;
            case Form::kJump:
            case Form::kCall: // whose return address is there already
                copy.byte(0xe9);
                copy.distance_to(target_of(instruction, from + at));
                break;
            case Form::kPlain:
            case Form::kIndirectJump:
            case Form::kReturn:
                copy.append(rest.substr(0, instruction.decoded.length));
                if (is_relative_to_itself(instruction))
                    copy.put(here + instruction.decoded.raw.disp.offset,
                             instruction.decoded.raw.disp.value +
                                 static_cast<int64_t>(from + at - (to + here)));
                break;
        }
    }
    copy.byte(0xe9);
    copy.distance_to(static_cast<int64_t>(from + range->length));
    if (!copy.is_in_reach()) return std::nullopt;
    moved.bytes = std::move(copy.take());
    return moved;
}

} // namespace speedbump::elf
