// SPDX-License-Identifier: MIT
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <vector>

#include "engine/inprocess/trampoline.h"
#include "inject/stop_all.h"
#include "util/clock.h"
#include "util/result.h"

namespace speedbump::engine::inprocess {

// A jump that may be in place.
struct Entry {
    uint64_t region = 0; // address of the region it leads to; 0: of none any more
    Identity identity{}; // of that
    uint64_t site = 0;
    uint64_t device = 0, inode = 0; // what is mapped there (Span)
    std::array<unsigned char, inject::kChangedBytes> before{};
    std::array<unsigned char, inject::kChangedBytes> jump{};
};

// A region of memory that a process has, or may have soon.
struct Place {
    pid_t pid = 0; // 0: none any more; those that fork from it have it, too
    bool is_mapped = false;
    uint64_t code = 0; // it begins with that
    uint64_t settings = 0;
    uint64_t end = 0;
    Identity identity{}; // that it begins with, once it is filled
};

// What has been put into processes, in memory that a process which outlives this one sees as well.
// Written before a jump is in place. Any thread may change it.
class Ledger {
  public:
    static Result<std::unique_ptr<Ledger>> create();
    ~Ledger();
    Ledger(const Ledger&) = delete;
    Ledger& operator=(const Ledger&) = delete;

    // Where they are from now on; kUnsupported: there is no room for so many.
    Result<size_t> add(std::span<const Entry> entries);
    // One of them whose jump was not put in place.
    void strike(size_t entry);
    void forget(size_t first, size_t count);
    // Before it is mapped, and afterwards. kUnsupported as above.
    Result<size_t> add(const Place& place);
    void set_mapped(size_t place);
    void forget(size_t place);
    std::vector<Place> places() const;
    // By region.
    std::vector<Entry> entries() const;

  private:
    struct Page;
    explicit Ledger(Page* page) : page_(page) {}
    Page* page_;
    std::mutex mutex_;              // of changes
    std::map<size_t, size_t> free_; // that were forgotten: from where on how many
    std::vector<size_t> free_places_;
};

// The processes that have this table mapped, by its inode: those that were given it and all that
// have forked from them.
std::vector<pid_t> processes_with(ino_t table);

// Whether a process has that region, which jumps lead to; an error where nobody can tell.
Result<bool> has_region(pid_t pid, uint64_t region, const Identity& identity);

// Unmaps a region, where no thread can come there any more.
Result<void> unmap(const inject::Turn& turn, const Place& place);

// Of a process after a loader that was killed, whose jumps are out of it: unmaps the regions of
// this table, and what was being put in. False: a thread stands there, or is still at it.
bool clear_away(const inject::Turn& turn, ino_t table, const std::vector<Place>& places);

// Takes the jumps of these entries, which are in order by region, out of a process, as far as they
// are its: what was there before is there again. An error where that could not be done for all:
// then the memory that they lead to has to stay. `quiet`: as of change_code(), of the one region
// that all of them lead to.
Result<void> take_out(const inject::Turn& turn, std::span<const Entry> entries,
                      Clock::time_point deadline, inject::Quiet* quiet = nullptr);

} // namespace speedbump::engine::inprocess
