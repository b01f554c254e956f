// SPDX-License-Identifier: MIT
#include "elf/placement.h"

#include <Zydis/Zydis.h>
#include <fmt/format.h>

#include <algorithm>
#include <optional>

#include "elf/entry_proof.h"
#include "elf/image.h"
#include "elf/jump_search_x86_64.h"
#include "elf/jump_site.h"
#include "elf/refusal.h"

namespace speedbump::elf {
namespace {

constexpr size_t kMaxRunBytes = 192;
constexpr size_t kMaxRunInstructions = 48;
constexpr size_t kLongestInstruction = 15;
constexpr size_t kEndbr = 4;
static_assert(kMaxRunBytes + kLongestInstruction <= kLongestStretch);

using Bytes = std::basic_string_view<unsigned char>;

// Whether straight-line execution surely goes on after the instruction, in the same thread, with
// nothing special about a trap there.
bool passes_through(const ZydisDecodedInstruction& instruction,
                    const ZydisDecodedOperand* operands) {
    switch (instruction.meta.category) {
        case ZYDIS_CATEGORY_CALL:
        case ZYDIS_CATEGORY_COND_BR:
        case ZYDIS_CATEGORY_UNCOND_BR:
        case ZYDIS_CATEGORY_RET:
        case ZYDIS_CATEGORY_SYSCALL: // may come back in two processes
        case ZYDIS_CATEGORY_SYSRET:
        case ZYDIS_CATEGORY_INTERRUPT:
        case ZYDIS_CATEGORY_SYSTEM:
        case ZYDIS_CATEGORY_IO:
        case ZYDIS_CATEGORY_IOSTRINGOP:
            return false;
        default:
            break;
    }
    switch (instruction.mnemonic) {
        case ZYDIS_MNEMONIC_UD0:
        case ZYDIS_MNEMONIC_UD1:
        case ZYDIS_MNEMONIC_UD2:
        case ZYDIS_MNEMONIC_HLT:
        case ZYDIS_MNEMONIC_XBEGIN: // a trap aborts the transaction
        case ZYDIS_MNEMONIC_XEND:
        case ZYDIS_MNEMONIC_XABORT:
        case ZYDIS_MNEMONIC_POPF:
        case ZYDIS_MNEMONIC_POPFD:
        case ZYDIS_MNEMONIC_POPFQ:
            return false;
        default:
            break;
    }
    for (size_t i = 0; i < instruction.operand_count; ++i) {
        const ZydisDecodedOperand& operand = operands[i];
        bool writes = (operand.actions & ZYDIS_OPERAND_ACTION_MASK_WRITE) != 0;
        // A store to thread-local memory may start a restartable sequence, which a trap restarts.
        if (operand.type == ZYDIS_OPERAND_TYPE_MEMORY && writes &&
            (operand.mem.segment == ZYDIS_REGISTER_FS || operand.mem.segment == ZYDIS_REGISTER_GS))
            return false;
        if (operand.type == ZYDIS_OPERAND_TYPE_REGISTER && writes &&
            operand.reg.value == ZYDIS_REGISTER_SS)
            return false;
    }
    return true;
}

// The code that ends a signal handler. Unwinders know it by its bytes where it has no unwind
// information, and those that a probe changes they would not know.
bool is_signal_return(Bytes code) {
    static constexpr unsigned char kLong[] = {0x48, 0xc7, 0xc0, 0x0f, 0x00, 0x00, 0x00, 0x0f, 0x05};
    static constexpr unsigned char kShort[] = {0xb8, 0x0f, 0x00, 0x00, 0x00, 0x0f, 0x05};
    return code.starts_with(Bytes(kLong, sizeof kLong)) ||
           code.starts_with(Bytes(kShort, sizeof kShort));
}

struct Site {
    uint64_t address = 0;
    uint8_t length = 0;
    SiteKind kind = SiteKind::kSingleStep;
};

// An entry that is known to be one.
struct Entry : ProvenEntry {
    size_t index = 0; // of the caller
    SiteVerdict verdict;
};

// An entry with sites after it that are better.
struct Run {
    Entry entry;
    std::vector<Site> sites;
};

class Placement {
  public:
    Placement(const ElfFile& file, const PlacementOptions& options)
        : file_(file),
          options_(options),
          prover_(file),
          restartable_(file.has_section("__rseq_cs")) {
        ZydisDecoderInit(&decoder_, ZYDIS_MACHINE_MODE_LONG_64, ZYDIS_STACK_WIDTH_64);
    }

