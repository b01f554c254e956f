// SPDX-License-Identifier: MIT
#include "elf/jump_site.h"

#include <Zydis/Zydis.h>
#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "elf/entry_proof.h"
#include "elf/frames.h"
#include "elf/jump_search_x86_64.h"

namespace speedbump::elf {
namespace {

using Bytes = std::basic_string_view<unsigned char>;

constexpr size_t kMaxRunBytes = 96;
constexpr size_t kLongestInstruction = 15;
constexpr uint64_t kPage = 4096;
static_assert(kMaxRunBytes + kLongestInstruction <= kLongestStretch);
static_assert(kLongestRange == kJumpBytes - 1 + kLongestInstruction);

struct Instruction {
    ZydisDecodedInstruction decoded;
    ZydisDecodedOperand operands[ZYDIS_MAX_OPERAND_COUNT];
};

class Decoder {
  public:
    Decoder() { ZydisDecoderInit(&decoder_, ZYDIS_MACHINE_MODE_LONG_64, ZYDIS_STACK_WIDTH_64); }
    bool decode(Bytes code, Instruction& out) const {
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

// Whether it does the same wherever it lies, once its address of data is adjusted.
bool is_movable(const Instruction& instruction) {
    if (!is_plain(instruction.decoded)) return false;
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

bool is_relative_to_itself(const Instruction& instruction) {
    for (size_t i = 0; i < instruction.decoded.operand_count; ++i)
        if (instruction.operands[i].type == ZYDIS_OPERAND_TYPE_MEMORY &&
            instruction.operands[i].mem.base == ZYDIS_REGISTER_RIP)
            return true;
    return false;
}

// One after the other from an entry on, as long as each may be moved.
struct Run {
    size_t index = 0; // of the caller
    ProvenEntry entry;
    std::vector<uint8_t> places; // where they begin; the last is the end of the last
    std::optional<uint64_t> uprobe;
};

class JumpPlacement {
  public:
    JumpPlacement(const ElfFile& file, const PlacementOptions& options)
        : file_(file), options_(options), frames_(file) {}

    std::vector<Result<ProbeSite>> place(std::span<const uint64_t> entries) {
        if (file_.has_section("__rseq_cs"))
            return all_refused(entries.size(), "the file has restartable sequences");
        if (file_.has_section(".gopclntab") || file_.has_section(".note.go.buildid"))
            return all_refused(entries.size(), "it is of Go, which moves its stacks");
        PlacementOptions for_uprobes = options_;
        for_uprobes.jump = false;
        const auto uprobes = place_probes(file_, entries, for_uprobes);
        for (size_t i = 0; i < entries.size(); ++i) look_at(entries[i], uprobes[i]);
        std::vector<size_t> order(runs_.size());
        for (size_t i = 0; i < order.size(); ++i) order[i] = i;
        std::sort(order.begin(), order.end(), [this](size_t a, size_t b) {
            return runs_[a].entry.address < runs_[b].entry.address;
        });
        std::vector<Stretch> stretches;
        for (const size_t i : order) stretches.push_back(stretch_of(runs_[i]));
        if (!stretches.empty()) find_jumps_into(file_, stretches);
        for (size_t i = 0; i < order.size(); ++i)
            sites_[runs_[order[i]].index] = choose(runs_[order[i]], stretches[i]);
        return std::move(sites_);
    }

  private:
    static Error refusal(std::string reason) {
        return make_error(ErrorKind::kUnsupported, std::move(reason));
    }

    static std::vector<Result<ProbeSite>> all_refused(size_t count, const char* reason) {
        std::vector<Result<ProbeSite>> sites;
        for (size_t i = 0; i < count; ++i) sites.push_back(refusal(reason));
        return sites;
    }

    void look_at(uint64_t offset, const Result<ProbeSite>& uprobe) {
        sites_.push_back(refusal("not decided"));
        const auto proven = prove_entry(file_, offset);
        if (!proven) {
            sites_.back() = proven.error();
            return;
        }
        if (proven->end <= proven->address) {
            sites_.back() = refusal("the extent of the function is not known");
            return;
        }
        Run run{sites_.size() - 1, *proven, {}, std::nullopt};
        if (uprobe) run.uprobe = uprobe->file_offset - proven->file_offset;
        const Bytes code =
            file_.code_at(offset, std::min<uint64_t>(kMaxRunBytes, proven->end - proven->address));
        Instruction instruction;
        size_t at = 0;
        while (at < code.size() && decoder_.decode(code.substr(at), instruction)) {
            // The first one stays where it is.
            if (at > 0 && !is_movable(instruction)) break;
            if (at == 0 && !is_movable(instruction) && !is_endbr(instruction)) break;
            run.places.push_back(static_cast<uint8_t>(at));
            at += instruction.decoded.length;
        }
        run.places.push_back(static_cast<uint8_t>(at));
        if (candidates(run).empty()) {
            sites_.back() = refusal(
                "behind its first instruction there are no five bytes of instructions that each "
                "call passes, that can be moved and that lie within a page");
            return;
        }
        runs_.push_back(std::move(run));
    }

    static bool is_endbr(const Instruction& instruction) {
        return instruction.decoded.mnemonic == ZYDIS_MNEMONIC_ENDBR64;
    }

    struct Candidate {
        uint8_t begin = 0;
        uint8_t end = 0;
    };

    static std::vector<Candidate> candidates(const Run& run) {
        std::vector<Candidate> found;
        for (size_t i = 1; i + 1 < run.places.size(); ++i) {
            const uint8_t begin = run.places[i];
            const auto end =
                std::find_if(run.places.begin() + static_cast<ptrdiff_t>(i), run.places.end(),
                             [begin](uint8_t place) { return place >= begin + kJumpBytes; });
            if (end == run.places.end()) break;
            // One write of five bytes is one step only within a page.
            if ((run.entry.address + begin) % kPage + kJumpBytes > kPage) continue;
            if (run.uprobe && *run.uprobe >= begin && *run.uprobe < *end) continue;
            found.push_back({begin, *end});
        }
        return found;
    }

    static Stretch stretch_of(const Run& run) {
        Stretch stretch;
        stretch.entry = run.entry.address;
        stretch.end = run.entry.address + run.places.back();
        stretch.watched_end = run.entry.address + candidates(run).back().end;
        stretch.function_end = run.entry.end;
        return stretch;
    }

    Result<ProbeSite> choose(const Run& run, const Stretch& stretch) const {
        const FramePart* const part = frames_.find(run.entry.address);
        std::vector<uint64_t> pads;
        if (part != nullptr) {
            auto known = frames_.landing_pads(*part);
            if (!known) return refusal("where exceptions continue in it is not known");
            pads = std::move(*known);
        }
        const char* obstacle = stretch.obstacle;
        for (const Candidate& candidate : candidates(run)) {
            const uint64_t begin = run.entry.address + candidate.begin;
            const uint64_t end = run.entry.address + candidate.end;
            if (end > stretch.first_target) break;
            if (std::any_of(pads.begin(), pads.end(),
                            [&](uint64_t pad) { return pad > run.entry.address && pad < end; })) {
                obstacle = "exceptions may continue there";
                break;
            }
            const uint64_t offset = run.entry.file_offset + candidate.begin;
            return ProbeSite{
                offset, SiteKind::kJump,
                instruction_text(file_.code_at(offset, kLongestInstruction), begin),
                fmt::format("a jump in place of {} bytes, {} after the entry; every call passes "
                            "here once",
                            candidate.end - candidate.begin, candidate.begin)};
        }
        return refusal(obstacle != nullptr ? obstacle : "something may lead into it");
    }

    const ElfFile& file_;
    const PlacementOptions& options_;
    FrameTable frames_;
    Decoder decoder_;
    std::vector<Result<ProbeSite>> sites_;
    std::vector<Run> runs_;
};

} // namespace

std::vector<Result<ProbeSite>> place_jumps(const ElfFile& file, std::span<const uint64_t> entries,
                                           const PlacementOptions& options) {
    return JumpPlacement(file, options).place(entries);
}

std::optional<Range> movable_range(Bytes code) {
    const Decoder decoder;
    Instruction instruction;
    Range range;
    while (range.length < kJumpBytes) {
        const Bytes rest = code.substr(std::min<size_t>(range.length, code.size()));
        if (!decoder.decode(rest, instruction) || !is_movable(instruction)) return std::nullopt;
        range.places.push_back(range.length);
        range.length = static_cast<uint8_t>(range.length + instruction.decoded.length);
    }
    return range;
}

std::optional<std::basic_string<unsigned char>> moved_range(Bytes range, uint64_t from,
                                                            uint64_t to) {
    const Decoder decoder;
    Instruction instruction;
    std::basic_string<unsigned char> moved(range);
    const auto distance = static_cast<int64_t>(to - from);
    for (size_t at = 0; at < range.size(); at += instruction.decoded.length) {
        if (!decoder.decode(range.substr(at), instruction)) return std::nullopt;
        if (!is_relative_to_itself(instruction)) continue;
        const int64_t displacement = instruction.decoded.raw.disp.value - distance;
        const auto narrow = static_cast<int32_t>(displacement);
        if (narrow != displacement) return std::nullopt;
        std::memcpy(moved.data() + at + instruction.decoded.raw.disp.offset, &narrow,
                    sizeof narrow);
    }
    return moved;
}

} // namespace speedbump::elf
