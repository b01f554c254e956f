// SPDX-License-Identifier: MIT
#include "elf/probe_site.h"

#include <Zydis/Zydis.h>

#include <algorithm>
#include <array>
#include <span>

#include "util/page.h"

namespace speedbump::elf {
namespace {

using Bytes = std::basic_string_view<unsigned char>;
using Operands = std::span<const ZydisDecodedOperand>;

constexpr uint64_t kNop5 = 5;

constexpr const char* kOddForm = "is encoded in a way that is not on the list";
constexpr const char* kNotListed = "is not on the list of those known to be safe to probe";
constexpr const char* kWrongByKernel = "is of a kind that the kernel's uprobes get wrong";
constexpr const char* kRefusedPrefix = "has a prefix that the kernel refuses to probe";
constexpr const char* kRewritten =
    "may be rewritten by the kernel into a call, which would spoil data below the stack pointer";
constexpr const char* kEndsChildren =
    "is rewritten by this kernel into a call that ends forked children";
constexpr const char* kUntried =
    "is of a form that Linux 6.18 rewrites into a call that ends forked children, and what this "
    "kernel does could not be tried out";
constexpr const char* kNoShadow =
    "is a call, which on this host may leave a process's shadow stack behind under a probe";
constexpr const char* kRepeated =
    "would count once per repetition, as the kernel steps through them";

// What compilers emit as plain computation on general registers and memory. Flow of control, nops
// and exchanges have rules of their own in judge().
constexpr ZydisMnemonic kGeneral[] = {
    ZYDIS_MNEMONIC_MOV,     ZYDIS_MNEMONIC_MOVZX,  ZYDIS_MNEMONIC_MOVSX,   ZYDIS_MNEMONIC_MOVSXD,
    ZYDIS_MNEMONIC_LEA,     ZYDIS_MNEMONIC_PUSH,   ZYDIS_MNEMONIC_POP,     ZYDIS_MNEMONIC_LEAVE,
    ZYDIS_MNEMONIC_ADD,     ZYDIS_MNEMONIC_SUB,    ZYDIS_MNEMONIC_ADC,     ZYDIS_MNEMONIC_SBB,
    ZYDIS_MNEMONIC_AND,     ZYDIS_MNEMONIC_OR,     ZYDIS_MNEMONIC_XOR,     ZYDIS_MNEMONIC_CMP,
    ZYDIS_MNEMONIC_TEST,    ZYDIS_MNEMONIC_NOT,    ZYDIS_MNEMONIC_NEG,     ZYDIS_MNEMONIC_INC,
    ZYDIS_MNEMONIC_DEC,     ZYDIS_MNEMONIC_IMUL,   ZYDIS_MNEMONIC_MUL,     ZYDIS_MNEMONIC_DIV,
    ZYDIS_MNEMONIC_IDIV,    ZYDIS_MNEMONIC_SHL,    ZYDIS_MNEMONIC_SHR,     ZYDIS_MNEMONIC_SAR,
    ZYDIS_MNEMONIC_ROL,     ZYDIS_MNEMONIC_ROR,    ZYDIS_MNEMONIC_SHLD,    ZYDIS_MNEMONIC_SHRD,
    ZYDIS_MNEMONIC_BT,      ZYDIS_MNEMONIC_BTS,    ZYDIS_MNEMONIC_BTR,     ZYDIS_MNEMONIC_BTC,
    ZYDIS_MNEMONIC_BSF,     ZYDIS_MNEMONIC_BSR,    ZYDIS_MNEMONIC_BSWAP,   ZYDIS_MNEMONIC_CBW,
    ZYDIS_MNEMONIC_CWDE,    ZYDIS_MNEMONIC_CDQE,   ZYDIS_MNEMONIC_CWD,     ZYDIS_MNEMONIC_CDQ,
    ZYDIS_MNEMONIC_CQO,     ZYDIS_MNEMONIC_SETB,   ZYDIS_MNEMONIC_SETBE,   ZYDIS_MNEMONIC_SETL,
    ZYDIS_MNEMONIC_SETLE,   ZYDIS_MNEMONIC_SETNB,  ZYDIS_MNEMONIC_SETNBE,  ZYDIS_MNEMONIC_SETNL,
    ZYDIS_MNEMONIC_SETNLE,  ZYDIS_MNEMONIC_SETNO,  ZYDIS_MNEMONIC_SETNP,   ZYDIS_MNEMONIC_SETNS,
    ZYDIS_MNEMONIC_SETNZ,   ZYDIS_MNEMONIC_SETO,   ZYDIS_MNEMONIC_SETP,    ZYDIS_MNEMONIC_SETS,
    ZYDIS_MNEMONIC_SETZ,    ZYDIS_MNEMONIC_CMOVB,  ZYDIS_MNEMONIC_CMOVBE,  ZYDIS_MNEMONIC_CMOVL,
    ZYDIS_MNEMONIC_CMOVLE,  ZYDIS_MNEMONIC_CMOVNB, ZYDIS_MNEMONIC_CMOVNBE, ZYDIS_MNEMONIC_CMOVNL,
    ZYDIS_MNEMONIC_CMOVNLE, ZYDIS_MNEMONIC_CMOVNO, ZYDIS_MNEMONIC_CMOVNP,  ZYDIS_MNEMONIC_CMOVNS,
    ZYDIS_MNEMONIC_CMOVNZ,  ZYDIS_MNEMONIC_CMOVO,  ZYDIS_MNEMONIC_CMOVP,   ZYDIS_MNEMONIC_CMOVS,
    ZYDIS_MNEMONIC_CMOVZ,
};

// SSE and SSE2 as compilers emit them for moves, arithmetic, comparison and conversion.
constexpr ZydisMnemonic kVector[] = {
    ZYDIS_MNEMONIC_MOVAPS,    ZYDIS_MNEMONIC_MOVAPD,     ZYDIS_MNEMONIC_MOVUPS,
    ZYDIS_MNEMONIC_MOVUPD,    ZYDIS_MNEMONIC_MOVDQA,     ZYDIS_MNEMONIC_MOVDQU,
    ZYDIS_MNEMONIC_MOVSS,     ZYDIS_MNEMONIC_MOVSD,      ZYDIS_MNEMONIC_MOVD,
    ZYDIS_MNEMONIC_MOVQ,      ZYDIS_MNEMONIC_MOVHPS,     ZYDIS_MNEMONIC_MOVHPD,
    ZYDIS_MNEMONIC_MOVLPS,    ZYDIS_MNEMONIC_MOVLPD,     ZYDIS_MNEMONIC_MOVHLPS,
    ZYDIS_MNEMONIC_MOVLHPS,   ZYDIS_MNEMONIC_MOVMSKPS,   ZYDIS_MNEMONIC_MOVMSKPD,
    ZYDIS_MNEMONIC_PMOVMSKB,  ZYDIS_MNEMONIC_ADDSS,      ZYDIS_MNEMONIC_ADDSD,
    ZYDIS_MNEMONIC_ADDPS,     ZYDIS_MNEMONIC_ADDPD,      ZYDIS_MNEMONIC_SUBSS,
    ZYDIS_MNEMONIC_SUBSD,     ZYDIS_MNEMONIC_SUBPS,      ZYDIS_MNEMONIC_SUBPD,
    ZYDIS_MNEMONIC_MULSS,     ZYDIS_MNEMONIC_MULSD,      ZYDIS_MNEMONIC_MULPS,
    ZYDIS_MNEMONIC_MULPD,     ZYDIS_MNEMONIC_DIVSS,      ZYDIS_MNEMONIC_DIVSD,
    ZYDIS_MNEMONIC_DIVPS,     ZYDIS_MNEMONIC_DIVPD,      ZYDIS_MNEMONIC_SQRTSS,
    ZYDIS_MNEMONIC_SQRTSD,    ZYDIS_MNEMONIC_SQRTPS,     ZYDIS_MNEMONIC_SQRTPD,
    ZYDIS_MNEMONIC_MINSS,     ZYDIS_MNEMONIC_MINSD,      ZYDIS_MNEMONIC_MAXSS,
    ZYDIS_MNEMONIC_MAXSD,     ZYDIS_MNEMONIC_ANDPS,      ZYDIS_MNEMONIC_ANDPD,
    ZYDIS_MNEMONIC_ANDNPS,    ZYDIS_MNEMONIC_ANDNPD,     ZYDIS_MNEMONIC_ORPS,
    ZYDIS_MNEMONIC_ORPD,      ZYDIS_MNEMONIC_XORPS,      ZYDIS_MNEMONIC_XORPD,
    ZYDIS_MNEMONIC_COMISS,    ZYDIS_MNEMONIC_COMISD,     ZYDIS_MNEMONIC_UCOMISS,
    ZYDIS_MNEMONIC_UCOMISD,   ZYDIS_MNEMONIC_CMPSS,      ZYDIS_MNEMONIC_CMPSD,
    ZYDIS_MNEMONIC_CMPPS,     ZYDIS_MNEMONIC_CMPPD,      ZYDIS_MNEMONIC_CVTSI2SS,
    ZYDIS_MNEMONIC_CVTSI2SD,  ZYDIS_MNEMONIC_CVTSS2SD,   ZYDIS_MNEMONIC_CVTSD2SS,
    ZYDIS_MNEMONIC_CVTTSS2SI, ZYDIS_MNEMONIC_CVTTSD2SI,  ZYDIS_MNEMONIC_CVTSS2SI,
    ZYDIS_MNEMONIC_CVTSD2SI,  ZYDIS_MNEMONIC_CVTDQ2PS,   ZYDIS_MNEMONIC_CVTDQ2PD,
    ZYDIS_MNEMONIC_CVTPS2PD,  ZYDIS_MNEMONIC_CVTPD2PS,   ZYDIS_MNEMONIC_CVTTPS2DQ,
    ZYDIS_MNEMONIC_CVTTPD2DQ, ZYDIS_MNEMONIC_SHUFPS,     ZYDIS_MNEMONIC_SHUFPD,
    ZYDIS_MNEMONIC_UNPCKLPS,  ZYDIS_MNEMONIC_UNPCKLPD,   ZYDIS_MNEMONIC_UNPCKHPS,
    ZYDIS_MNEMONIC_UNPCKHPD,  ZYDIS_MNEMONIC_PXOR,       ZYDIS_MNEMONIC_POR,
    ZYDIS_MNEMONIC_PAND,      ZYDIS_MNEMONIC_PANDN,      ZYDIS_MNEMONIC_PADDB,
    ZYDIS_MNEMONIC_PADDW,     ZYDIS_MNEMONIC_PADDD,      ZYDIS_MNEMONIC_PADDQ,
    ZYDIS_MNEMONIC_PSUBB,     ZYDIS_MNEMONIC_PSUBW,      ZYDIS_MNEMONIC_PSUBD,
    ZYDIS_MNEMONIC_PSUBQ,     ZYDIS_MNEMONIC_PCMPEQB,    ZYDIS_MNEMONIC_PCMPEQW,
    ZYDIS_MNEMONIC_PCMPEQD,   ZYDIS_MNEMONIC_PCMPGTB,    ZYDIS_MNEMONIC_PCMPGTW,
    ZYDIS_MNEMONIC_PCMPGTD,   ZYDIS_MNEMONIC_PUNPCKLBW,  ZYDIS_MNEMONIC_PUNPCKLWD,
    ZYDIS_MNEMONIC_PUNPCKLDQ, ZYDIS_MNEMONIC_PUNPCKLQDQ, ZYDIS_MNEMONIC_PUNPCKHBW,
    ZYDIS_MNEMONIC_PUNPCKHWD, ZYDIS_MNEMONIC_PUNPCKHDQ,  ZYDIS_MNEMONIC_PUNPCKHQDQ,
    ZYDIS_MNEMONIC_PSHUFD,    ZYDIS_MNEMONIC_PSHUFLW,    ZYDIS_MNEMONIC_PSHUFHW,
    ZYDIS_MNEMONIC_PSLLW,     ZYDIS_MNEMONIC_PSLLD,      ZYDIS_MNEMONIC_PSLLQ,
    ZYDIS_MNEMONIC_PSRLW,     ZYDIS_MNEMONIC_PSRLD,      ZYDIS_MNEMONIC_PSRLQ,
    ZYDIS_MNEMONIC_PSRAW,     ZYDIS_MNEMONIC_PSRAD,      ZYDIS_MNEMONIC_PSLLDQ,
    ZYDIS_MNEMONIC_PSRLDQ,    ZYDIS_MNEMONIC_PEXTRW,     ZYDIS_MNEMONIC_PINSRW,
    ZYDIS_MNEMONIC_PMULLW,    ZYDIS_MNEMONIC_PMULUDQ,    ZYDIS_MNEMONIC_PMINUB,
    ZYDIS_MNEMONIC_PMAXUB,
};

// One bit for each mnemonic.
template <size_t kCount>
constexpr auto bits_of(const ZydisMnemonic (&list)[kCount]) {
    std::array<bool, ZYDIS_MNEMONIC_MAX_VALUE + 1> bits{};
    for (ZydisMnemonic one : list) bits[one] = true;
    return bits;
}
constexpr auto kIsGeneral = bits_of(kGeneral);
constexpr auto kIsVector = bits_of(kVector);

const ZydisDecoder& decoder() {
    static const ZydisDecoder one = [] {
        ZydisDecoder made;
        ZydisDecoderInit(&made, ZYDIS_MACHINE_MODE_LONG_64, ZYDIS_STACK_WIDTH_64);
        return made;
    }();
    return one;
}

// The prefixes of an instruction in legacy encoding.
struct Prefixes {
    bool operand_size = false; // 66
    bool repeat = false;       // f2, f3
    bool own_segment = false;  // fs:, gs:
    unsigned rex = 0;
    const char* fault = nullptr;

