// SPDX-License-Identifier: MIT
#include "elf/placement.h"

#if defined(__x86_64__)

#include <Zydis/Zydis.h>
#include <elf.h>
#include <emmintrin.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <optional>

#include "elf/image.h"

namespace speedbump::elf {
namespace {

constexpr size_t kMaxRunBytes = 192;
constexpr size_t kMaxRunInstructions = 48;
constexpr size_t kLongestInstruction = 15;
constexpr uint64_t kPage = 4096;
constexpr uint64_t kMaxTableEntries = 1u << 16;
// How far around an address that code with an indirect jump computes its table may lie.
constexpr uint64_t kTableBefore = 64 * 4;
constexpr uint64_t kTableBehind = 1024 * 4;
// A file made to keep us reading tables forever ends here, and with it the moving of probes.
constexpr uint64_t kTableBudget = 64u << 20;
constexpr size_t kMaxFindings = 16u << 20;
constexpr uint64_t kMaxCodeSpan = uint64_t{2} << 30; // what 32-bit distances reach
constexpr size_t kBlock = 1u << 20;
constexpr const char* kJump = "something may jump behind its first instruction";
constexpr const char* kTooMany = "the file has too many jump tables to be searched";

using Bytes = std::basic_string_view<unsigned char>;

int32_t read_i32(const unsigned char* at) {
    int32_t value;
    std::memcpy(&value, at, sizeof value);
    return value;
}

bool is_nop5(Bytes code) {
    static constexpr unsigned char kNop5[] = {0x0f, 0x1f, 0x44, 0x00, 0x00};
    return code.size() >= sizeof kNop5 && std::memcmp(code.data(), kNop5, sizeof kNop5) == 0;
}

// What every kernel from 6.1 on does for these bytes (branch_setup_xol_ops and
// push_setup_xol_ops). Prefixes that some kernels refuse, or get wrong (41 90 is xchg, yet was
// taken for a nop), count as single-stepped.
bool is_emulated(Bytes code, size_t length) {
    unsigned char first = code[0];
    if (first >= 0x50 && first <= 0x57) return true;
    if (first == 0x41 && length == 2) return code[1] >= 0x50 && code[1] <= 0x57;
    if (first == 0x90 || first == 0xeb || first == 0xe9 || first == 0xe8) return true;
    if (first >= 0x70 && first <= 0x7f) return true;
    if (first == 0x0f && length == 6) return code[1] >= 0x80 && code[1] <= 0x8f;
    size_t prefixes = 0;
    while (prefixes + 1 < length && code[prefixes] == 0x66) ++prefixes;
    return prefixes > 0 && prefixes + 1 == length && code[prefixes] == 0x90;
}

// Whether straight-line execution surely goes on behind the instruction, in the same thread, with
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

struct Site {
    uint64_t address = 0;
    uint8_t length = 0;
    SiteKind kind = SiteKind::kSingleStep;
};

// The straight-line code from one entry on, with the sites in it.
struct Run {
    size_t index = 0;         // into `entries`
    uint64_t entry = 0;       // address
    uint64_t end = 0;         // behind the last instruction of the run
    uint64_t last_branch = 0; // address of the branch that ends the run, or 0
    uint64_t function_end = 0;
    std::vector<Site> sites; // behind the entry, emulated or better
    uint64_t first_target = UINT64_MAX;
    const char* obstacle = nullptr; // why first_target is one
};

// The bytes of the file's data, block by block: neither kept nor mapped. Asked in ascending order
// it reads each block once.
class DataReader {
  public:
    DataReader(const ElfFile& file, size_t block) : file_(file), block_size_(block) {}

    std::optional<int32_t> word_at(uint64_t address) {
        if (address < start_ || address - start_ + 4 > block_.size()) load(address);
        if (address < start_ || address - start_ + 4 > block_.size()) return std::nullopt;
        return read_i32(block_.data() + (address - start_));
    }

