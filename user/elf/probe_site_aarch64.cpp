// SPDX-License-Identifier: MIT
#include "elf/probe_site.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <iterator>
#include <optional>

namespace speedbump::elf {
namespace {

using Bytes = std::basic_string_view<unsigned char>;

constexpr size_t kWord = 4;
constexpr uint32_t kStackPointer = 31;

// How the kernel gets past it (arch/arm64/kernel/probes/decode-insn.c).
enum class Way {
    kStep,    // at another place, one step
    kEmulate, // in the trap (simulate-insn.c)
    kNop,     // from Linux 6.13 on in the trap, before by a step: a kind of its own
};

// Encodings of one kind: those that have `value` in the bits of `mask`.
struct Form {
    uint32_t mask;
    uint32_t value;
    const char* name;
    Way way;
};

// What may be probed. Stepped are encodings that the architecture defines, that do not look at
// where they are, can't be told from without a trap, and that the kernel steps. Each row allows no
// encoding that is reserved, but for what has_fault() finds.
constexpr Form kForms[] = {
    // Flow of control. Not bl, blr and ret: see kGuardedStack.
    {0xfc000000, 0x14000000, "b", Way::kEmulate},
    {0xff000010, 0x54000000, "b.cond", Way::kEmulate},
    {0x7f000000, 0x34000000, "cbz", Way::kEmulate},
    {0x7f000000, 0x35000000, "cbnz", Way::kEmulate},
    {0x7f000000, 0x36000000, "tbz", Way::kEmulate},
    {0x7f000000, 0x37000000, "tbnz", Way::kEmulate},
    {0xfffffc1f, 0xd61f0000, "br", Way::kEmulate},
    {0x9f000000, 0x10000000, "adr", Way::kEmulate},
    {0x9f000000, 0x90000000, "adrp", Way::kEmulate},
    // Hints, and the thread's own register. A trap goes before the check of a landing pad, and
    // where the kernel steps, memory is not guarded.
    {0xffffffff, 0xd503201f, "nop", Way::kNop},
    {0xffffff3f, 0xd503241f, "bti", Way::kStep},
    {0xffffffff, 0xd503231f, "paciaz", Way::kStep},
    {0xffffffff, 0xd503233f, "paciasp", Way::kStep},
    {0xffffffff, 0xd503235f, "pacibz", Way::kStep},
    {0xffffffff, 0xd503237f, "pacibsp", Way::kStep},
    {0xffffffe0, 0xd53bd040, "mrs tpidr_el0", Way::kStep},
    // Immediates.
    {0x7f800000, 0x11000000, "add", Way::kStep},
    {0x7f800000, 0x31000000, "adds", Way::kStep},
    {0x7f800000, 0x51000000, "sub", Way::kStep},
    {0x7f800000, 0x71000000, "subs", Way::kStep},
    {0x7f800000, 0x12000000, "and", Way::kStep},
    {0x7f800000, 0x32000000, "orr", Way::kStep},
    {0x7f800000, 0x52000000, "eor", Way::kStep},
    {0x7f800000, 0x72000000, "ands", Way::kStep},
    {0xff800000, 0x92800000, "movn", Way::kStep},
    {0xff800000, 0xd2800000, "movz", Way::kStep},
    {0xff800000, 0xf2800000, "movk", Way::kStep},
    {0xffc00000, 0x12800000, "movn", Way::kStep},
    {0xffc00000, 0x52800000, "movz", Way::kStep},
    {0xffc00000, 0x72800000, "movk", Way::kStep},
    {0xffc00000, 0x93400000, "sbfm", Way::kStep},
    {0xffc00000, 0xb3400000, "bfm", Way::kStep},
    {0xffc00000, 0xd3400000, "ubfm", Way::kStep},
    {0xffe08000, 0x13000000, "sbfm", Way::kStep},
    {0xffe08000, 0x33000000, "bfm", Way::kStep},
    {0xffe08000, 0x53000000, "ubfm", Way::kStep},
    {0xffe00000, 0x93c00000, "extr", Way::kStep},
    {0xffe08000, 0x13800000, "extr", Way::kStep},
    // Registers.
    {0xff200000, 0x8a000000, "and", Way::kStep},
    {0xff200000, 0x8a200000, "bic", Way::kStep},
    {0xff200000, 0xaa000000, "orr", Way::kStep},
    {0xff200000, 0xaa200000, "orn", Way::kStep},
    {0xff200000, 0xca000000, "eor", Way::kStep},
    {0xff200000, 0xca200000, "eon", Way::kStep},
    {0xff200000, 0xea000000, "ands", Way::kStep},
    {0xff200000, 0xea200000, "bics", Way::kStep},
    {0xff208000, 0x0a000000, "and", Way::kStep},
    {0xff208000, 0x0a200000, "bic", Way::kStep},
    {0xff208000, 0x2a000000, "orr", Way::kStep},
    {0xff208000, 0x2a200000, "orn", Way::kStep},
    {0xff208000, 0x4a000000, "eor", Way::kStep},
    {0xff208000, 0x4a200000, "eon", Way::kStep},
    {0xff208000, 0x6a000000, "ands", Way::kStep},
    {0xff208000, 0x6a200000, "bics", Way::kStep},
    // Shifted by lsl, lsr, asr: 64 bits, then 32.
    {0x9fa00000, 0x8b000000, "add/sub", Way::kStep},
    {0x9fe00000, 0x8b800000, "add/sub", Way::kStep},
    {0x9fa08000, 0x0b000000, "add/sub", Way::kStep},
    {0x9fe08000, 0x0b800000, "add/sub", Way::kStep},
    // Extended, and shifted by 0 to 3, or by 4.
    {0x1fe01000, 0x0b200000, "add/sub", Way::kStep},
    {0x1fe01c00, 0x0b201000, "add/sub", Way::kStep},
    {0x1fe0fc00, 0x1a000000, "adc/sbc", Way::kStep},
    {0x3fe00410, 0x3a400000, "ccmp/ccmn", Way::kStep},
    {0x3fe00800, 0x1a800000, "csel", Way::kStep},
    {0x7fe0fc00, 0x1ac00800, "udiv", Way::kStep},
    {0x7fe0fc00, 0x1ac00c00, "sdiv", Way::kStep},
    {0x7fe0f000, 0x1ac02000, "lsl/lsr/asr/ror", Way::kStep},
    {0x7ffffc00, 0x5ac00000, "rbit", Way::kStep},
    {0x7ffffc00, 0x5ac00400, "rev16", Way::kStep},
    {0x7ffffc00, 0x5ac00800, "rev", Way::kStep},
    {0xfffffc00, 0xdac00c00, "rev", Way::kStep},
    {0x7ffffc00, 0x5ac01000, "clz", Way::kStep},
    {0x7ffffc00, 0x5ac01400, "cls", Way::kStep},
    {0x7fe08000, 0x1b000000, "madd", Way::kStep},
    {0x7fe08000, 0x1b008000, "msub", Way::kStep},
    {0xff608000, 0x9b200000, "maddl", Way::kStep},
    {0xff608000, 0x9b208000, "msubl", Way::kStep},
    {0xff60fc00, 0x9b407c00, "mulh", Way::kStep},
    // Pairs: 32 and 64 bits, signed words, and vector registers of 32, 64 and 128 bits.
    {0x7e400000, 0x28000000, "stp", Way::kStep},
    {0x7e400000, 0x28400000, "ldp", Way::kStep},
    {0xffc00000, 0x68c00000, "ldpsw", Way::kStep},
    {0xffc00000, 0x69400000, "ldpsw", Way::kStep},
    {0xffc00000, 0x69c00000, "ldpsw", Way::kStep},
    {0xfe400000, 0x2c000000, "stp", Way::kStep},
    {0xfe400000, 0x2c400000, "ldp", Way::kStep},
    {0xfe400000, 0x6c000000, "stp", Way::kStep},
    {0xfe400000, 0x6c400000, "ldp", Way::kStep},
    {0xfe400000, 0xac000000, "stp", Way::kStep},
    {0xfe400000, 0xac400000, "ldp", Way::kStep},
    // One register: by an unsigned offset,
    {0x3fc00000, 0x39000000, "str", Way::kStep},
    {0x3fc00000, 0x39400000, "ldr", Way::kStep},
    {0xbf800000, 0x39800000, "ldrs", Way::kStep},
    {0xffc00000, 0xb9800000, "ldrsw", Way::kStep},
    {0x3fc00000, 0x3d000000, "str", Way::kStep},
    {0x3fc00000, 0x3d400000, "ldr", Way::kStep},
    {0xffc00000, 0x3d800000, "str", Way::kStep},
    {0xffc00000, 0x3dc00000, "ldr", Way::kStep},
    // by a signed one,
    {0x3fe00c00, 0x38000000, "stur", Way::kStep},
    {0x3fe00c00, 0x38400000, "ldur", Way::kStep},
    {0xbfa00c00, 0x38800000, "ldurs", Way::kStep},
    {0xffe00c00, 0xb8800000, "ldursw", Way::kStep},
    {0x3fe00c00, 0x3c000000, "stur", Way::kStep},
    {0x3fe00c00, 0x3c400000, "ldur", Way::kStep},
    {0xffe00c00, 0x3c800000, "stur", Way::kStep},
    {0xffe00c00, 0x3cc00000, "ldur", Way::kStep},
    // with the address changed after it or before,
    {0x3fe00400, 0x38000400, "str", Way::kStep},
    {0x3fe00400, 0x38400400, "ldr", Way::kStep},
    {0xbfa00400, 0x38800400, "ldrs", Way::kStep},
    {0xffe00400, 0xb8800400, "ldrsw", Way::kStep},
    {0x3fe00400, 0x3c000400, "str", Way::kStep},
    {0x3fe00400, 0x3c400400, "ldr", Way::kStep},
    {0xffe00400, 0x3c800400, "str", Way::kStep},
    {0xffe00400, 0x3cc00400, "ldr", Way::kStep},
    // by a register.
    {0x3fe04c00, 0x38204800, "str", Way::kStep},
    {0x3fe04c00, 0x38604800, "ldr", Way::kStep},
    {0xbfa04c00, 0x38a04800, "ldrs", Way::kStep},
    {0xffe04c00, 0xb8a04800, "ldrsw", Way::kStep},
    {0x3fe04c00, 0x3c204800, "str", Way::kStep},
    {0x3fe04c00, 0x3c604800, "ldr", Way::kStep},
    {0xffe04c00, 0x3ca04800, "str", Way::kStep},
    {0xffe04c00, 0x3ce04800, "ldr", Way::kStep},
    // Ordered ones.
    {0x3ffffc00, 0x089ffc00, "stlr", Way::kStep},
    {0x3ffffc00, 0x08dffc00, "ldar", Way::kStep},
    // Floating point, single and double.
    {0xfffffc00, 0x1e260000, "fmov", Way::kStep},
    {0xfffffc00, 0x1e270000, "fmov", Way::kStep},
    {0xfffffc00, 0x9e660000, "fmov", Way::kStep},
    {0xfffffc00, 0x9e670000, "fmov", Way::kStep},
    {0x7fbefc00, 0x1e220000, "scvtf/ucvtf", Way::kStep},
    {0x7fbefc00, 0x1e380000, "fcvtzs/fcvtzu", Way::kStep},
    {0xffbe7c00, 0x1e204000, "fmov/fabs/fneg/fsqrt", Way::kStep},
    {0xfffffc00, 0x1e22c000, "fcvt", Way::kStep},
    {0xfffffc00, 0x1e624000, "fcvt", Way::kStep},
    {0xffa0fc07, 0x1e202000, "fcmp", Way::kStep},
    {0xffa01fe0, 0x1e201000, "fmov", Way::kStep},
    {0xffa08c00, 0x1e200800, "fmul/fdiv/fadd/fsub/fmax/fmin", Way::kStep},
    {0xffa0fc00, 0x1e208800, "fnmul", Way::kStep},
    {0xffa00c00, 0x1e200c00, "fcsel", Way::kStep},
    {0xff800000, 0x1f000000, "fmadd", Way::kStep},
    // What functions begin with that clear or copy vectors.
    {0xbff80c00, 0x0f000400, "movi", Way::kStep},
    {0xfff80c00, 0x6f000400, "movi", Way::kStep},
    {0xfff8fc00, 0x2f00e400, "movi", Way::kStep},
    {0x9f20fc00, 0x0e201c00, "and/orr/eor", Way::kStep},
    {0xfffffc00, 0x4e010c00, "dup", Way::kStep},
};

static_assert(std::all_of(std::begin(kForms), std::end(kForms),
                          [](const Form& form) { return (form.value & ~form.mask) == 0; }));

constexpr const char* kNotListed = "is not on the list of those known to be safe to probe";
constexpr const char* kOddForm = "is encoded in a way that is not on the list";

// What is not on the list for a reason of its own.
struct Danger {
    uint32_t mask;
    uint32_t value;
    const char* name;
    const char* reason;
};
constexpr const char* kGuardedStack =
    "is emulated without the guarded control stack by kernels that have one";
constexpr const char* kLiteral =
    "reads memory beside it, which the kernel's uprobes refuse or get wrong";
constexpr const char* kExclusive = "is a part of an exclusive access, which a trap would undo";
constexpr Form kReturn = {0xfffffc1f, 0xd65f0000, "ret", Way::kEmulate};
constexpr Danger kDangers[] = {
    {0xfc000000, 0x94000000, "bl", kGuardedStack},
    {0xfffffc1f, 0xd63f0000, "blr", kGuardedStack},
    {kReturn.mask, kReturn.value, kReturn.name, kGuardedStack}, // where there may be one
    {0x3b000000, 0x18000000, "ldr", kLiteral},
    {0x3f800000, 0x08000000, "ldxr/stxr", kExclusive},
    {0xff000000, 0xd5000000, "msr/mrs/hint",
     "is a system instruction that the kernel may not step"},
    {0xff000000, 0xd4000000, "svc", "is an exception"},
};

std::optional<uint32_t> word_at(Bytes code) {
    uint32_t word = 0;
    if (code.size() < kWord) return std::nullopt;
    std::memcpy(&word, code.data(), kWord);
    return word;
}

const Form* form_of(uint32_t word) {
    for (const Form& form : kForms)
        if ((word & form.mask) == form.value) return &form;
    return nullptr;
}

// DecodeBitMasks() of the architecture: a run of ones in an element of 2 to 64 bits.
bool is_reserved_mask(uint32_t word) {
    const bool is_wide = (word >> 31) != 0, n = (word >> 22 & 1) != 0;
    const uint32_t ones = word >> 10 & 0x3f;
    if (n && !is_wide) return true;
    const uint32_t size = (n ? 0x40u : 0u) | (~ones & 0x3f);
    const int length = std::bit_width(size) - 1;
    if (length < 1) return true;
    const uint32_t levels = (1u << length) - 1;
    return (ones & levels) == levels;
}

// Encodings of a listed form whose effect the architecture leaves open, and that nothing emits.
bool has_fault(uint32_t word) {
    const uint32_t first = word & 0x1f, base = word >> 5 & 0x1f, second = word >> 10 & 0x1f;
    if ((word & 0x1f800000) == 0x12000000) return is_reserved_mask(word);
    const bool is_vector = (word >> 26 & 1) != 0;
    if ((word & 0x3a000000) == 0x28000000) { // pairs
        const bool loads = (word >> 22 & 1) != 0, writes_base = (word >> 23 & 1) != 0;
        if (loads && first == second) return true;
        return writes_base && !is_vector && base != kStackPointer &&
               (first == base || second == base);
    }
    if ((word & 0x3b200400) == 0x38000400) // one register, with the address changed
        return !is_vector && base != kStackPointer && first == base;
    return false;
}

SiteVerdict refused(const char* reason) {
    return {false, SiteKind::kSingleStep, kWord, reason};
}

} // namespace

SiteVerdict judge_site(Bytes code, uint64_t, const SiteOptions& options, SitePosition) {
    const std::optional<uint32_t> word = word_at(code);
    if (!word) return {false, SiteKind::kSingleStep, 0, "could not be decoded"};
    if (options.no_shadow_stacks && (*word & kReturn.mask) == kReturn.value)
        return {true, SiteKind::kEmulated, kWord, ""};
    const Form* form = form_of(*word);
    if (form == nullptr) {
        for (const Danger& danger : kDangers)
            if ((*word & danger.mask) == danger.value) return refused(danger.reason);
        return refused(kNotListed);
    }
    if (has_fault(*word)) return refused(kOddForm);
    switch (form->way) {
        case Way::kEmulate:
            return {true, SiteKind::kEmulated, kWord, ""};
        case Way::kNop:
            return {true, SiteKind::kOptimizedNop, kWord, ""};
        default:
            return {true, SiteKind::kSingleStep, kWord, ""};
    }
}

// There is no disassembler here: its kind, and its number.
std::string instruction_text(Bytes code, uint64_t) {
    const std::optional<uint32_t> word = word_at(code);
    if (!word) return {};
    const char* name = "";
    if (const Form* form = form_of(*word)) {
        name = form->name;
    } else {
        for (const Danger& danger : kDangers)
            if ((*word & danger.mask) == danger.value) {
                name = danger.name;
                break;
            }
    }
    return *name != '\0' ? fmt::format("{} ({:08x})", name, *word)
                         : fmt::format(".inst 0x{:08x}", *word);
}

} // namespace speedbump::elf