    std::vector<Result<ProbeSite>> place(std::span<const uint64_t> entries) {
        sites_.reserve(entries.size());
        for (const uint64_t entry : entries) sites_.push_back(look_at(entry));
        std::vector<size_t> order(runs_.size());
        for (size_t i = 0; i < order.size(); ++i) order[i] = i;
        std::sort(order.begin(), order.end(),
                  [this](size_t a, size_t b) { return stretches_[a].entry < stretches_[b].entry; });
        std::vector<Stretch> sorted;
        sorted.reserve(order.size());
        for (const size_t i : order) sorted.push_back(stretches_[i]);
        if (!sorted.empty()) find_jumps_into(file_, sorted);
        for (size_t i = 0; i < order.size(); ++i)
            sites_[runs_[order[i]].entry.index] = choose(runs_[order[i]], sorted[i]);
        return std::move(sites_);
    }

  private:
    // The site at the entry; keeps a run when there is something better after it.
    Result<ProbeSite> look_at(uint64_t offset) {
        Result<ProvenEntry> proven = prover_.prove(offset);
        if (!proven) return std::move(proven).error();
        Entry entry{*proven, sites_.size(), {}};
        const Bytes code = file_.code_at(offset, kMaxRunBytes);
        if (is_signal_return(code))
            return refusal("signal handlers return to it, and unwinders know it by its code");
        entry.verdict = judge_site(code, entry.address, options_, entry.position);
        if (entry.verdict.length == 0) return refusal("its code could not be decoded");
        if (entry.verdict.allowed && entry.verdict.kind == SiteKind::kOptimizedNop)
            return at_entry(entry, "the entry: a 5-byte nop that the kernel turns into a call");
        if (entry.verdict.allowed && entry.verdict.kind == SiteKind::kEmulated)
            return at_entry(entry, "the entry: the kernel emulates its first instruction");
        if (options_.entry_only) return stay(entry, "as asked for", "no other place was asked for");
        if (entry.end == 0) return stay(entry, "the extent of the function is not known");
        if (restartable_)
            return stay(entry, "the file has restartable sequences, which a trap starts over");
        Run run{entry, {}};
        Stretch stretch;
        stretch.entry = entry.address;
        stretch.function_end = entry.end;
        collect_sites(run, stretch,
                      code.substr(0, std::min<uint64_t>(code.size(), entry.end - entry.address)));
        if (run.sites.empty())
            return stay(entry, "no instruction of its block is one the kernel emulates",
                        "no other instruction that every call passes once may be probed");
        stretch.watched_end = run.sites.back().address + run.sites.back().length;
        stretches_.push_back(stretch);
        runs_.push_back(std::move(run));
        return refusal("not decided");
    }

    void collect_sites(Run& run, Stretch& stretch, Bytes code) const {
        const SiteVerdict& first = run.entry.verdict;
        const bool has_endbr = run.entry.position == SitePosition::kEntry && is_endbr(code);
        ZydisDecodedInstruction instruction;
        ZydisDecodedOperand operands[ZYDIS_MAX_OPERAND_COUNT];
        size_t at = 0;
        for (size_t count = 0; count < kMaxRunInstructions && at < code.size(); ++count) {
            const Bytes rest = code.substr(at);
            if (!ZYAN_SUCCESS(ZydisDecoderDecodeFull(&decoder_, rest.data(), rest.size(),
                                                     &instruction, operands)))
                break;
            const uint64_t address = stretch.entry + at;
            const SiteVerdict verdict = judge_site(
                rest, address, options_,
                has_endbr && at == kEndbr ? SitePosition::kEntry : SitePosition::kInside);
            if (at > 0 && verdict.allowed && (!first.allowed || verdict.kind < first.kind))
                run.sites.push_back({address, instruction.length, verdict.kind});
            const bool passes = passes_through(instruction, operands);
            if (!passes) stretch.branches.push_back(address);
            at += instruction.length;
            // Behind the entry nothing is cheaper than the first that is emulated.
            const bool is_best = !run.sites.empty() && run.sites.back().kind <= SiteKind::kEmulated;
            if (!passes || is_best) break;
        }
        stretch.end = stretch.entry + at;
    }