  private:
    void load(uint64_t address) {
        block_.clear();
        for (const Segment& segment : file_.segments()) {
            if (address < segment.address || address - segment.address >= segment.file_size)
                continue;
            uint64_t within = address - segment.address;
            size_t size = std::min<uint64_t>(block_size_, segment.file_size - within);
            auto bytes = file_.read(segment.offset + within, size);
            if (!bytes) return;
            block_ = std::move(*bytes);
            start_ = address;
            return;
        }
    }

    const ElfFile& file_;
    size_t block_size_;
    std::vector<unsigned char> block_;
    uint64_t start_ = 0;
};

class PlacementAnalysis {
  public:
    PlacementAnalysis(const ElfFile& file, std::span<const uint64_t> entries,
                      const PlacementOptions& options)
        : file_(file), entries_(entries), options_(options) {
        ZydisDecoderInit(&decoder_, ZYDIS_MACHINE_MODE_LONG_64, ZYDIS_STACK_WIDTH_64);
        ZydisFormatterInit(&formatter_, ZYDIS_FORMATTER_STYLE_ATT);
        ZydisFormatterSetProperty(&formatter_, ZYDIS_FORMATTER_PROP_ADDR_PADDING_ABSOLUTE,
                                  ZYDIS_PADDING_DISABLED);
    }

    std::vector<ProbeSite> place() {
        sites_.resize(entries_.size());
        for (size_t i = 0; i < entries_.size(); ++i) look_at_entry(i);
        if (runs_.empty()) return std::move(sites_);
        std::sort(runs_.begin(), runs_.end(),
                  [](const Run& a, const Run& b) { return a.entry < b.entry; });
        mark_ranges();
        find_symbols();
        for (const Segment& segment : file_.segments())
            if (segment.executable) scan_code(segment);
        read_tables();
        read_pointers();
        judge_indirect_jumps();
        for (const Run& run : runs_) choose(run);
        return std::move(sites_);
    }

  private:
    // Sets the entry as the site; keeps the run when there is something better behind it.
    void look_at_entry(size_t index) {
        ProbeSite& site = sites_[index];
        site.file_offset = entries_[index];
        std::optional<uint64_t> address = file_.address_of_offset(site.file_offset);
        Bytes code = file_.code_at(site.file_offset, kMaxRunBytes);
        ZydisDecodedInstruction instruction;
        ZydisDecodedOperand operands[ZYDIS_MAX_OPERAND_COUNT];
        if (!address || code.empty() ||
            !ZYAN_SUCCESS(ZydisDecoderDecodeFull(&decoder_, code.data(), code.size(), &instruction,
                                                 operands))) {
            site.reason = "the entry: its code could not be decoded";
            return;
        }
        site.instruction = text_of(instruction, operands, *address);
        site.kind = kind_of(code, instruction.length, *address);
        if (site.kind == SiteKind::kOptimizedNop) {
            site.reason = "the entry: a 5-byte nop that the kernel turns into a call";
            return;
        }
        if (site.kind == SiteKind::kEmulated) {
            site.reason = "the entry: the kernel emulates its first instruction";
            return;
        }
        if (options_.entry_only) {
            site.reason = "the entry, as asked for; its first instruction is single-stepped";
            return;
        }
        const Function* function = file_.function_at_offset(site.file_offset);
        if (function == nullptr || function->address != *address || function->size == 0) {
            site.reason = "the entry, single-stepped: the extent of the function is not known";
            return;
        }
        Run run;
        run.index = index;
        run.entry = *address;
        run.function_end = *address + function->size;
        collect_sites(run, code.substr(0, std::min<uint64_t>(code.size(), function->size)));
        if (run.sites.empty()) {
            site.reason =
                "the entry, single-stepped: no instruction of its block is one the kernel emulates";
            return;
        }
        runs_.push_back(std::move(run));
    }

