// SPDX-License-Identifier: MIT
#include "elf/exits.h"

#include <algorithm>
#include <cstring>
#include <deque>
#include <map>
#include <set>
#include <utility>

#include "elf/exit_code.h"
#include "elf/jump_tables_aarch64.h"
#include "elf/probe_site.h"
#include "elf/words_aarch64.h"

namespace speedbump::elf {
namespace {

constexpr size_t kHistory = 24; // instructions that are looked back from a jump

// ret Xn, br Xn, blr Xn
bool is_return(uint32_t word) {
    return is_word(word, 0xfffffc1f, 0xd65f0000);
}
bool is_register_jump(uint32_t word) {
    return is_word(word, 0xfffffc1f, 0xd61f0000);
}
// Of one of these.
uint32_t register_of(uint32_t word) {
    return word >> 5 & 31;
}
// udf, brk, hlt: nothing goes on after them.
bool is_trap(uint32_t word) {
    return is_word(word, 0xffff0000, 0) || is_word(word, 0xffe0001f, 0xd4200000) ||
           is_word(word, 0xffe0001f, 0xd4400000);
}

} // namespace

struct ExitFinder::Impl : ExitCode {
    using ExitCode::ExitCode;

    std::optional<uint32_t> word(uint64_t address) const {
        const auto bytes = code(address, kWordBytes);
        if (address % kWordBytes != 0 || bytes.size() < kWordBytes) return std::nullopt;
        uint32_t word;
        std::memcpy(&word, bytes.data(), sizeof word);
        return word;
    }
    std::string text_at(uint64_t address) const {
        return instruction_text(code(address, kWordBytes), address);
    }
    // [bti c]; adrp x16; ldr x17,[x16...: a stub of the procedure linkage table.
    bool is_stub(uint64_t address) const {
        auto first = word(address);
        if (first == 0xd503245f) first = word(address += kWordBytes);
        const auto second = word(address + kWordBytes);
        return first && second && is_word(*first, 0x9f00001f, 0x90000010) &&
               is_word(*second, 0xffc003ff, 0xf9400211);
    }
};

namespace {

// Follows one function.
class Walk {
  public:
    Walk(const ExitFinder::Impl& finder, uint64_t entry) : finder_(finder), entry_(entry) {}
    Result<WaysOut> run();

  private:
    bool belongs(uint64_t address) const {
        return std::any_of(parts_.begin(), parts_.end(), [address](const CodePart& part) {
            return address >= part.begin && address < part.end;
        });
    }
    bool add_part(uint64_t address);
    // `line`: what was executed before, where nothing else leads there.
    void follow(uint64_t address, Line line = {});
    void follow_run(uint64_t address, Line line);
    // False where the code ends.
    bool goes_on(const Placed& one);
    void jump(const Placed& one, uint64_t target);
    void register_jump(const Placed& one);
    Line line_behind(const Placed& one) const;
    bool is_tail_call(uint64_t target) const;
    void add_exit(const Placed& one, std::optional<uint64_t> target);
    void add_undecided();
    void add_labels();
    void follow_entries(const Table& table);
    void refuse(std::string reason) {
        if (reason_.empty()) reason_ = std::move(reason);
    }

