// SPDX-License-Identifier: MIT
#include "elf/exits.h"

#include "elf/frames.h"
#include "elf/image.h"
#include "elf/probe_site.h"

#if defined(__x86_64__)

#include <Zydis/Zydis.h>

#include <algorithm>
#include <cstring>
#include <deque>
#include <map>
#include <mutex>
#include <set>

namespace speedbump::elf {

namespace {

constexpr uint64_t kMaxPartBytes = 256u << 10;
constexpr size_t kMaxParts = 8; // bpf/abi.h: SB_CODE_PARTS
constexpr uint64_t kMaxTable = 4096;
constexpr uint64_t kTableBudget = 64u << 20; // bytes, of one function
constexpr size_t kHistory = 24;              // instructions that are looked back from a jump

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

ZydisRegister whole(ZydisRegister name) {
    return ZydisRegisterGetLargestEnclosing(ZYDIS_MACHINE_MODE_LONG_64, name);
}

uint8_t number_of(ZydisRegister name) {
    if (name == ZYDIS_REGISTER_NONE || name == ZYDIS_REGISTER_RIP) return JumpOperand::kNone;
    return static_cast<uint8_t>(ZydisRegisterGetId(whole(name)));
}

bool is_cold_name(std::string_view name) {
    return name.find(".cold") != std::string_view::npos;
}

Error refusal(std::string reason) {
    return make_error(ErrorKind::kUnsupported, std::move(reason));
}

} // namespace

// What is read once for all functions of a file.
struct ExitFinder::Impl {
    explicit Impl(std::shared_ptr<const ElfFile> elf)
        : file(std::move(elf)), frames(*file), is_go(find_go()) {
        ZydisDecoderInit(&decoder, ZYDIS_MACHINE_MODE_LONG_64, ZYDIS_STACK_WIDTH_64);
    }

    bool find_go() const { return find_section(*file, ".go.buildinfo").has_value(); }

