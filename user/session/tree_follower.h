// SPDX-License-Identifier: MIT
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <deque>
#include <map>
#include <set>
#include <utility>
#include <vector>

#include "engine/engines.h"
#include "session/finder.h"
#include "session/members.h"
#include "session/probe_set.h"
#include "session/roots.h"
#include "tree/look.h"
#include "util/clock.h"
#include "util/result.h"

namespace speedbump::session {

// Keeps the members what the process tree is, and has each looked at when something changes in it.
class TreeFollower {
  public:
    // All must outlive this.
    TreeFollower(const SessionOptions& options, const targets::TargetsFile& file,
                 engine::Engines& engines, Members& members, ProbeSet& probes, Finder& finder,
                 Warn warn)
        : options_(options),
          file_(file),
          tree_(*engines.tree),
          mappings_(engines.mappings.get()),
          hooks_(engines.hooks.get()),
          outlives_exec_(engines.probes->capabilities().outlives_exec),
          members_(members),
          probes_(probes),
          finder_(finder),
          warn_(std::move(warn)) {}

    // Makes members of the roots and all that descends from them.
    Result<void> build();
    const Roots& roots() const { return roots_; }

    // Takes in forks, execs and exits.
    void handle_events();
    void handle_mappings();
    // Children that are born one by one are probed at once; in a storm of forks only those that
    // live on, so that following the tree does not slow it down.
    void probe_newborns();
    // Where the kernel could not tell of a member, or had no room for one, the tree is looked at
    // again: who is a member and not known here is, and whoever should be one becomes one.
    void make_up_for_losses();
    // Forks wake the session while children are to be probed one by one.
    void update_wake();
    // When one of these has something to do at the latest.
    Clock::duration longest_sleep() const;

  private:
    // Children probed at once, before they have lived for kChildGrace, in a burst and per second
    // after it.
    static constexpr double kEagerBurst = 50;
    static constexpr double kEagerPerSecond = 100;
    static constexpr size_t kFewLeft = 4096;
    // A child that may not live long enough to be worth probes of its own.
    struct Newborn {
        uint32_t tgid;
        Clock::time_point born;
    };
    // What was lost of the tree's events and members, as far as it has been made up for.
    struct Losses {
        uint64_t events = 0;
        uint64_t members = 0;
        uint64_t events_told = 0;
        uint64_t members_told = 0;
        bool has_failed = false; // the last look at the tree was not complete
        Clock::time_point next_look{};
        Clock::time_point next_warning{};
    };
    using RootBits = std::map<uint32_t, uint64_t>; // by tgid
    // These, and the processes of the cgroup.
    RootBits with_cgroup(RootBits bits, const std::vector<tree::ListedProcess>& listed) const;
    RootBits present_roots(const std::vector<tree::ListedProcess>& listed);
    void handle(const tree::TreeEvent& event);
    void handle_birth(const tree::TreeEvent& event);
    void handle_exec(const tree::TreeEvent& event);
    void handle_rise(tree::TreeEvent event);
    void handle_end(const tree::TreeEvent& event);
    void note_left(uint32_t tgid, uint64_t start_time);
    void look_at_outsiders();
    void take_in(const tree::TreeLook& look);
    void warn_of_losses(uint64_t events, uint64_t missed);

    const SessionOptions& options_;
    const targets::TargetsFile& file_;
    tree::ProcessTree& tree_;
    tree::MappingRecords* mappings_; // nullptr: none
    engine::HookEngine* hooks_;      // nullptr: none
    bool outlives_exec_;             // the probes of a process
    Members& members_;
    ProbeSet& probes_;
    Finder& finder_;
    Warn warn_;
    Roots roots_;
    std::deque<Newborn> newborn_;
    double eager_tokens_ = kEagerBurst;
    Clock::time_point tokens_at_ = Clock::now();
    std::set<pid_t> mapped_lately_;
    std::deque<pid_t> outsiders_;               // that have mapped something, in that order
    std::set<pid_t> outsiders_waiting_;         // the same
    std::vector<std::pair<pid_t, pid_t>> born_; // parent, child: since mappings were last looked at
    Clock::time_point mapped_since_{};
    bool lost_mappings_told_ = false;
    Losses losses_;
    std::set<std::pair<uint32_t, uint64_t>> left_; // tgid and start time: no members, though alive
    size_t forget_left_at_ = kFewLeft;
};

} // namespace speedbump::session