    void collect_sites(Run& run, Bytes code) {
        ZydisDecodedInstruction instruction;
        ZydisDecodedOperand operands[ZYDIS_MAX_OPERAND_COUNT];
        size_t at = 0;
        for (size_t count = 0; count < kMaxRunInstructions && at < code.size(); ++count) {
            Bytes rest = code.substr(at);
            if (!ZYAN_SUCCESS(ZydisDecoderDecodeFull(&decoder_, rest.data(), rest.size(),
                                                     &instruction, operands)))
                break;
            uint64_t address = run.entry + at;
            SiteKind kind = kind_of(rest, instruction.length, address);
            if (at > 0 && kind != SiteKind::kSingleStep)
                run.sites.push_back({address, instruction.length, kind});
            bool passes = passes_through(instruction, operands);
            if (!passes) run.last_branch = address;
            at += instruction.length;
            if (!passes) break;
        }
        run.end = run.entry + at;
    }

    SiteKind kind_of(Bytes code, size_t length, uint64_t address) const {
        // A nop across two pages is not rewritten (can_optimize).
        if (options_.kernel_optimizes_nop5 && is_nop5(code) && address % kPage + 5 <= kPage)
            return SiteKind::kOptimizedNop;
        return is_emulated(code, length) ? SiteKind::kEmulated : SiteKind::kSingleStep;
    }

    std::string text_of(const ZydisDecodedInstruction& instruction,
                        const ZydisDecodedOperand* operands, uint64_t address) const {
        char text[128];
        if (!ZYAN_SUCCESS(ZydisFormatterFormatInstruction(&formatter_, &instruction, operands,
                                                          instruction.operand_count_visible, text,
                                                          sizeof text, address, nullptr)))
            return {};
        return text;
    }

    // Marks in a bitmap, a bit for each byte of code, where nothing may jump to.
    void mark_ranges() {
        for (const Segment& segment : file_.segments()) {
            if (!segment.executable) continue;
            low_ = std::min(low_, segment.address);
            high_ = std::max(high_, segment.address + segment.file_size);
        }
        // Segments far apart (a file made for it) would make this bitmap too large.
        if (high_ - low_ > kMaxCodeSpan) {
            stop_moving("the executable segments lie too far apart to be searched");
            return;
        }
        bits_.resize((high_ - low_) / 64 + 1);
        for (const Run& run : runs_) {
            const Site& last = run.sites.back();
            for (uint64_t at = run.entry + 1; at < last.address + last.length; ++at)
                bits_[(at - low_) / 64] |= uint64_t{1} << ((at - low_) % 64);
        }
    }

    bool is_marked(uint64_t address) const {
        uint64_t bit = address - low_;
        return bit < bits_.size() * 64 && (bits_[bit / 64] >> (bit % 64) & 1) != 0;
    }

    void stop_moving(const char* obstacle) {
        for (Run& run : runs_) {
            run.first_target = run.entry;
            run.obstacle = obstacle;
        }
    }

    // Something at `from` (0: no code) leads to the marked address `target`.
    void add_target(uint64_t target, uint64_t from, const char* obstacle) {
        auto after =
            std::upper_bound(runs_.begin(), runs_.end(), target,
                             [](uint64_t value, const Run& run) { return value < run.entry; });
        // Runs may overlap when functions do: every one that holds the target is concerned.
        while (after != runs_.begin()) {
            Run& run = *--after;
            if (target - run.entry > kMaxRunBytes + kLongestInstruction) break;
            if (target == run.entry) continue;
            // The run's own bytes are executed as they were decoded, unless something jumps in
            // between; and that is found by itself. So of them only the branch at the end counts.
            if (from >= run.entry && from < run.end && from != run.last_branch) continue;
            if (target < run.first_target) {
                run.first_target = target;
                run.obstacle = obstacle;
            }
        }
    }

    void find_symbols() {
        constexpr const char* kObstacle = "another symbol lies behind its first instruction";
        for (const Function& function : file_.functions())
            if (is_marked(function.address)) add_target(function.address, 0, kObstacle);
        for (uint64_t label : file_.labels())
            if (is_marked(label)) add_target(label, 0, kObstacle);
    }