    bool rex_w() const { return (rex & 8) != 0; }
};

// As compilers place them: one of each at most, REX last.
Prefixes prefixes_of(Bytes code, const ZydisDecodedInstruction& instruction) {
    Prefixes found;
    const size_t count = instruction.raw.prefix_count;
    for (size_t i = 0; i < count; ++i) {
        const unsigned char byte = code[i];
        bool* flag = nullptr;
        if (byte == 0x66) flag = &found.operand_size;
        if (byte == 0xf2 || byte == 0xf3) flag = &found.repeat;
        if (byte == 0x64 || byte == 0x65) flag = &found.own_segment;
        if (flag != nullptr && !*flag) {
            *flag = true;
        } else if ((byte & 0xf0) == 0x40 && i + 1 == count) {
            found.rex = byte;
        } else {
            // is_prefix_bad() of the kernel; 67 and what comes twice it would take
            const bool is_refused =
                byte == 0xf0 || byte == 0x2e || byte == 0x36 || byte == 0x3e || byte == 0x26;
            found.fault = is_refused ? kRefusedPrefix : kOddForm;
        }
    }
    return found;
}

// Explicit and implicit operands: only what the kernel's copy of the instruction sees the same.
const char* fault_of_operands(Operands operands) {
    for (const ZydisDecodedOperand& operand : operands) {
        const bool writes = (operand.actions & ZYDIS_OPERAND_ACTION_MASK_WRITE) != 0;
        if (operand.type == ZYDIS_OPERAND_TYPE_REGISTER) {
            switch (ZydisRegisterGetClass(operand.reg.value)) {
                case ZYDIS_REGCLASS_GPR8:
                case ZYDIS_REGCLASS_GPR16:
                case ZYDIS_REGCLASS_GPR32:
                case ZYDIS_REGCLASS_GPR64:
                case ZYDIS_REGCLASS_XMM:
                case ZYDIS_REGCLASS_FLAGS:
                    break;
                default:
                    if (operand.reg.value == ZYDIS_REGISTER_MXCSR) break;
                    return "uses registers that are not on the list";
            }
        } else if (operand.type == ZYDIS_OPERAND_TYPE_MEMORY) {
            const bool is_own = operand.mem.segment == ZYDIS_REGISTER_FS ||
                                operand.mem.segment == ZYDIS_REGISTER_GS;
            if (is_own && writes) return "stores to thread-local memory";
            if (is_own && operand.mem.base == ZYDIS_REGISTER_RIP) return kOddForm;
            if (operand.mem.type != ZYDIS_MEMOP_TYPE_MEM &&
                operand.mem.type != ZYDIS_MEMOP_TYPE_AGEN)
                return kOddForm;
        }
    }
    return nullptr;
}

constexpr SiteVerdict allowed(SiteKind kind) {
    return {true, kind, 0, ""};
}
constexpr SiteVerdict refused(const char* reason) {
    return {false, SiteKind::kSingleStep, 0, reason};
}

// nop of whatever length; the kernel rewrites those of 5 bytes where it can, and later kernels
// those of more.
SiteVerdict judge_nop(Bytes code, const ZydisDecodedInstruction& instruction, uint64_t address,
                      const SiteOptions& options, SitePosition position) {
    const Bytes bytes = code.substr(0, instruction.length);
    static constexpr unsigned char kOne[] = {0x90};
    static constexpr unsigned char kTwo[] = {0x66, 0x90};
    static constexpr unsigned char kThree[] = {0x0f, 0x1f, 0x00};
    static constexpr unsigned char kFour[] = {0x0f, 0x1f, 0x40, 0x00};
    static constexpr unsigned char kFive[] = {0x0f, 0x1f, 0x44, 0x00, 0x00};
    const auto is = [&](const auto& form) { return bytes == Bytes(form, sizeof(form)); };
    if (is(kOne) || is(kTwo)) return allowed(SiteKind::kEmulated);
    // Emulated since the kernel knows the 5-byte form, single-stepped before.
    const SiteKind longer =
        options.kernel_optimizes_nop5 ? SiteKind::kEmulated : SiteKind::kSingleStep;
    if (is(kThree) || is(kFour)) return allowed(longer);
    if (!is(kFive)) return refused(kOddForm);
    if (!options.nop5_is_safe)
        return refused(options.kernel_optimizes_nop5 ? kEndsChildren : kUntried);
    if (position != SitePosition::kEntry) return refused(kRewritten);
    if (!options.kernel_optimizes_nop5) return allowed(SiteKind::kSingleStep);
    // A nop across two pages is not rewritten (can_optimize).
    return allowed(address % kPage + kNop5 <= kPage ? SiteKind::kOptimizedNop
                                                    : SiteKind::kEmulated);
}

// Relative and indirect jumps and calls, ret.
SiteVerdict judge_branch(Bytes code, const ZydisDecodedInstruction& instruction, Operands operands,
                         const Prefixes& prefixes, const SiteOptions& options) {
    const bool bare = instruction.raw.prefix_count == 0;
    const unsigned char first = code[0];
    // An emulated call pushes its return address on the stack alone (emulate_push_stack); one that
    // is stepped leaves that of the copy on the shadow stack (UPROBE_FIX_CALL mends the stack).
    // The return then ends the process. Later kernels do the former right; which, can't be seen.
    if (instruction.meta.category == ZYDIS_CATEGORY_CALL && !options.no_shadow_stacks)
        return refused(kNoShadow);
    switch (instruction.meta.category) {
        case ZYDIS_CATEGORY_RET:
            // f3 c3 is what compilers emitted for years for the sake of an old processor.
            if ((bare && (first == 0xc3 || first == 0xc2)) ||
                (instruction.length == 2 && first == 0xf3 && code[1] == 0xc3))
                return allowed(SiteKind::kSingleStep);
            return refused(kOddForm);
        case ZYDIS_CATEGORY_COND_BR:
            if (!bare) return refused(kOddForm);
            if ((first & 0xf0) == 0x70 || (first == 0x0f && (code[1] & 0xf0) == 0x80))
                return allowed(SiteKind::kEmulated);
            return refused(kNotListed); // loop, jrcxz, xbegin
        default:
            break;
    }
    if (bare && (first == 0xe8 || first == 0xe9 || first == 0xeb)) {
        // A jump to the next instruction is a nop for the kernel.
        if (first != 0xe8 && operands[0].imm.value.s == 0) return refused(kRewritten);
        return allowed(SiteKind::kEmulated);
    }
    // Through a register or memory: ff /2, ff /4; of prefixes only the REX that names a register.
    if (prefixes.operand_size || prefixes.repeat || prefixes.own_segment || prefixes.rex_w() ||
        instruction.opcode != 0xff || instruction.opcode_map != ZYDIS_OPCODE_MAP_DEFAULT ||
        (instruction.raw.modrm.reg != 2 && instruction.raw.modrm.reg != 4))
        return refused(kOddForm);
    return allowed(SiteKind::kSingleStep);
}

// lea 0(%rdi),%rdi, which the kernel takes for a nop (insn_is_nop).
bool is_empty_lea(Operands operands) {
    return operands[0].reg.value == operands[1].mem.base &&
           operands[1].mem.index == ZYDIS_REGISTER_NONE && operands[1].mem.disp.value == 0;
}

SiteVerdict judge_general(const ZydisDecodedInstruction& instruction, Operands operands,
                          const Prefixes& prefixes) {
    if (prefixes.repeat) return refused(kOddForm);
    // 66 before REX.W has no effect.
    if (prefixes.operand_size && prefixes.rex_w()) return refused(kOddForm);
    const unsigned char opcode = instruction.opcode;
    const bool is_one_byte = instruction.opcode_map == ZYDIS_OPCODE_MAP_DEFAULT;
    switch (instruction.mnemonic) {
        case ZYDIS_MNEMONIC_PUSH:
            if (instruction.operand_width != 64 || prefixes.operand_size) return refused(kOddForm);
            if (is_one_byte && (opcode & 0xf8) == 0x50) {
                if (prefixes.rex != 0 && prefixes.rex != 0x41) return refused(kOddForm);
                return allowed(SiteKind::kEmulated);
            }
            if (opcode == 0xff && instruction.raw.modrm.mod == 3) return refused(kOddForm);
            break;
        case ZYDIS_MNEMONIC_POP:
            if (!is_one_byte || (opcode & 0xf8) != 0x58 || opcode == 0x5c ||
                prefixes.operand_size || (prefixes.rex != 0 && prefixes.rex != 0x41))
                return refused(kOddForm);
            break;
        case ZYDIS_MNEMONIC_LEAVE:
            if (instruction.raw.prefix_count != 0) return refused(kOddForm);
            break;
        case ZYDIS_MNEMONIC_MOV:
            if (is_one_byte && opcode >= 0xa0 && opcode <= 0xa3) return refused(kOddForm);
            break;
        case ZYDIS_MNEMONIC_MOVSXD:
            if (!prefixes.rex_w()) return refused(kOddForm);
            break;
        case ZYDIS_MNEMONIC_LEA:
            if (prefixes.own_segment) return refused(kOddForm);
            if (is_empty_lea(operands)) return refused(kRewritten);
            break;
        default:
            break;
    }
    return allowed(SiteKind::kSingleStep);
}

SiteVerdict judge(Bytes code, const ZydisDecodedInstruction& instruction, Operands operands,
                  uint64_t address, const SiteOptions& options, SitePosition position) {
    // The kernel compares the opcode byte without its map, so that it takes some of these for
    // branches, nops or returns; which of them is its secret, so none is.
    if (instruction.encoding != ZYDIS_INSTRUCTION_ENCODING_LEGACY) return refused(kWrongByKernel);
    const Prefixes prefixes = prefixes_of(code, instruction);
    if (prefixes.fault != nullptr) return refused(prefixes.fault);
    switch (instruction.mnemonic) {
        case ZYDIS_MNEMONIC_ENDBR64:
            return allowed(SiteKind::kSingleStep);
        case ZYDIS_MNEMONIC_NOP:
            return judge_nop(code, instruction, address, options, position);
        default:
            break;
    }
    switch (instruction.meta.category) {
        case ZYDIS_CATEGORY_RET:
        case ZYDIS_CATEGORY_COND_BR:
        case ZYDIS_CATEGORY_UNCOND_BR:
        case ZYDIS_CATEGORY_CALL:
            return judge_branch(code, instruction, operands, prefixes, options);
        case ZYDIS_CATEGORY_STRINGOP:
            return refused(prefixes.repeat ? kRepeated : kNotListed);
        default:
            break;
    }
    if (const char* fault = fault_of_operands(operands)) return refused(fault);
    if (kIsVector[instruction.mnemonic]) {
        // At most the one prefix that makes it this instruction.
        for (size_t i = 0; i < instruction.raw.prefix_count; ++i)
            if (instruction.raw.prefixes[i].type == ZYDIS_PREFIX_TYPE_IGNORED)
                return refused(kOddForm);
        return prefixes.operand_size && prefixes.repeat ? refused(kOddForm)
                                                        : allowed(SiteKind::kSingleStep);
    }
    if (kIsGeneral[instruction.mnemonic]) return judge_general(instruction, operands, prefixes);
    return refused(kNotListed);
}

} // namespace

SiteVerdict judge_site(Bytes code, uint64_t address, const SiteOptions& options,
                       SitePosition position) {
    ZydisDecodedInstruction instruction;
    ZydisDecodedOperand operands[ZYDIS_MAX_OPERAND_COUNT];
    if (code.empty() || !ZYAN_SUCCESS(ZydisDecoderDecodeFull(&decoder(), code.data(), code.size(),
                                                             &instruction, operands)))
        return refused("could not be decoded");
    SiteVerdict verdict =
        judge(code, instruction, {operands, instruction.operand_count}, address, options, position);
    verdict.length = instruction.length;
    return verdict;
}

std::string instruction_text(Bytes code, uint64_t address) {
    static const ZydisFormatter formatter = [] {
        ZydisFormatter made;
        ZydisFormatterInit(&made, ZYDIS_FORMATTER_STYLE_ATT);
        ZydisFormatterSetProperty(&made, ZYDIS_FORMATTER_PROP_ADDR_PADDING_ABSOLUTE,
                                  ZYDIS_PADDING_DISABLED);
        return made;
    }();
    ZydisDecodedInstruction instruction;
    ZydisDecodedOperand operands[ZYDIS_MAX_OPERAND_COUNT];
    char text[128];
    if (!ZYAN_SUCCESS(
            ZydisDecoderDecodeFull(&decoder(), code.data(), code.size(), &instruction, operands)) ||
        !ZYAN_SUCCESS(ZydisFormatterFormatInstruction(&formatter, &instruction, operands,
                                                      instruction.operand_count_visible, text,
                                                      sizeof text, address, nullptr)))
        return {};
    return text;
}

} // namespace speedbump::elf
