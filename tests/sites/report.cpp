// SPDX-License-Identifier: MIT
#include "report.h"

#include <errno.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

namespace speedbump::sites {

namespace {

constexpr int kNotSupported = 524; // ENOTSUPP, of the kernel alone
constexpr size_t kShown = 40;
constexpr const char* kRefused = "refused by the kernel";
constexpr const char* kRefusedByEngine = "refused by the engine, whose list is shorter";

std::string place_of(const Slot& slot) {
    return fmt::format("{} [{:02x}] at {:#x} ({})", slot.name, fmt::join(slot.code, " "),
                       slot.address, slot.example);
}

bool runs_nowhere(const SlotResult& result) {
    const Tally& tally = result.tally;
    return tally.states > 0 && tally.illegal == tally.states;
}

std::string mnemonic_of(const Slot& slot) {
    return ZydisMnemonicGetString(slot.instructions.front().instruction.mnemonic);
}

// What a fault is, without the figures of one case.
std::string kind_of(const SlotResult& result) {
    const Tally& tally = result.tally;
    if (result.died) return "the process dies";
    if (std::any_of(result.refused.begin(), result.refused.end(), [](int e) { return e != 0; }))
        return kRefused;
    if (tally.different != 0 && tally.skipped == tally.different) return "skipped";
    if (tally.different != 0) return "wrong result";
    return "counted more than once";
}

} // namespace

std::string fault_of(const SlotResult& result) {
    const Tally& tally = result.tally;
    if (result.died) return "the process died with the probe";
    for (int error : result.refused)
        if (error != 0)
            return error == kNotSupported ? "the kernel refuses the probe (ENOTSUPP)"
                                          : fmt::format("the kernel refuses the probe ({})", error);
    if (tally.different != 0)
        return fmt::format("{} of {} states differ{}: {}", tally.different, tally.states,
                           tally.skipped == tally.different ? ", as though it did nothing" : "",
                           tally.detail);
    if (tally.different_after != 0)
        return fmt::format("{} of {} states differ {}", tally.different_after, tally.states,
                           tally.detail);
    const uint64_t calls = tally.states + tally.varying + tally.out_of_reach;
    for (uint64_t hits : result.hits)
        if (hits != calls) return fmt::format("{} calls were counted as {}", calls, hits);
    return {};
}

void Report::count(const Slot& slot, const SlotResult& result) {
    const Tally& tally = result.tally;
    if (result.died_without_probe) add_untried(slot, "ends the test without a probe too");
    if (runs_nowhere(result)) add_untried(slot, "not an instruction of this processor");
    if (tally.varying != 0) add_untried(slot, "not the same twice by itself");
    if (tally.out_of_reach != 0)
        add_untried(slot, "leaves a stack pointer to which this hypervisor lets nobody return");
    ++slots_;
    states_ += tally.states;
    faulted_ += tally.faulted;
    trap_numbers_ += tally.trap_numbers;
    x87_records_ += tally.x87_records;
}

bool Report::is_refused_by_engine(const SlotResult& result) const {
    return engine_has_a_list_ && std::find(result.refused.begin(), result.refused.end(),
                                           EOPNOTSUPP) != result.refused.end();
}

void Report::add_allowed(const Slot& slot, const SlotResult& result) {
    if (is_refused_by_engine(result)) {
        ++refused_;
        add_untried(slot, kRefusedByEngine);
        return;
    }
    count(slot, result);
    const std::string fault = fault_of(result);
    if (!fault.empty()) failures_.push_back(place_of(slot) + ": " + fault);
}

void Report::add_refused(const Slot& slot, const SlotResult& result) {
    ++tried_not_listed_;
    if (result.died_without_probe || runs_nowhere(result)) return;
    const std::string fault = fault_of(result);
    if (fault.empty()) return;
    ++wrong_not_listed_;
    wrong_.try_emplace(mnemonic_of(slot) + ": " + kind_of(result), Wrong{slot, fault});
}

void Report::add_known(const KnownCode& known, const SlotResult& result) {
    if (is_refused_by_engine(result)) {
        known_.push_back(fmt::format("{}: refused", known.name));
        return;
    }
    const std::string fault = fault_of(result);
    const bool lacks = runs_nowhere(result);
    known_.push_back(fmt::format("{}: {}", known.name,
                                 lacks           ? "not an instruction of this processor"
                                 : fault.empty() ? "right"
                                                 : fault));
    if (lacks) return;
    if (known.known == Known::kRight && !fault.empty())
        failures_.push_back(known.name + ": " + fault);
    if (known.known == Known::kWrong && fault.empty())
        failures_.push_back(known.name +
                            ": this kernel gets it wrong, and the test did not find it");
}

void Report::add_untried(const Slot& slot, const std::string& reason) {
    ++untried_[reason][slot.name];
}

void Report::print() const {
    fmt::print("code that is known:\n");
    for (const std::string& line : known_) fmt::print("  {}\n", line);
    for (const auto& [reason, instructions] : untried_) {
        std::vector<std::string> names;
        for (const auto& [name, count] : instructions) names.push_back(name);
        const size_t all = names.size();
        names.resize(std::min<size_t>(all, 6));
        fmt::print("skipped, {}: {} ({}{})\n", reason, all, fmt::join(names, "; "),
                   all > names.size() ? "; ..." : "");
    }
    fmt::print("not on the list: {} places not tried; {} tried, of which {} go wrong\n",
               not_listed_, tried_not_listed_, wrong_not_listed_);
    fmt::print(
        "signals with the trap number of an earlier fault: {}; states with another record of "
        "the last x87 instruction: {}\n",
        trap_numbers_, x87_records_);
    for (size_t i = 0; i < std::min(failures_.size(), kShown); ++i)
        fmt::print("WRONG {}\n", failures_[i]);
    if (failures_.size() > kShown) fmt::print("... and {} more\n", failures_.size() - kShown);
    fmt::print("{} places, {} states, {} of them faults; {} refused, {} failures\n", slots_,
               states_, faulted_, refused_, failures_.size());
}

void Report::print_table() const {
    fmt::print("| instruction | what happens | example |\n| --- | --- | --- |\n");
    std::string refused;
    for (const auto& [what, wrong] : wrong_) {
        const size_t end = what.find(": ");
        const std::string mnemonic = what.substr(0, end), kind = what.substr(end + 2);
        if (kind == kRefused) {
            refused += (refused.empty() ? "" : " ") + mnemonic;
            continue;
        }
        fmt::print("| {} | {} | `{}` ({:02x}): {} |\n", mnemonic, kind, wrong.example.name,
                   fmt::join(wrong.example.code, " "), wrong.fault);
    }
    fmt::print("{}, some forms of: {}\n", kRefused, refused);
}

} // namespace speedbump::sites
