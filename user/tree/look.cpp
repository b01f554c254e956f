// SPDX-License-Identifier: MIT
#include "tree/look.h"

#include <algorithm>
#include <iterator>
#include <set>
#include <utility>

namespace speedbump::tree {

namespace {

constexpr int kMaxRounds = 5;

// A look under way.
class Looking {
  public:
    Looking(ProcessTree& tree, const TreeQuestion& question, TreeLook& look)
        : tree_(tree), question_(question), look_(look) {
        tree_.record_edges(true);
    }
    Looking(const Looking&) = delete;
    Looking& operator=(const Looking&) = delete;
    ~Looking() { tree_.record_edges(false); }

    Result<void> round();
    Result<void> finish();

  private:
    void note(const std::vector<ListedProcess>& listed);
    void take_events();
    Result<bool> add_missing();

    ProcessTree& tree_;
    const TreeQuestion& question_;
    TreeLook& look_;
    std::vector<ListedProcess> listed_; // with every parent that each has been seen to have
    std::map<uint32_t, uint64_t> roots_;
    std::map<uint32_t, uint64_t> added_; // by us, or born as a member
    std::set<uint32_t> foreign_;         // below the roots, but not to belong
};

void Looking::note(const std::vector<ListedProcess>& listed) {
    // A number that was used again stands for another process now.
    std::map<uint32_t, uint64_t> begun;
    for (const ListedProcess& process : listed) {
        begun[process.tgid] = process.start_time;
        if (question_.may_belong(process))
            foreign_.erase(process.tgid);
        else
            foreign_.insert(process.tgid);
    }
    std::erase_if(listed_, [&begun](const ListedProcess& process) {
        const auto now = begun.find(process.tgid);
        return now != begun.end() && now->second != process.start_time;
    });
    listed_.insert(listed_.end(), listed.begin(), listed.end());
}

void Looking::take_events() {
    using Type = TreeEvent::Type;
    for (TreeEvent& event : tree_.drain_events()) {
        if (event.type == Type::kEdge) {
            listed_.push_back({event.tgid, event.parent_tgid, event.pid, event.start_time, false,
                               false, event.command, false});
            if (!question_.may_belong(listed_.back())) foreign_.insert(event.tgid);
            continue;
        }
        if (event.type == Type::kFork || event.type == Type::kJoin)
            added_[event.tgid] |= event.roots;
        look_.events.push_back(std::move(event));
    }
}

// Whether there were any.
Result<bool> Looking::add_missing() {
    bool grew = false;
    const auto below =
        descendants(listed_, {}, roots_, question_.follow_children, tree_.own_tgid());
    for (const auto& [tgid, bits] : below) {
        if (foreign_.contains(tgid)) continue;
        uint64_t& have = added_[tgid];
        if ((have & bits) == bits) continue;
        auto done = tree_.add_member(tgid, bits);
        if (!done) return done;
        have |= bits;
        grew |= *done;
    }
    return grew;
}

Result<void> Looking::round() {
    const auto listed = tree_.list_processes();
    if (!listed) return Error(listed.error()).with_context("list the processes");
    auto roots = question_.roots(*listed);
    if (!roots) return std::move(roots).error();
    for (const auto& [tgid, bits] : *roots) roots_[tgid] |= bits;
    note(*listed);
    // Until nobody is left to add: what forks from then on was a member before.
    for (;;) {
        take_events();
        const auto grew = add_missing();
        if (!grew) return grew.error();
        if (!*grew) return {};
    }
}

// One that ended before it was added has no exit to come any more.
Result<void> Looking::finish() {
    tree_.record_edges(false);
    const auto listed = tree_.list_processes();
    if (!listed) return Error(listed.error()).with_context("list the processes");
    std::map<uint32_t, const ListedProcess*> living;
    for (const ListedProcess& process : *listed)
        if (!process.ended) living[process.tgid] = &process;
    for (const auto& [tgid, bits] : added_)
        if (!living.contains(tgid)) tree_.remove_member(tgid);
    look_.members.emplace();
    for (const auto& [tgid, process] : living) {
        const uint64_t bits = tree_.member_roots(tgid);
        if (bits == 0) continue;
        // By another exec before it was added, of which nobody was told.
        if (!question_.may_belong(*process))
            tree_.remove_member(tgid);
        else
            look_.members->push_back({*process, bits});
    }
    return {};
}

} // namespace

TreeLook look_at_tree(ProcessTree& tree, const TreeQuestion& question) {
    TreeLook look;
    Looking looking(tree, question, look);
    Result<void> done;
    for (int round = 0; done && round < kMaxRounds; ++round) {
        const uint64_t lost_before = tree.lost_events();
        done = looking.round();
        look.lost_events = tree.lost_events() - lost_before;
        if (look.lost_events == 0) break;
    }
    if (!done) look.failure = std::move(done).error();
    if (auto finished = looking.finish(); !finished && !look.failure)
        look.failure = std::move(finished).error();
    return look;
}

} // namespace speedbump::tree