    const ExitFinder::Impl& finder_;
    uint64_t entry_;
    std::vector<CodePart> parts_;
    std::set<uint64_t> seen_; // instructions that are reached
    std::deque<std::pair<uint64_t, Line>> todo_;
    std::map<uint64_t, size_t> ways_; // that lead to an instruction, but for the one before it
    std::map<uint64_t, Exit> exits_;
    Line history_;                  // of the straight line that is followed
    uint64_t line_begins_ = 0;      // where it came from elsewhere; 0: it did not
    std::set<uint64_t> assumed_;    // where one came from elsewhere by which a table is known
    std::vector<Placed> undecided_; // jumps through a register that are those of no table
    std::vector<uint64_t> taken_;   // addresses
    std::set<uint64_t> bases_;      // of tables
    uint64_t table_budget_ = kTableBudget;
    bool has_labels_ = false; // places inside are known to be jumped to
    std::string reason_;
};

bool Walk::add_part(uint64_t address) {
    if (belongs(address)) return true;
    const auto part = finder_.next_part(address, parts_.size());
    const auto pads = finder_.landing_pads(address);
    if (!part || !pads) {
        refuse(part ? pads.error().message : part.error().message);
        return false;
    }
    parts_.push_back(*part);
    for (const uint64_t pad : *pads) follow(pad);
    return true;
}

void Walk::follow(uint64_t address, Line line) {
    if (!add_part(address)) return;
    const bool is_first = ++ways_[address] == 1;
    if (address % kWordBytes != 0)
        refuse("its code can't be told apart from data");
    else if (is_first && !seen_.contains(address)) // a table may name it a thousand times
        todo_.emplace_back(address, std::move(line));
}

void Walk::follow_run(uint64_t address, Line line) {
    line_begins_ = line.empty() ? 0 : address;
    history_ = std::move(line);
    while (reason_.empty() && !seen_.contains(address)) {
        const auto part = std::find_if(
            parts_.begin(), parts_.end(),
            [address](const CodePart& one) { return address >= one.begin && address < one.end; });
        if (part == parts_.end()) return follow(address); // it falls through to another function
        const uint64_t end = part->end;                   // parts may be added below
        const auto word = finder_.word(address);
        if (!word) return refuse("its code can't be read");
        seen_.insert(address);
        const Placed one{address, *word};
        if (!goes_on(one)) return;
        history_.push_back(one);
        if (history_.size() > kHistory) history_.erase(history_.begin());
        address += kWordBytes;
        // A function that ends with a call ends with one that does not return.
        if (is_call(*word) && address == end) return;
        if (seen_.contains(address)) ++ways_[address];
    }
}

bool Walk::goes_on(const Placed& one) {
    if (is_trap(one.word)) return false;
    if (is_return(one.word)) {
        add_exit(one, std::nullopt);
        return false;
    }
    if (is_branch(one.word)) {
        jump(one, one.address + static_cast<uint64_t>(branch_distance(one.word)));
        return false;
    }
    if (is_conditional_branch(one.word)) {
        const uint64_t target = one.address + static_cast<uint64_t>(condition_distance(one.word));
        if (is_tail_call(target))
            refuse("it may jump to another function by " + finder_.text_at(one.address));
        else
            follow(target, line_behind(one));
        return true;
    }
    if (is_register_jump(one.word)) {
        register_jump(one);
        return false;
    }
    const bool is_page = is_word(one.word, 0x9f000000, 0x90000000); // adrp
    if (const auto address = taken_address(history_, one); address && !is_page)
        taken_.push_back(*address);
    if (is_word(one.word, 0xfe000000, 0xd6000000) && !is_call(one.word)) { // retaa, braa, eret, ...
        refuse("it leaves by " + finder_.text_at(one.address));
        return false;
    }
    return true;
}

// What was executed before the target of a conditional branch: of "cmp Rn,#N; b.ls" it is known
// there, as behind a b.hi that is not taken, that the register is no greater.
Line Walk::line_behind(const Placed& one) const {
    if (!is_word(one.word, 0xff00001f, 0x54000009)) return {};
    Line line = history_;
    line.push_back({one.address, one.word ^ 1});
    return line;
}

// A jump there leaves the function.
bool Walk::is_tail_call(uint64_t target) const {
    if (target == entry_) return true;
    if (belongs(target)) return false;
    const Function* function = finder_.function_at(target);
    return function != nullptr ? !finder_.is_cold(*function) : finder_.is_stub(target);
}

void Walk::jump(const Placed& one, uint64_t target) {
    if (is_tail_call(target))
        add_exit(one, target);
    else
        follow(target);
}

void Walk::add_exit(const Placed& one, std::optional<uint64_t> target) {
    const auto code = finder_.code(one.address, kWordBytes);
    const SiteVerdict verdict =
        judge_site(code, one.address, finder_.options, SitePosition::kInside);
    if (!verdict.allowed)
        refuse("it leaves by " + finder_.text_at(one.address) + ", which " + verdict.reason);
    Exit exit;
    exit.file_offset = finder_.file->offset_of_address(one.address).value_or(0);
    exit.length = kWordBytes;
    exit.is_return = is_return(one.word);
    exit.target = target;
    exit.instruction = finder_.text_at(one.address);
    exits_[one.address] = std::move(exit);
}

void Walk::register_jump(const Placed& one) {
    const Placed* origin = last_write(history_, register_of(one.word));
    if (origin == nullptr || is_pointer(origin->word)) {
        undecided_.push_back(one);
        return;
    }
    const auto table = table_of(history_, *origin);
    if (!table) return refuse("it jumps through a table that was not found");
    bases_.insert(table->base);
    if (line_begins_ != 0) assumed_.insert(line_begins_);
    has_labels_ = true;
    follow_entries(*table);
}

void Walk::follow_entries(const Table& table) {
    // An entry of one byte is as much work as one of four.
    const uint64_t work = table.entries * sizeof(uint32_t);
    if (work > table_budget_) return refuse("it has too many tables");
    table_budget_ -= work;
    const auto bytes =
        read_address(*finder_.file, table.address, table.entries * table.entry_bytes);
    if (!bytes || bytes->size() < table.entries * table.entry_bytes)
        return refuse("a table of jumps can't be read");
    for (uint64_t i = 0; i < table.entries && reason_.empty(); ++i) {
        uint32_t value = 0;
        std::memcpy(&value, bytes->data() + i * table.entry_bytes, table.entry_bytes);
        const int64_t distance =
            table.is_signed ? signed_field(value, 0, 8 * table.entry_bytes) : int64_t{value};
        const uint64_t target = table.base + (static_cast<uint64_t>(distance) << table.shift);
        if (!is_tail_call(target)) follow(target);
    }
}

// Places inside whose address data has: a jump through a register may lead there.
void Walk::add_labels() {
    const std::vector<uint64_t>* pointers = finder_.pointers();
    if (pointers == nullptr) return refuse("the relocations of the file can't be read");
    for (size_t i = 0; i < parts_.size(); ++i) {
        const CodePart range = parts_[i];
        for (auto one = std::lower_bound(pointers->begin(), pointers->end(), range.begin);
             one != pointers->end() && *one < range.end; ++one) {
            if (*one == entry_ || finder_.function_at(*one) != nullptr) continue;
            has_labels_ = true;
            follow(*one);
        }
    }
}

// Jumps of which only the call itself can tell whether they leave.
void Walk::add_undecided() {
    // Addresses of own code in data are in no relocations there.
    if (!undecided_.empty() && !finder_.file->is_position_independent())
        refuse("it jumps through a register in a program with fixed addresses");
    for (const Placed& one : undecided_) {
        if (!reason_.empty()) return;
        add_exit(one, std::nullopt);
        if (!has_labels_) continue;
        JumpOperand operand;
        operand.base = static_cast<uint8_t>(register_of(one.word));
        exits_[one.address].operand = operand;
    }
}

Result<WaysOut> Walk::run() {
    if (finder_.is_go) return refusal("functions of Go are not followed on aarch64");
    follow(entry_);
    while (reason_.empty() && !todo_.empty()) {
        auto [next, line] = std::move(todo_.front());
        todo_.pop_front();
        follow_run(next, std::move(line));
        if (todo_.empty() && !undecided_.empty()) add_labels();
    }
    for (const uint64_t address : assumed_)
        if (ways_[address] > 1) refuse("it jumps through a table that was not found");
    // Who gets one may go there: it may be none of a table (swapcontext() goes on there).
    for (const uint64_t address : taken_)
        if (belongs(address) && address != entry_ && !bases_.contains(address))
            refuse("it takes addresses of its own code");
    add_undecided();
    if (reason_.empty() && exits_.empty()) refuse("it never returns");
    if (!reason_.empty()) return refusal(reason_);
    WaysOut ways;
    ways.entry_address = entry_;
    for (auto& [address, exit] : exits_) ways.exits.push_back(std::move(exit));
    ways.parts = parts_;
    return ways;
}

} // namespace

ExitFinder::ExitFinder(std::shared_ptr<const ElfFile> file, const SiteOptions& options)
    : impl_(std::make_unique<Impl>(std::move(file), options)) {}
ExitFinder::~ExitFinder() = default;

Result<WaysOut> ExitFinder::find(uint64_t entry_offset) const {
    const auto entry = impl_->file->address_of_offset(entry_offset);
    if (!entry) return refusal("there is no code");
    return Walk(*impl_, *entry).run();
}

// Probes are put on entries alone (placement_aarch64.cpp).
std::optional<uint64_t> ExitFinder::stack_used(uint64_t entry_offset, uint64_t place) const {
    if (place != entry_offset) return std::nullopt;
    return 0;
}

bool ExitFinder::keeps(uint64_t entry_offset, uint64_t place, const std::vector<uint8_t>&) const {
    return place == entry_offset;
}

} // namespace speedbump::elf