    // Looks at every byte position as if an instruction began there: what is found too much only
    // costs a better site, and nothing that is encoded in the file can be missed.
    void scan_code(const Segment& segment) {
        Bytes code = file_.code_at(segment.offset, segment.file_size);
        if (code.size() != segment.file_size) {
            stop_moving("the code of the file could not be read as a whole");
            return;
        }
        size_t at = 0;
        for (; at + 17 <= code.size(); at += 16) {
            for (unsigned mask = interesting(code.data() + at); mask != 0; mask &= mask - 1)
                look_at_position(segment, code, at + std::countr_zero(mask));
            if (leas_.size() + register_jumps_.size() > kMaxFindings) {
                stop_moving(kTooMany);
                return;
            }
        }
        for (; at < code.size(); ++at) look_at_position(segment, code, at);
        for (const Run& run : runs_) look_for_short_jumps(segment, code, run);
        if (file_.is_position_independent()) return;
        // Code at fixed addresses may hold them as they are: mov $label,%eax.
        for (at = 0; at + 4 <= code.size(); ++at) {
            uint64_t value = static_cast<uint32_t>(read_i32(code.data() + at));
            if (is_marked(value)) add_target(value, 0, kJump);
        }
    }

    // Of 16 positions (17 bytes are read) a bit for each at which look_at_position has work.
    static unsigned interesting(const unsigned char* bytes) {
        __m128i first = _mm_loadu_si128(reinterpret_cast<const __m128i*>(bytes));
        __m128i second = _mm_loadu_si128(reinterpret_cast<const __m128i*>(bytes + 1));
        auto is = [](__m128i value, unsigned byte) {
            return _mm_cmpeq_epi8(value, _mm_set1_epi8(static_cast<char>(byte)));
        };
        auto masked = [](__m128i value, unsigned bits) {
            return _mm_and_si128(value, _mm_set1_epi8(static_cast<char>(bits)));
        };
        __m128i call = is(masked(first, 0xfe), 0xe8);
        __m128i condition = _mm_and_si128(is(first, 0x0f), is(masked(second, 0xf0), 0x80));
        __m128i lea = _mm_and_si128(is(first, 0x8d), is(masked(second, 0xc7), 0x05));
        __m128i jump = _mm_and_si128(is(first, 0xff), is(masked(second, 0xf8), 0xe0));
        __m128i xbegin = _mm_and_si128(is(first, 0xc7), is(second, 0xf8));
        __m128i any = _mm_or_si128(_mm_or_si128(call, condition),
                                   _mm_or_si128(_mm_or_si128(lea, jump), xbegin));
        return static_cast<unsigned>(_mm_movemask_epi8(any));
    }

    // jmp and call rel32, jcc rel32, xbegin, lea disp(%rip), jmp *%reg.
    void look_at_position(const Segment& segment, Bytes code, size_t at) {
        const unsigned char* bytes = code.data() + at;
        const size_t room = code.size() - at;
        const uint64_t here = segment.address + at;
        if (room >= 5 && (bytes[0] & 0xfe) == 0xe8) {
            uint64_t target = here + 5 + read_i32(bytes + 1);
            if (is_marked(target)) add_target(target, here, kJump);
            return;
        }
        if (room >= 2 && bytes[0] == 0xff && (bytes[1] & 0xf8) == 0xe0) {
            register_jumps_.push_back(here);
            return;
        }
        if (room < 6) return;
        const uint64_t target = here + 6 + read_i32(bytes + 2);
        if ((bytes[0] == 0x0f && (bytes[1] & 0xf0) == 0x80) ||
            (bytes[0] == 0xc7 && bytes[1] == 0xf8)) {
            if (is_marked(target)) add_target(target, here, kJump);
        } else if (bytes[0] == 0x8d && (bytes[1] & 0xc7) == 0x05) {
            leas_.push_back({here, target});
        }
    }

