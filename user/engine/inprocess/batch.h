// SPDX-License-Identifier: MIT
#pragma once

#include <sys/types.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "elf/moved_code.h"
#include "engine/engine.h"
#include "engine/inprocess/ledger.h"
#include "engine/inprocess/table.h"
#include "engine/inprocess/trampoline.h"
#include "process/named_code.h"
#include "util/fd.h"
#include "util/result.h"

namespace speedbump::engine::inprocess {

// A function's site in one process.
struct Site {
    Probe probe;
    uint64_t address = 0;
    uint64_t device = 0, inode = 0;        // what is mapped there (Span)
    std::basic_string<unsigned char> code; // of the file, from the site on
    elf::Range range;                      // the instructions that a jump takes the place of
    Filter filter;
    Trampoline trampoline;
};

// Which of the probes have a site in a process, where the file is mapped as it should be: all that
// have none are added to `refused`, with the reason. `without`: addresses to leave out. kNotFound:
// the file is not mapped there.
Result<std::vector<Site>> find_sites(pid_t pid, const FileProbes& probes,
                                     std::vector<RefusedProbe>& refused);

// The sites of one file in one process, and the memory there that they lead to. That stays for
// forked children, which have it, too.
class Batch {
  public:
    // Maps the memory and fills it; no jump is in place yet. Sites that can't be reached are taken
    // out and added to `refused`. `callers`: the tables that their filters name.
    static Result<std::shared_ptr<Batch>> prepare(
        const inject::Turn& turn, std::vector<Site> sites, const Table& table,
        const std::vector<process::AddressRanges>& callers, Ledger& ledger,
        std::vector<RefusedProbe>& refused);
    ~Batch();
    Batch(const Batch&) = delete;
    Batch& operator=(const Batch&) = delete;

    // Puts the jumps in place, at once, once they are listed in the ledger.
    // On an error none is, but threads may stand in the memory that they were to lead to.
    Result<void> put_in(const inject::Turn& turn, Ledger& ledger,
                        std::vector<RefusedProbe>& refused);
    // Forgets them, once no process has them any more.
    void forget(Ledger& ledger);

    // Whether a process has this memory: this one, or one that has forked from it.
    bool is_in(pid_t pid) const;
    bool may_be_in(pid_t pid) const; // or nobody can tell
    // Whether the clock that it has in there is that of such a process, which may be in another
    // time namespace.
    bool has_clock_of(pid_t pid) const;
    // Whether a probe's jump is in place in such a process. One may have forked before.
    bool has_jump(pid_t pid, const Probe& probe) const;
    // Those that may be in place.
    std::vector<Entry> entries() const;
    // Replaces a table of callers in a process that has this memory, while calls look it up there.
    // kUnsupported: there is no room for so many.
    Result<void> set_callers(const inject::Turn& turn, size_t table,
                             const process::AddressRanges& ranges) const;
    // Of the process, or, as process 0, of its children.
    void add_counts(std::vector<Counts>& to, const Ticks& ticks) const;
    void forget_counts(uint32_t target);

    // Unmaps the memory, where no thread can come there any more.
    Result<void> unmap(const inject::Turn& turn) const { return inprocess::unmap(turn, place()); }
    inject::Quiet range() const { return {layout_.code, layout_.settings, false}; }

    pid_t pid() const { return pid_; }
    uint32_t tgid = 0;         // in the initial PID namespace
    std::atomic<int> users{0}; // processes that have it, as far as is known

  private:
    // What has been counted at an address of the region.
    template <typename T>
    const T* counted(uint64_t address) const;
    Batch() = default;
    Result<void> map(const inject::Turn& turn, const Table& table, const CallerTables& callers,
                     Ledger& ledger);
    Entry entry_of(const Site& site) const;
    Place place() const {
        return {pid_, false, layout_.code, layout_.settings, layout_.end, identity_};
    }
    Result<void> fill(const Fd& memory);

    pid_t pid_ = 0;
    std::vector<Site> sites_;
    Layout layout_;
    Identity identity_{};
    ClockFunction clock_{};
    Fd counts_fd_;
    const std::byte* counts_ = nullptr;
    std::vector<bool> is_forgotten_; // by site: the process's own counts
    std::vector<bool> is_refused_;   // by site: its jump was not put in place
    std::optional<size_t> listed_;   // in the ledger
    std::optional<size_t> place_;    // there
};

} // namespace speedbump::engine::inprocess
