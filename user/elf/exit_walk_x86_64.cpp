// SPDX-License-Identifier: MIT
#include "elf/exit_walk_x86_64.h"

namespace speedbump::elf {

namespace {

constexpr size_t kHistory = 24; // instructions that are looked back from a jump

uint8_t number_of(ZydisRegister name) {
    if (name == ZYDIS_REGISTER_NONE || name == ZYDIS_REGISTER_RIP) return JumpOperand::kNone;
    return static_cast<uint8_t>(ZydisRegisterGetId(whole(name)));
}

} // namespace

bool ExitWalk::add_part(uint64_t address) {
    if (belongs(address)) return true;
    const auto range = finder_.next_part(address, parts_.size());
    const auto pads = finder_.landing_pads(address);
    if (!range || !pads) {
        refuse(range ? pads.error().message : range.error().message);
        return false;
    }
    Part part{*range, {}};
    for (uint64_t at = range->begin; at < range->end;) {
        const auto one = finder_.decode(at, range->end);
        if (!one) break; // what follows is no code, or can't be told from data
        part.starts.push_back(at);
        at = one->end();
    }
    parts_.push_back(std::move(part));
    for (const uint64_t pad : *pads) follow(pad);
    return true;
}

void ExitWalk::follow(uint64_t address) {
    if (!add_part(address)) return;
    const bool starts = std::any_of(parts_.begin(), parts_.end(), [address](const Part& part) {
        return part.has_start(address);
    });
    if (!starts)
        refuse("its code can't be told apart from data");
    else if (!seen_.contains(address) && queued_.insert(address).second)
        todo_.push_back(address); // once: a table may name it a thousand times
}

void ExitWalk::follow_run(uint64_t address) {
    history_.clear();
    while (reason_.empty() && !seen_.contains(address)) {
        const auto part = std::find_if(parts_.begin(), parts_.end(), [address](const Part& one) {
            return address >= one.range.begin && address < one.range.end;
        });
        if (part == parts_.end()) return follow(address); // it falls through to another function
        const uint64_t end = part->range.end;             // parts may be added below
        const auto one = finder_.decode(address, end);
        if (!one || !part->has_start(address))
            return refuse("its code can't be told apart from data");
        seen_[address] = one->decoded.length;
        take(*one);
        if (!goes_on(*one)) return;
        history_.push_back(*one);
        if (history_.size() > kHistory) history_.erase(history_.begin());
        // A function that ends with a call ends with one that does not return.
        if (one->category() == ZYDIS_CATEGORY_CALL && one->end() == end) return;
        address = one->end();
    }
}

// Addresses that the instruction takes: where an indirect jump may lead, or find its table.
void ExitWalk::take(const Instruction& one) {
    if (const auto address = one.taken_address()) {
        table_at(*address);
        return;
    }
    const bool fixed = !finder_.file->is_position_independent();
    for (size_t i = 0; i < one.decoded.operand_count_visible; ++i) {
        const ZydisDecodedOperand& operand = one.operands[i];
        if (fixed && operand.type == ZYDIS_OPERAND_TYPE_MEMORY &&
            operand.mem.index != ZYDIS_REGISTER_NONE)
            table_at(static_cast<uint64_t>(operand.mem.disp.value));
        if (fixed && operand.type == ZYDIS_OPERAND_TYPE_IMMEDIATE && !operand.imm.is_relative)
            table_at(operand.imm.value.u);
    }
}

bool ExitWalk::goes_on(const Instruction& one) {
    switch (one.mnemonic()) {
        case ZYDIS_MNEMONIC_UD0:
        case ZYDIS_MNEMONIC_UD1:
        case ZYDIS_MNEMONIC_UD2:
        case ZYDIS_MNEMONIC_HLT:
        case ZYDIS_MNEMONIC_INT3:
            return false;
        case ZYDIS_MNEMONIC_RET:
            if (one.decoded.opcode != 0xc3 && one.decoded.opcode != 0xc2) {
                refuse("it returns by " + finder_.text_of(one));
                return false;
            }
            add_exit(one, Exit::kAlways);
            return false;
        case ZYDIS_MNEMONIC_JMP:
            if (one.direct_target())
                jump(one, Exit::kAlways);
            else
                indirect_jump(one);
            return false;
        default:
            break;
    }
    if (one.mnemonic() == ZYDIS_MNEMONIC_XEND) return true; // for Zydis a jump
    switch (one.category()) {
        case ZYDIS_CATEGORY_COND_BR: {
            const bool by_flags =
                one.mnemonic() != ZYDIS_MNEMONIC_XBEGIN &&
                (one.decoded.opcode & 0xf0) == (one.decoded.length > 4 ? 0x80 : 0x70);
            const auto target = one.direct_target();
            if (!target)
                refuse("it jumps by " + finder_.text_of(one));
            else if (by_flags)
                jump(one, one.decoded.opcode & 0x0f);
            else if (belongs(*target))
                follow(*target);
            else
                refuse("it jumps to other code by " + finder_.text_of(one));
            return true;
        }
        case ZYDIS_CATEGORY_RET: // far, from interrupts
        case ZYDIS_CATEGORY_UNCOND_BR:
        case ZYDIS_CATEGORY_SYSRET:
            if (one.mnemonic() == ZYDIS_MNEMONIC_XABORT) return true;
            refuse("it leaves by " + finder_.text_of(one));
            return false;
        default:
            return true;
    }
}

// A jump there leaves the function.
bool ExitWalk::is_tail_call(uint64_t target) const {
    if (target == entry_) return !finder_.is_go; // there: begins anew on a larger stack
    if (belongs(target)) return false;
    const Function* function = finder_.function_at(target);
    return function != nullptr ? !finder_.is_cold(*function) : finder_.is_stub(target);
}

void ExitWalk::jump(const Instruction& one, uint8_t condition) {
    const uint64_t target = *one.direct_target();
    if (is_tail_call(target))
        add_exit(one, condition);
    else
        follow(target);
}

void ExitWalk::add_exit(const Instruction& one, uint8_t condition,
                        std::optional<JumpOperand> operand) {
    const SiteVerdict verdict = judge_site(finder_.code(one.address, one.decoded.length),
                                           one.address, finder_.options, SitePosition::kInside);
    if (!verdict.allowed)
        refuse("it leaves by " + finder_.text_of(one) + ", which " + verdict.reason);
    Exit exit;
    exit.file_offset = *finder_.file->offset_of_address(one.address);
    exit.length = one.decoded.length;
    exit.condition = condition;
    exit.operand = operand;
    exit.is_return = one.category() == ZYDIS_CATEGORY_RET;
    exit.target = one.direct_target();
    exit.instruction = finder_.text_of(one);
    exits_[one.address] = std::move(exit);
}

// Jumps of which only the call itself can tell whether they leave.
void ExitWalk::add_undecided() {
    for (const uint64_t address : undecided_) {
        if (!reason_.empty()) break;
        const auto jump = finder_.decode(address, address + 15);
        JumpOperand operand;
        const ZydisDecodedOperand& where = jump->first();
        operand.in_memory = jump->has_memory(0);
        if (operand.in_memory) {
            operand.base = number_of(where.mem.base);
            operand.index = number_of(where.mem.index);
            operand.scale = where.mem.scale;
            operand.displacement = where.mem.disp.value;
            operand.from_next = where.mem.base == ZYDIS_REGISTER_RIP;
            if (where.mem.segment == ZYDIS_REGISTER_FS || where.mem.segment == ZYDIS_REGISTER_GS)
                refuse("it leaves by " + finder_.text_of(*jump));
        } else {
            operand.base = number_of(where.reg.value);
        }
        add_exit(*jump, Exit::kAlways, has_labels_ ? std::optional(operand) : std::nullopt);
    }
}

Result<WaysOut> ExitWalk::run() {
    if (!add_part(entry_)) return refusal(reason_);
    follow(entry_);
    // Go knows places that nothing jumps to, where a panic that was recovered returns from.
    if (finder_.is_go)
        for (const uint64_t start : std::vector(parts_.front().starts)) follow(start);
    while (reason_.empty() && !todo_.empty()) {
        const uint64_t next = todo_.front();
        todo_.pop_front();
        follow_run(next);
        if (todo_.empty() && (!undecided_.empty() || !switches_.empty())) read_tables();
    }
    if (!switches_.empty() && !has_labels_) refuse("it jumps through a table that was not found");
    add_undecided();
    // A jump into the middle of what was decoded otherwise.
    for (auto one = seen_.begin(); one != seen_.end() && reason_.empty(); ++one) {
        const auto next = std::next(one);
        if (next != seen_.end() && one->first + one->second > next->first)
            refuse("its code can't be told apart from data");
    }
    if (reason_.empty() && exits_.empty()) refuse("it never returns");
    if (!reason_.empty()) return refusal(reason_);
    WaysOut ways;
    ways.entry_address = entry_;
    ways.is_go = finder_.is_go;
    for (auto& [address, exit] : exits_) ways.exits.push_back(std::move(exit));
    for (const Part& part : parts_) ways.parts.push_back(part.range);
    return ways;
}

} // namespace speedbump::elf