    // jmp rel8, jcc rel8, loop and jrcxz: they reach no further than 129 bytes.
    void look_for_short_jumps(const Segment& segment, Bytes code, const Run& run) {
        constexpr uint64_t kReach = 129;
        const uint64_t segment_end = segment.address + code.size();
        const Site& last = run.sites.back();
        uint64_t from = std::max(segment.address, run.entry - std::min(run.entry, kReach));
        uint64_t to = std::min(segment_end, last.address + last.length + kReach);
        for (uint64_t here = from; here + 2 <= to; ++here) {
            const unsigned char* bytes = code.data() + (here - segment.address);
            bool is_short =
                (bytes[0] & 0xf0) == 0x70 || (bytes[0] & 0xfc) == 0xe0 || bytes[0] == 0xeb;
            if (!is_short) continue;
            uint64_t target = here + 2 + static_cast<int8_t>(bytes[1]);
            if (is_marked(target)) add_target(target, here, kJump);
        }
    }

    // Reads what every lea of the file points to as if it were a jump table of distances from its
    // own start, as long as its entries lead into code.
    void read_tables() {
        std::vector<uint64_t> tables;
        tables.reserve(leas_.size());
        for (const Lea& lea : leas_) tables.push_back(lea.target);
        std::sort(tables.begin(), tables.end());
        tables.erase(std::unique(tables.begin(), tables.end()), tables.end());
        DataReader reader(file_, kBlock);
        for (uint64_t table : tables) {
            for (uint64_t entry = 0; entry < kMaxTableEntries; ++entry) {
                std::optional<int32_t> distance = reader.word_at(table + entry * 4);
                if (!distance || !is_code(table + *distance)) break;
                if (is_marked(table + *distance))
                    add_target(table + *distance, 0, "a jump table leads behind it");
                if (--table_budget_ == 0) {
                    stop_moving(kTooMany);
                    return;
                }
            }
        }
    }

    bool is_code(uint64_t address) const {
        for (const Segment& segment : file_.segments())
            if (segment.executable && address - segment.address < segment.file_size) return true;
        return false;
    }

    // Addresses in the data of the file: in relocations, or, at fixed addresses, as they are.
    void read_pointers() {
        constexpr const char* kObstacle = "a pointer in the file's data leads behind it";
        auto relocations = file_.relocations();
        if (!relocations) {
            stop_moving("the relocations of the file could not be read");
            return;
        }
        for (const Relocation& relocation : *relocations)
            if (is_marked(relocation.addend)) add_target(relocation.addend, 0, kObstacle);
        if (file_.is_position_independent()) return;
        for (const Segment& segment : file_.segments()) {
            if (segment.executable) continue;
            for (uint64_t at = 0; at < segment.file_size; at += kBlock - 8) {
                size_t size = std::min<uint64_t>(kBlock, segment.file_size - at);
                auto bytes = file_.read(segment.offset + at, size);
                if (!bytes) {
                    stop_moving("the data of the file could not be read");
                    return;
                }
                for (size_t i = 0; i + 4 <= size; ++i) {
                    uint64_t value = static_cast<uint32_t>(read_i32(bytes->data() + i));
                    if (i + 8 <= size && high_ > UINT32_MAX)
                        std::memcpy(&value, bytes->data() + i, sizeof value);
                    if (is_marked(value)) add_target(value, 0, kObstacle);
                }
            }
        }
    }

