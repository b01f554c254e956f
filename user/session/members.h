// SPDX-License-Identifier: MIT
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "engine/engine.h"
#include "process/resolver.h"

namespace speedbump::session {

// A process of the tree. Keys are tgids of the initial PID namespace; pid is what this program
// sees.
struct Member {
    uint32_t tgid = 0;
    pid_t pid = 0;
    std::string command; // comm
    uint64_t roots = 0;
    bool alive = true;
    std::set<process::FileKey> files; // with targets, that it has mapped
};

// The processes of the tree, and what was counted in them. Those that have ended stay as long as
// there is something to tell of them, the last 1,024 of them at most: what was counted in earlier
// ones is kept under process 0, so that memory does not grow with every fork while no total
// changes.
class Members {
  public:
    // A new process; one of that tgid that has ended is forgotten, its counts are not.
    Member& add(Member member);
    // nullptr: none.
    Member* find(uint32_t tgid);
    // Of living ones alone; nullptr: none.
    Member* find_pid(pid_t pid);
    void ended(Member& member);

    std::map<uint32_t, Member>& all() { return members_; }
    const std::map<uint32_t, Member>& all() const { return members_; }
    // So many have ended that their counts should be taken over by fold().
    bool crowded() const { return dead_.size() > 2 * kDeadKept; }

    // Takes what the engine has counted so far (Counts::process: tgid) and gives it back with what
    // was counted in ended processes (Counts::process: pid). `forget` is told of counters that the
    // engine need not keep any more.
    std::vector<engine::Counts> fold(
        const std::vector<engine::Counts>& read,
        const std::function<void(uint32_t target, uint32_t tgid)>& forget);

  private:
    static constexpr size_t kDeadKept = 1024;
    struct Key {
        uint32_t tgid;
        uint32_t target;
        auto operator<=>(const Key&) const = default;
    };
    using Sums = std::map<Key, engine::Counts>;
    static void add_to(Sums& sums, Key key, const engine::Counts& counts);
    bool has_counts(uint32_t tgid) const;
    void merge(uint32_t tgid);

    std::map<uint32_t, Member> members_;
    std::map<pid_t, uint32_t> living_;
    std::deque<uint32_t> dead_; // oldest first
    Sums folded_;               // of ended ones
};

} // namespace speedbump::session