    static bool is_endbr(Bytes code) {
        static constexpr unsigned char kEndbr64[] = {0xf3, 0x0f, 0x1e, 0xfa};
        return code.starts_with(Bytes(kEndbr64, sizeof kEndbr64));
    }

    std::string text_at(uint64_t file_offset, uint64_t address) const {
        return instruction_text(file_.code_at(file_offset, kLongestInstruction), address);
    }

    ProbeSite at_entry(const Entry& entry, std::string reason) const {
        return {entry.file_offset, entry.verdict.kind, text_at(entry.file_offset, entry.address),
                std::move(reason)};
    }

    // The entry, or nothing, where there is no better place because of `obstacle`.
    Result<ProbeSite> stay(const Entry& entry, const char* obstacle,
                           const char* obstacle_to_any = nullptr) const {
        if (entry.verdict.allowed)
            return at_entry(entry, fmt::format("the entry, single-stepped: {}", obstacle));
        return refusal(fmt::format("its first instruction {} {}, and {}",
                                   text_at(entry.file_offset, entry.address), entry.verdict.reason,
                                   obstacle_to_any == nullptr ? obstacle : obstacle_to_any));
    }

    Result<ProbeSite> choose(const Run& run, const Stretch& stretch) const {
        const Site* best = nullptr;
        for (const Site& site : run.sites) {
            if (site.address + site.length > stretch.first_target) break;
            if (best == nullptr || site.kind < best->kind) best = &site;
        }
        if (best == nullptr) return stay(run.entry, stretch.obstacle);
        const uint64_t distance = best->address - stretch.entry;
        const uint64_t offset = run.entry.file_offset + distance;
        const std::string first = text_at(run.entry.file_offset, run.entry.address);
        return ProbeSite{
            offset, best->kind, text_at(offset, best->address),
            run.entry.verdict.allowed
                ? fmt::format(
                      "{} bytes after the entry, as {} there would be single-stepped; every call "
                      "passes here once",
                      distance, first)
                : fmt::format("{} bytes after the entry, as {} there {}; every call passes here "
                              "once",
                              distance, first, run.entry.verdict.reason)};
    }

    const ElfFile& file_;
    const PlacementOptions& options_;
    EntryProver prover_;
    const bool restartable_;
    ZydisDecoder decoder_;
    std::vector<Result<ProbeSite>> sites_;
    std::vector<Run> runs_;
    std::vector<Stretch> stretches_; // of runs_
};

} // namespace

void add_starts(Bytes code, uint64_t distance, std::vector<uint32_t>& starts) {
    ZydisDecoder decoder;
    ZydisDecoderInit(&decoder, ZYDIS_MACHINE_MODE_LONG_64, ZYDIS_STACK_WIDTH_64);
    for (uint32_t at = starts.back(); at < distance && at < code.size(); starts.push_back(at)) {
        ZydisDecodedInstruction instruction;
        if (!ZYAN_SUCCESS(ZydisDecoderDecodeInstruction(&decoder, nullptr, code.data() + at,
                                                        code.size() - at, &instruction)))
            return;
        at += instruction.length;
    }
}

std::vector<Result<ProbeSite>> place_probes(const ElfFile& file, std::span<const uint64_t> entries,
                                            const PlacementOptions& options) {
    if (options.jump) return place_jumps(file, entries, options);
    return Placement(file, options).place(entries);
}

} // namespace speedbump::elf