    // A function that jumps through a register: only when every place it could compute is known.
    // Jumps through memory need no look: they take addresses, and those were all found.
    void judge_indirect_jumps() {
        std::vector<uint64_t> taken;
        for (const Lea& lea : leas_)
            if (is_code(lea.target)) taken.push_back(lea.target);
        std::sort(taken.begin(), taken.end());
        DataReader reader(file_, kTableBefore + kTableBehind);
        for (Run& run : runs_) {
            if (run.first_target == run.entry) continue;
            auto refuse = [&run](const char* obstacle) {
                run.first_target = run.entry;
                run.obstacle = obstacle;
            };
            auto inside = std::upper_bound(taken.begin(), taken.end(), run.entry);
            if (inside != taken.end() && *inside < run.function_end) {
                refuse("the address of code inside the function is taken");
                continue;
            }
            if (!jumps_through_register(run)) continue;
            bool has_table = false;
            bool hit = false;
            auto lea =
                std::lower_bound(leas_.begin(), leas_.end(), run.entry,
                                 [](const Lea& one, uint64_t value) { return one.at < value; });
            for (; lea != leas_.end() && lea->at < run.function_end; ++lea) {
                std::optional<int32_t> first = reader.word_at(lea->target);
                has_table = has_table || (first && is_code(lea->target + *first));
                uint64_t words = (kTableBefore + kTableBehind) / 4;
                if (table_budget_ < words) {
                    stop_moving(kTooMany);
                    return;
                }
                table_budget_ -= words;
                for (uint64_t at = lea->target - std::min(lea->target, kTableBefore);
                     at < lea->target + kTableBehind; at += 4) {
                    std::optional<int32_t> distance = reader.word_at(at);
                    uint64_t target = lea->target + distance.value_or(0);
                    hit = hit || (distance && target > run.entry &&
                                  target < run.sites.back().address + run.sites.back().length);
                }
            }
            if (!has_table)
                refuse("the function jumps through a register to where is not known");
            else if (hit)
                refuse("a jump table of the function may lead behind it");
        }
    }

    bool jumps_through_register(const Run& run) const {
        auto jump = std::lower_bound(register_jumps_.begin(), register_jumps_.end(), run.entry);
        return jump != register_jumps_.end() && *jump < run.function_end;
    }

    void choose(const Run& run) {
        ProbeSite& result = sites_[run.index];
        const Site* best = nullptr;
        for (const Site& site : run.sites) {
            if (site.address + site.length > run.first_target) break;
            if (best == nullptr ||
                (site.kind == SiteKind::kOptimizedNop && best->kind != site.kind))
                best = &site;
        }
        if (best == nullptr) {
            result.reason = std::string("the entry, single-stepped: ") + run.obstacle;
            return;
        }
        result.file_offset += best->address - run.entry;
        result.kind = best->kind;
        ZydisDecodedInstruction instruction;
        ZydisDecodedOperand operands[ZYDIS_MAX_OPERAND_COUNT];
        Bytes code = file_.code_at(result.file_offset, kLongestInstruction);
        std::string first = std::move(result.instruction);
        result.instruction.clear();
        if (ZYAN_SUCCESS(ZydisDecoderDecodeFull(&decoder_, code.data(), code.size(), &instruction,
                                                operands)))
            result.instruction = text_of(instruction, operands, best->address);
        result.reason = std::to_string(best->address - run.entry) + " bytes behind the entry, as " +
                        first + " there would be single-stepped; every call passes here once";
    }

    struct Lea {
        uint64_t at;
        uint64_t target;
    };

    const ElfFile& file_;
    std::span<const uint64_t> entries_;
    const PlacementOptions& options_;
    ZydisDecoder decoder_;
    ZydisFormatter formatter_;
    std::vector<ProbeSite> sites_;
    std::vector<Run> runs_; // of single-stepped entries with sites behind them, by entry
    uint64_t low_ = UINT64_MAX;
    uint64_t high_ = 0;
    std::vector<uint64_t> bits_;           // of [low_, high_)
    std::vector<Lea> leas_;                // by place: segments are scanned in order
    std::vector<uint64_t> register_jumps_; // ascending
    uint64_t table_budget_ = kTableBudget;
};

} // namespace

std::vector<ProbeSite> place_probes(const ElfFile& file, std::span<const uint64_t> entries,
                                    const PlacementOptions& options) {
    return PlacementAnalysis(file, entries, options).place();
}

} // namespace speedbump::elf

#else

namespace speedbump::elf {

std::vector<ProbeSite> place_probes(const ElfFile&, std::span<const uint64_t> entries,
                                    const PlacementOptions&) {
    std::vector<ProbeSite> sites;
    for (uint64_t entry : entries)
        sites.push_back({entry, SiteKind::kSingleStep, "",
                         "the entry: other places are only looked for on x86-64"});
    return sites;
}

} // namespace speedbump::elf

#endif
