// SPDX-License-Identifier: MIT
// Indirect jumps: which are those of a switch, and where the tables lead.
#include "elf/exit_walk_x86_64.h"

#include <cstring>
#include <utility>

namespace speedbump::elf {

namespace {

constexpr uint64_t kMaxTable = 4096;

} // namespace

// movslq (%base,%index,4),%reg; add %base,%reg; jmp *%reg
bool ExitWalk::is_switch(const Instruction& jump) {
    // The kernel would refuse a probe there, and compilers write it for tables alone.
    if ((jump.decoded.attributes & ZYDIS_ATTRIB_HAS_NOTRACK) != 0) return true;
    if (!jump.has_register(0)) return false;
    const ZydisRegister target = jump.first().reg.value;
    bool added = false;
    for (auto one = history_.rbegin(); one != history_.rend(); ++one) {
        if (!one->has_register(0)) continue;
        const ZydisRegister written = whole(one->first().reg.value);
        if (one->mnemonic() == ZYDIS_MNEMONIC_ADD && written == target && one->has_register(1)) {
            added = true;
            continue;
        }
        if (one->mnemonic() == ZYDIS_MNEMONIC_MOVSXD && added && one->has_memory(1) &&
            one->second().mem.scale == 4)
            return true;
        if (written == target && !added && one->mnemonic() != ZYDIS_MNEMONIC_CMP &&
            one->mnemonic() != ZYDIS_MNEMONIC_TEST)
            return false;
    }
    return false;
}

// How many entries the table of a switch has: cmp $N,...; ja before it.
std::optional<uint64_t> ExitWalk::table_bound() const {
    bool above = false;
    for (auto one = history_.rbegin(); one != history_.rend(); ++one) {
        if (one->mnemonic() == ZYDIS_MNEMONIC_JNBE) above = true;
        if (above && one->mnemonic() == ZYDIS_MNEMONIC_CMP) {
            if (!one->has_immediate(1)) return std::nullopt;
            return one->second().imm.value.u + 1;
        }
    }
    return std::nullopt;
}

void ExitWalk::indirect_jump(const Instruction& one) {
    if (!is_switch(one)) {
        undecided_.insert(one.address);
        // jmp *table(,%index,8)
        const auto bound = table_bound();
        const ZydisDecodedOperand& where = one.first();
        if (bound && *bound <= kMaxTable && one.has_memory(0) && where.mem.scale == 8 &&
            where.mem.base == ZYDIS_REGISTER_NONE)
            table_at(static_cast<uint64_t>(where.mem.disp.value)) = {bound, true};
        return;
    }
    switches_.push_back(one.address);
    // Its table, when its address was taken on the way here, has as many entries as are asked for.
    const auto bound = table_bound();
    for (auto before = history_.rbegin(); bound && before != history_.rend(); ++before) {
        const auto table = before->taken_address();
        if (!table) continue;
        if (*bound <= kMaxTable) {
            Table& known = table_at(*table);
            known.bound = std::max(known.bound.value_or(0), *bound);
        }
        break;
    }
}

// What each address that the function takes may be: a table of distances from itself, or of
// addresses, or a place in the function.
void ExitWalk::read_tables() {
    for (const uint64_t table : std::exchange(unread_tables_, {})) {
        if (!reason_.empty()) return;
        const Table known = tables_.at(table);
        if (belongs(table)) {
            if (table != entry_) {
                has_labels_ = true;
                follow(table);
            }
            continue;
        }
        if (known.of_addresses) {
            read_addresses(table, known.bound);
            continue;
        }
        read_distances(table, known.bound);
        if (!known.bound && !finder_.file->is_position_independent())
            read_addresses(table, std::nullopt);
    }
    const std::vector<uint64_t>* pointers = finder_.pointers();
    if (pointers == nullptr) return refuse("the relocations of the file can't be read");
    for (; parts_pointed_into_ < parts_.size(); ++parts_pointed_into_) {
        const CodePart range = parts_[parts_pointed_into_].range;
        for (auto one = std::lower_bound(pointers->begin(), pointers->end(), range.begin);
             one != pointers->end() && *one < range.end && reason_.empty(); ++one) {
            if (*one == entry_ || finder_.function_at(*one) != nullptr) continue;
            has_labels_ = true;
            follow(*one);
        }
    }
}

void ExitWalk::read_distances(uint64_t table, std::optional<uint64_t> bound) {
    const uint64_t max_entries = bound.value_or(kMaxTable);
    if (max_entries * 4 > table_budget_) return refuse("it has too many tables");
    table_budget_ -= max_entries * 4;
    const auto bytes = read_address(*finder_.file, table, max_entries * 4);
    const size_t entries = bytes ? bytes->size() / 4 : 0;
    if (bound && entries < *bound) return refuse("a table of jumps can't be read");
    for (size_t i = 0; i < entries && reason_.empty(); ++i) {
        // the next table begins here
        if (!bound && i > 0 && tables_.contains(table + i * 4)) return;
        int32_t distance;
        std::memcpy(&distance, bytes->data() + i * 4, sizeof distance);
        const uint64_t target = table + static_cast<uint64_t>(int64_t{distance});
        if (!bound && ends_table(target)) return;
        has_labels_ = true;
        if (!is_tail_call(target)) follow(target);
    }
}

bool ExitWalk::ends_table(uint64_t target) const {
    for (const Part& part : parts_)
        if (target >= part.range.begin && target < part.range.end) return !part.has_start(target);
    // A part of the function that nothing else leads to has no symbol of a function.
    const FramePart* frame = finder_.frames.find(target);
    return frame == nullptr || finder_.function_at(frame->begin) != nullptr;
}

void ExitWalk::read_addresses(uint64_t table, std::optional<uint64_t> bound) {
    const uint64_t max_entries = bound.value_or(kMaxTable);
    if (max_entries * 8 > table_budget_) return refuse("it has too many tables");
    table_budget_ -= max_entries * 8;
    const auto bytes = read_address(*finder_.file, table, max_entries * 8);
    const size_t entries = bytes ? bytes->size() / 8 : 0;
    if (bound && entries < *bound) return refuse("a table of jumps can't be read");
    for (size_t i = 0; i < entries && reason_.empty(); ++i) {
        uint64_t target;
        std::memcpy(&target, bytes->data() + i * 8, sizeof target);
        if (!bound && (target == entry_ || ends_table(target))) return;
        has_labels_ = true;
        if (!is_tail_call(target)) follow(target);
    }
}

} // namespace speedbump::elf
