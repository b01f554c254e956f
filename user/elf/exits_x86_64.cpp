// SPDX-License-Identifier: MIT
#include "elf/exits.h"

#include "elf/exit_walk_x86_64.h"

namespace speedbump::elf {

ExitFinder::ExitFinder(std::shared_ptr<const ElfFile> file, const SiteOptions& options)
    : impl_(std::make_unique<Impl>(std::move(file), options)) {}
ExitFinder::~ExitFinder() = default;

Result<WaysOut> ExitFinder::find(uint64_t entry_offset) const {
    const auto entry = impl_->file->address_of_offset(entry_offset);
    if (!entry) return refusal("there is no code");
    // In a program of Go only its own functions, package.name, have the goroutine in R14.
    const Function* function = impl_->is_go ? impl_->function_at(*entry) : nullptr;
    const auto name = function != nullptr ? function->names.front() : std::string_view();
    if (impl_->is_go && (name.find('.') == name.npos || name.ends_with(".abi0")))
        return refusal("it is not a function of Go's own ABI in a program of Go");
    return ExitWalk(*impl_, *entry).run();
}

std::optional<uint64_t> ExitFinder::stack_used(uint64_t entry_offset, uint64_t place) const {
    const auto entry = impl_->file->address_of_offset(entry_offset);
    if (!entry || place < entry_offset) return std::nullopt;
    const uint64_t end = *entry + (place - entry_offset);
    int64_t used = 0;
    for (uint64_t at = *entry; at != end;) {
        const auto one = at < end ? impl_->decode(at, at + 15) : std::nullopt;
        if (!one) return std::nullopt;
        at = one->end();
        const bool of_stack = one->has_register(0) && one->first().reg.value == ZYDIS_REGISTER_RSP;
        bool writes = false;
        for (size_t i = 0; i < one->decoded.operand_count; ++i)
            writes |= one->operands[i].type == ZYDIS_OPERAND_TYPE_REGISTER &&
                      whole(one->operands[i].reg.value) == ZYDIS_REGISTER_RSP &&
                      (one->operands[i].actions & ZYDIS_OPERAND_ACTION_MASK_WRITE) != 0;
        if (!writes) continue;
        if (one->mnemonic() == ZYDIS_MNEMONIC_PUSH && one->decoded.operand_width == 64)
            used += 8;
        else if (one->mnemonic() == ZYDIS_MNEMONIC_POP && one->decoded.operand_width == 64 &&
                 !of_stack)
            used -= 8;
        else if (one->mnemonic() == ZYDIS_MNEMONIC_SUB && of_stack && one->has_immediate(1))
            used += one->second().imm.value.s;
        else if (one->mnemonic() == ZYDIS_MNEMONIC_ADD && of_stack && one->has_immediate(1))
            used -= one->second().imm.value.s;
        else
            return std::nullopt;
    }
    return static_cast<uint64_t>(used);
}

bool ExitFinder::keeps(uint64_t entry_offset, uint64_t place,
                       const std::vector<uint8_t>& registers) const {
    const auto entry = impl_->file->address_of_offset(entry_offset);
    if (!entry || place < entry_offset) return false;
    const uint64_t end = *entry + (place - entry_offset);
    for (uint64_t at = *entry; at != end;) {
        const auto one = at < end ? impl_->decode(at, at + 15) : std::nullopt;
        if (!one || one->category() == ZYDIS_CATEGORY_CALL) return false;
        at = one->end();
        for (size_t i = 0; i < one->decoded.operand_count; ++i) {
            const ZydisDecodedOperand& operand = one->operands[i];
            if (operand.type != ZYDIS_OPERAND_TYPE_REGISTER ||
                (operand.actions & ZYDIS_OPERAND_ACTION_MASK_WRITE) == 0 ||
                ZydisRegisterGetClass(whole(operand.reg.value)) != ZYDIS_REGCLASS_GPR64)
                continue;
            const auto number = static_cast<uint8_t>(ZydisRegisterGetId(whole(operand.reg.value)));
            if (std::find(registers.begin(), registers.end(), number) != registers.end())
                return false;
        }
    }
    return true;
}

} // namespace speedbump::elf
