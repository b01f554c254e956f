// SPDX-License-Identifier: MIT
#pragma once

// What exits_x86_64.cpp, exit_walk_x86_64.cpp and exit_tables_x86_64.cpp share.
#include <Zydis/Zydis.h>

#include <algorithm>
#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "elf/exit_code.h"
#include "elf/exits.h"
#include "elf/frames.h"
#include "elf/image.h"
#include "elf/probe_site.h"
#include "util/result.h"

namespace speedbump::elf {

// One instruction, decoded.
struct Instruction {
    uint64_t address = 0;
    ZydisDecodedInstruction decoded;
    ZydisDecodedOperand operands[ZYDIS_MAX_OPERAND_COUNT];

    uint64_t end() const { return address + decoded.length; }
    ZydisMnemonic mnemonic() const { return decoded.mnemonic; }
    ZydisInstructionCategory category() const { return decoded.meta.category; }
    const ZydisDecodedOperand& first() const { return operands[0]; }
    const ZydisDecodedOperand& second() const { return operands[1]; }
    bool has_memory(size_t operand) const {
        return decoded.operand_count_visible > operand &&
               operands[operand].type == ZYDIS_OPERAND_TYPE_MEMORY;
    }
    bool has_register(size_t operand) const {
        return decoded.operand_count_visible > operand &&
               operands[operand].type == ZYDIS_OPERAND_TYPE_REGISTER;
    }
    bool has_immediate(size_t operand) const {
        return decoded.operand_count_visible > operand &&
               operands[operand].type == ZYDIS_OPERAND_TYPE_IMMEDIATE;
    }
    std::optional<uint64_t> direct_target() const {
        if (!has_immediate(0) || !operands[0].imm.is_relative) return std::nullopt;
        return end() + static_cast<uint64_t>(operands[0].imm.value.s);
    }
    // lea x(%rip),%reg
    std::optional<uint64_t> taken_address() const {
        if (mnemonic() != ZYDIS_MNEMONIC_LEA || second().mem.base != ZYDIS_REGISTER_RIP)
            return std::nullopt;
        return end() + static_cast<uint64_t>(second().mem.disp.value);
    }
};

// The register that this one is a part of.
inline ZydisRegister whole(ZydisRegister name) {
    return ZydisRegisterGetLargestEnclosing(ZYDIS_MACHINE_MODE_LONG_64, name);
}

struct ExitFinder::Impl : ExitCode {
    Impl(std::shared_ptr<const ElfFile> elf, const SiteOptions& its_options)
        : ExitCode(std::move(elf), its_options) {
        ZydisDecoderInit(&decoder, ZYDIS_MACHINE_MODE_LONG_64, ZYDIS_STACK_WIDTH_64);
    }

    std::optional<Instruction> decode(uint64_t address, uint64_t end) const {
        const auto bytes = code(address, std::min<uint64_t>(end - address, 15));
        Instruction one;
        one.address = address;
        if (bytes.empty() || !ZYAN_SUCCESS(ZydisDecoderDecodeFull(
                                 &decoder, bytes.data(), bytes.size(), &one.decoded, one.operands)))
            return std::nullopt;
        return one;
    }

    std::string text_of(const Instruction& one) const {
        return instruction_text(code(one.address, one.decoded.length), one.address);
    }

    // A stub of the procedure linkage table, or one of the same form.
    bool is_stub(uint64_t address) const {
        auto one = decode(address, address + 15);
        if (one && one->mnemonic() == ZYDIS_MNEMONIC_ENDBR64)
            one = decode(one->end(), one->end() + 15);
        return one && one->mnemonic() == ZYDIS_MNEMONIC_JMP && one->has_memory(0) &&
               one->first().mem.base == ZYDIS_REGISTER_RIP;
    }

    ZydisDecoder decoder;
};

// One function.
class ExitWalk {
  public:
    ExitWalk(const ExitFinder::Impl& finder, uint64_t entry) : finder_(finder), entry_(entry) {}

    Result<WaysOut> run();

  private:
    struct Part {
        CodePart range;
        std::vector<uint64_t> starts; // of its instructions, decoded one after the other

        bool has_start(uint64_t address) const {
            return std::binary_search(starts.begin(), starts.end(), address);
        }
    };

    struct Table {
        std::optional<uint64_t> bound; // how many entries it has, where that is known
        bool of_addresses = false;     // not of distances; known with the bound
    };

    bool belongs(uint64_t address) const {
        return std::any_of(parts_.begin(), parts_.end(), [address](const Part& part) {
            return address >= part.range.begin && address < part.range.end;
        });
    }
    bool add_part(uint64_t address);
    // Refused unless an instruction is known to start there.
    void follow(uint64_t address);
    void follow_run(uint64_t address);
    void take(const Instruction& one);
    // False where the code ends.
    bool goes_on(const Instruction& one);
    void jump(const Instruction& one, uint8_t condition);
    void indirect_jump(const Instruction& one);
    bool is_tail_call(uint64_t target) const;
    void add_exit(const Instruction& one, uint8_t condition,
                  std::optional<JumpOperand> operand = std::nullopt);
    // One that is to be read, unless it is known already.
    Table& table_at(uint64_t address) {
        const auto [known, is_new] = tables_.try_emplace(address);
        if (is_new) unread_tables_.insert(address);
        return known->second;
    }
    bool is_switch(const Instruction& jump);
    std::optional<uint64_t> table_bound() const;
    void add_undecided();
    void read_tables();
    void read_distances(uint64_t table, std::optional<uint64_t> bound);
    void read_addresses(uint64_t table, std::optional<uint64_t> bound);
    // The end of a table whose length is not known, and no entry of it.
    bool ends_table(uint64_t target) const;
    void refuse(std::string reason) {
        if (reason_.empty()) reason_ = std::move(reason);
    }

    const ExitFinder::Impl& finder_;
    uint64_t entry_;
    std::vector<Part> parts_;
    std::map<uint64_t, uint8_t> seen_; // instructions that are reached: address, length
    std::deque<uint64_t> todo_;
    std::set<uint64_t> queued_; // all that was ever in it
    std::map<uint64_t, Exit> exits_;
    std::vector<Instruction> history_; // of the straight line that is followed
    std::map<uint64_t, Table> tables_; // that may lead into the function
    std::set<uint64_t> unread_tables_; // of these
    size_t parts_pointed_into_ = 0;    // so many have been looked for in the file's pointers
    uint64_t table_budget_ = kTableBudget;
    std::set<uint64_t> undecided_; // indirect jumps
    std::vector<uint64_t> switches_;
    bool has_labels_ = false; // places inside are known to be jumped to
    std::string reason_;
};

} // namespace speedbump::elf
