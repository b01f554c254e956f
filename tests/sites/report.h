// SPDX-License-Identifier: MIT
#pragma once

#include <map>
#include <string>
#include <vector>

#include "known.h"
#include "runner.h"

namespace speedbump::sites {

// Whether anything went wrong in a slot, and in what way; empty when nothing did.
std::string fault_of(const SlotResult& result);

// Sums up what has been tried.
class Report {
  public:
    // `engine_has_a_list`: it may refuse what the loader's list allows.
    explicit Report(bool engine_has_a_list) : engine_has_a_list_(engine_has_a_list) {}
    // A slot of which the probe is allowed: any fault of it is one of the list of what is allowed.
    void add_allowed(const Slot& slot, const SlotResult& result);
    // A slot of which it is not: what the kernel gets wrong goes into a table.
    void add_refused(const Slot& slot, const SlotResult& result);
    void add_known(const KnownCode& known, const SlotResult& result);
    void add_not_listed() { ++not_listed_; }
    void add_untried(const Slot& slot, const std::string& reason);

    void print() const;
    void print_table() const;
    // Nothing went wrong, and what was refused is little beside what was tried.
    bool is_good() const { return states_ > 0 && failures_.empty() && refused_ * 10 < slots_; }

  private:
    bool is_refused_by_engine(const SlotResult& result) const;
    void count(const Slot& slot, const SlotResult& result);

    bool engine_has_a_list_;
    uint64_t slots_ = 0, refused_ = 0, states_ = 0, faulted_ = 0, trap_numbers_ = 0,
             x87_records_ = 0;
    uint64_t not_listed_ = 0, tried_not_listed_ = 0, wrong_not_listed_ = 0;
    std::vector<std::string> failures_;
    std::vector<std::string> known_;
    std::map<std::string, std::map<std::string, uint64_t>> untried_; // by reason, by instruction
    struct Wrong {
        Slot example;
        std::string fault;
    };
    std::map<std::string, Wrong> wrong_; // by mnemonic and what happens
};

} // namespace speedbump::sites