    std::basic_string_view<unsigned char> code(uint64_t address, size_t size) const {
        const auto offset = file->offset_of_address(address);
        return offset ? file->code_at(*offset, size) : std::basic_string_view<unsigned char>();
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

    // The function symbol that starts there.
    const Function* function_at(uint64_t address) const {
        const auto offset = file->offset_of_address(address);
        const Function* found = offset ? file->function_at_offset(*offset) : nullptr;
        return found != nullptr && found->address == address ? found : nullptr;
    }

    // A stub of the procedure linkage table, or one of the same form.
    bool is_stub(uint64_t address) const {
        auto one = decode(address, address + 15);
        if (one && one->mnemonic() == ZYDIS_MNEMONIC_ENDBR64)
            one = decode(one->end(), one->end() + 15);
        return one && one->mnemonic() == ZYDIS_MNEMONIC_JMP && one->has_memory(0) &&
               one->first().mem.base == ZYDIS_REGISTER_RIP;
    }

    // The code that belongs together around an address.
    std::optional<CodePart> part_of(uint64_t address) const {
        CodePart part;
        if (const FramePart* frame = frames.find(address)) {
            part = {frame->begin, frame->end};
        } else {
            const auto offset = file->offset_of_address(address);
            const Function* function = offset ? file->function_at_offset(*offset) : nullptr;
            if (function == nullptr || function->size == 0) return std::nullopt;
            part = {function->address, function->address + function->size};
        }
        return part;
    }

    // The addresses of code that the dynamic linker writes somewhere, ascending.
    const std::vector<uint64_t>* pointers() const {
        std::call_once(pointers_once, [this] {
            auto relocations = file->relocations();
            if (!relocations) return;
            pointers_known = true;
            for (const Relocation& one : *relocations) pointers_.push_back(one.addend);
            std::sort(pointers_.begin(), pointers_.end());
        });
        return pointers_known ? &pointers_ : nullptr;
    }

    std::shared_ptr<const ElfFile> file;
    FrameTable frames;
    bool is_go;
    ZydisDecoder decoder;
    mutable std::once_flag pointers_once;
    mutable bool pointers_known = false;
    mutable std::vector<uint64_t> pointers_;
};

namespace {

// One function.
class Walk {
  public:
    Walk(const ExitFinder::Impl& finder, uint64_t entry) : finder_(finder), entry_(entry) {}

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
    void add_landing_pads(uint64_t address);
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
    bool is_switch(const Instruction& jump);
    std::optional<uint64_t> table_bound() const;
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
    std::map<uint64_t, Exit> exits_;
    std::vector<Instruction> history_; // of the straight line that is followed
    std::map<uint64_t, Table> tables_; // that may lead into the function
    std::set<uint64_t> tables_read_;
    uint64_t table_budget_ = kTableBudget;
    std::set<uint64_t> undecided_; // indirect jumps
    std::vector<uint64_t> switches_;
    bool has_labels_ = false; // places inside are known to be jumped to
    std::string reason_;
};

bool Walk::add_part(uint64_t address) {
    if (belongs(address)) return true;
    const auto range = finder_.part_of(address);
    if (!range || range->end - range->begin > kMaxPartBytes) {
        refuse(range ? "the function is too large"
                     : "the extent of code that it jumps to is not known");
        return false;
    }
    if (parts_.size() == kMaxParts) {
        refuse("the function is spread over too many parts");
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
    add_landing_pads(address);
    return true;
}

void Walk::add_landing_pads(uint64_t address) {
    const FramePart* frame = finder_.frames.find(address);
    if (frame == nullptr) return;
    const auto pads = finder_.frames.landing_pads(*frame);
    if (!pads) {
        refuse("its exception tables can't be read");
        return;
    }
    for (const uint64_t pad : *pads) follow(pad);
}

void Walk::follow(uint64_t address) {
    if (!add_part(address)) return;
    const bool starts = std::any_of(parts_.begin(), parts_.end(), [address](const Part& part) {
        return part.has_start(address);
    });
    if (!starts)
        refuse("its code can't be told apart from data");
    else if (!seen_.contains(address))
        todo_.push_back(address);
}

void Walk::follow_run(uint64_t address) {
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
void Walk::take(const Instruction& one) {
    if (const auto address = one.taken_address()) {
        tables_.try_emplace(*address);
        return;
    }
    const bool fixed = !finder_.file->is_position_independent();
    for (size_t i = 0; i < one.decoded.operand_count_visible; ++i) {
        const ZydisDecodedOperand& operand = one.operands[i];
        if (fixed && operand.type == ZYDIS_OPERAND_TYPE_MEMORY &&
            operand.mem.index != ZYDIS_REGISTER_NONE)
            tables_.try_emplace(static_cast<uint64_t>(operand.mem.disp.value));
        if (fixed && operand.type == ZYDIS_OPERAND_TYPE_IMMEDIATE && !operand.imm.is_relative)
            tables_.try_emplace(operand.imm.value.u);
    }
}

bool Walk::goes_on(const Instruction& one) {
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
bool Walk::is_tail_call(uint64_t target) const {
    if (target == entry_) return !finder_.is_go; // there: begins anew on a larger stack
    if (belongs(target)) return false;
    if (const Function* function = finder_.function_at(target))
        return !std::any_of(function->names.begin(), function->names.end(), is_cold_name);
    return finder_.is_stub(target);
}

void Walk::jump(const Instruction& one, uint8_t condition) {
    const uint64_t target = *one.direct_target();
    if (is_tail_call(target))
        add_exit(one, condition);
    else
        follow(target);
}

void Walk::add_exit(const Instruction& one, uint8_t condition, std::optional<JumpOperand> operand) {
    const SiteVerdict verdict = judge_site(finder_.code(one.address, one.decoded.length),
                                           one.address, {}, SitePosition::kInside);
    if (!verdict.allowed)
        refuse("it leaves by " + finder_.text_of(one) + ", which " + verdict.reason);
    Exit exit;
    exit.file_offset = *finder_.file->offset_of_address(one.address);
    exit.length = one.decoded.length;
    exit.condition = condition;
    exit.operand = operand;
    exit.instruction = finder_.text_of(one);
    exits_[one.address] = std::move(exit);
}

// movslq (%base,%index,4),%reg; add %base,%reg; jmp *%reg
bool Walk::is_switch(const Instruction& jump) {
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
std::optional<uint64_t> Walk::table_bound() const {
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

void Walk::indirect_jump(const Instruction& one) {
    if (!is_switch(one)) {
        undecided_.insert(one.address);
        // jmp *table(,%index,8)
        const auto bound = table_bound();
        const ZydisDecodedOperand& where = one.first();
        if (bound && *bound <= kMaxTable && one.has_memory(0) && where.mem.scale == 8 &&
            where.mem.base == ZYDIS_REGISTER_NONE)
            tables_[static_cast<uint64_t>(where.mem.disp.value)] = {bound, true};
        return;
    }
    switches_.push_back(one.address);
    // Its table, when its address was taken on the way here, has as many entries as are asked for.
    const auto bound = table_bound();
    for (auto before = history_.rbegin(); bound && before != history_.rend(); ++before) {
        const auto table = before->taken_address();
        if (!table) continue;
        if (*bound <= kMaxTable)
            tables_[*table].bound = std::max(tables_[*table].bound.value_or(0), *bound);
        break;
    }
}

// What each address that the function takes may be: a table of distances from itself, or of
// addresses, or a place in the function.
void Walk::read_tables() {
    for (const auto& [table, known] : std::map(tables_)) {
        if (!reason_.empty()) return;
        if (!tables_read_.insert(table).second) continue;
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
    for (size_t i = 0; i < parts_.size(); ++i) {
        const CodePart range = parts_[i].range;
        for (auto one = std::lower_bound(pointers->begin(), pointers->end(), range.begin);
             one != pointers->end() && *one < range.end; ++one) {
            if (*one == entry_ || finder_.function_at(*one) != nullptr) continue;
            has_labels_ = true;
            follow(*one);
        }
    }
}

void Walk::read_distances(uint64_t table, std::optional<uint64_t> bound) {
    const uint64_t most = bound.value_or(kMaxTable);
    if (most * 4 > table_budget_) return refuse("it has too many tables");
    table_budget_ -= most * 4;
    const auto bytes = read_address(*finder_.file, table, most * 4);
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

bool Walk::ends_table(uint64_t target) const {
    for (const Part& part : parts_)
        if (target >= part.range.begin && target < part.range.end) return !part.has_start(target);
    // A part of the function that nothing else leads to has no symbol of a function.
    const FramePart* frame = finder_.frames.find(target);
    return frame == nullptr || finder_.function_at(frame->begin) != nullptr;
}

void Walk::read_addresses(uint64_t table, std::optional<uint64_t> bound) {
    const uint64_t most = bound.value_or(kMaxTable);
    if (most * 8 > table_budget_) return refuse("it has too many tables");
    table_budget_ -= most * 8;
    const auto bytes = read_address(*finder_.file, table, most * 8);
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

Result<WaysOut> Walk::run() {
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

} // namespace

ExitFinder::ExitFinder(std::shared_ptr<const ElfFile> file)
    : impl_(std::make_unique<Impl>(std::move(file))) {}
ExitFinder::~ExitFinder() = default;

Result<WaysOut> ExitFinder::find(uint64_t entry_offset) const {
    const auto entry = impl_->file->address_of_offset(entry_offset);
    if (!entry) return refusal("there is no code");
    // In a program of Go only its own functions, package.name, have the goroutine in R14.
    const Function* function = impl_->is_go ? impl_->function_at(*entry) : nullptr;
    const auto name = function != nullptr ? function->names.front() : std::string_view();
    if (impl_->is_go && (name.find('.') == name.npos || name.ends_with(".abi0")))
        return refusal("it is not a function of Go's own ABI in a program of Go");
    return Walk(*impl_, *entry).run();
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

} // namespace speedbump::elf

#else

namespace speedbump::elf {

struct ExitFinder::Impl {};
ExitFinder::ExitFinder(std::shared_ptr<const ElfFile>) {}
ExitFinder::~ExitFinder() = default;

Result<WaysOut> ExitFinder::find(uint64_t) const {
    return make_error(ErrorKind::kUnsupported,
                      "the ways out of a function are known on x86-64 only");
}
std::optional<uint64_t> ExitFinder::stack_used(uint64_t, uint64_t) const {
    return std::nullopt;
}

} // namespace speedbump::elf

#endif
