// SPDX-License-Identifier: MIT
#include "session/tree_follower.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <utility>

#include "process/ownership.h"
#include "util/proc.h"

namespace speedbump::session {

using process::FileKey;
using std::chrono::milliseconds;
using tree::ListedProcess;
using tree::TreeEvent;

namespace {

// A child that dies within this time is never worth probes of its own.
constexpr auto kChildGrace = milliseconds(20);
// Records of new mappings come in bursts: ld.so maps a library in several steps.
constexpr auto kMappingSettle = milliseconds(3);
// How long outsiders that have mapped something are looked at, at a time.
constexpr auto kOutsiderSlice = milliseconds(3);
// The longest sleep: events that wake nobody are collected at least this often.
constexpr auto kTick = milliseconds(200);
// While mapping records wake nobody.
constexpr auto kModeratedTick = milliseconds(30);
// Between looks at the whole tree, however many events are lost: one takes some milliseconds.
constexpr auto kTreeLookPause = milliseconds(200);
// While something keeps them from being complete.
constexpr auto kFailedLookPause = std::chrono::seconds(1);
constexpr auto kLossWarningPause = std::chrono::seconds(10);

} // namespace

// --- beginning

TreeFollower::RootBits TreeFollower::with_cgroup(RootBits bits,
                                                 const std::vector<ListedProcess>& listed) const {
    for (const ListedProcess& process : listed)
        if (process.in_cgroup && process.tgid != tree_.own_tgid())
            bits[process.tgid] |= kCgroupRoot;
    return bits;
}

Result<void> TreeFollower::build() {
    tree_.follow_children(options_.follow_children);
    if (options_.cgroup) {
        auto id = cgroup_id(*options_.cgroup);
        if (!id) return std::move(id).error();
        tree_.set_cgroup(*id, kCgroupRoot);
    }
    tree::TreeQuestion question;
    bool are_found = false; // one that has ended since is no error
    question.roots = [&](const auto& listed) -> Result<RootBits> {
        if (!std::exchange(are_found, true)) {
            auto found = find_roots(options_, file_, listed, tree_.own_tgid());
            if (!found) return std::move(found).error();
            roots_ = std::move(*found);
        }
        return with_cgroup(roots_.bits, listed);
    };
    // Below it, but not the caller's to slow.
    question.may_belong = [](const auto& process) { return process::is_ours(process.pid); };
    question.follow_children = options_.follow_children;
    const tree::TreeLook look = tree::look_at_tree(tree_, question);
    if (look.failure) return *look.failure;
    if (look.lost_events > 0)
        warn_(
            fmt::format("{} events of the process tree were lost in the last of several looks at "
                        "it: processes that have just been forked may be missing",
                        look.lost_events));
    for (const auto& [process, bits] : *look.members)
        members_.add({process.tgid, process.pid, process.command, bits, true, {}});
    for (const TreeEvent& event : look.events) handle(event);
    if (members_.all().empty())
        return make_error(ErrorKind::kNotFound, options_.cgroup && options_.pids.empty()
                                                    ? "no process is in cgroup " + *options_.cgroup
                                                    : "the process ended before it was attached");
    return {};
}

// --- events

void TreeFollower::handle(const TreeEvent& event) {
    switch (event.type) {
        case TreeEvent::Type::kFork:
        case TreeEvent::Type::kJoin:
            return handle_birth(event);
        case TreeEvent::Type::kExec:
            return handle_exec(event);
        case TreeEvent::Type::kExit:
        case TreeEvent::Type::kLeave:
            return handle_end(event);
        case TreeEvent::Type::kRise:
            return handle_rise(event);
        case TreeEvent::Type::kEdge:
            return; // recorded while the tree was built only
    }
}

void TreeFollower::handle_birth(const TreeEvent& event) {
    const Member* parent = members_.find(event.parent_tgid);
    const pid_t parent_pid = parent ? parent->pid : 0;
    Member& member = members_.add({event.tgid, event.pid, event.command, event.roots, true,
                                   parent ? parent->files : std::set<FileKey>()});
    if (event.type == TreeEvent::Type::kJoin) {
        left_.erase({event.tgid, event.start_time});
        finder_.look_at(member);
        return;
    }
    if (!parent) finder_.look_at(member); // it came into the cgroup: nobody has looked for it
    newborn_.push_back({event.tgid, Clock::now()});
    if (mappings_) born_.emplace_back(parent_pid, event.pid);
    if (finder_.has_begun()) probes_.born(); // before that the tree is only being built
    if (hooks_) hooks_->forked(parent_pid, event.pid, event.roots);
}

void TreeFollower::handle_exec(const TreeEvent& event) {
    Member* member = members_.find(event.tgid);
    if (!member) return;
    member->command = event.command;
    member->files.clear();
    // Probes aimed at a process go on in its new memory, from its first instruction; but the kernel
    // aims at the leader's task, and when another thread calls exec that one is gone. Those that
    // are in the memory itself are gone in any case.
    if (event.parent_tgid != 0 || !outlives_exec_) probes_.drop(event.tgid);
    if (hooks_) hooks_->execed(event.pid);
    if (!process::is_ours(event.pid)) {   // where the kernel did not say so
        if (is_ending(event.pid)) return; // whose rights can't be told any more: its exit tells
        tree_.remove_member(event.tgid);
        return handle_rise(event);
    }
    finder_.look_at(*member);
}

// The kernel calls it so for a set-user-ID program, and where the system's security policy gives
// the program a domain of its own, too.
void TreeFollower::handle_rise(TreeEvent event) {
    const Member* member = members_.find(event.tgid);
    if (!member || !member->alive) return;
    warn_(
        fmt::format("process {} ({}) runs a program with other rights now, which are not yours: it "
                    "is no longer slowed",
                    event.pid, event.command));
    event.type = TreeEvent::Type::kLeave;
    handle_end(event);
}

void TreeFollower::handle_end(const TreeEvent& event) {
    Member* member = members_.find(event.tgid);
    if (!member) return;
    const std::set<FileKey> mapped = member->files;
    members_.ended(*member);
    probes_.drop(event.tgid);
    finder_.forget(event.tgid);
    if (event.type == TreeEvent::Type::kExit) {
        if (hooks_) hooks_->exited(event.pid);
        return;
    }
    note_left(event.tgid, event.start_time);
    for (const FileKey& key : mapped) probes_.narrow(key);
    probes_.outsider_maps(event.pid); // by an exec it may have others by now
}

// Not those that have ended since: members that leave and end could go on for ever.
void TreeFollower::note_left(uint32_t tgid, uint64_t start_time) {
    left_.insert({tgid, start_time});
    if (left_.size() <= forget_left_at_) return;
    if (const auto listed = tree_.list_processes()) {
        std::set<std::pair<uint32_t, uint64_t>> living;
        for (const ListedProcess& process : *listed)
            if (!process.ended) living.insert({process.tgid, process.start_time});
        std::erase_if(left_, [&living](const auto& one) { return !living.contains(one); });
    }
    forget_left_at_ = 2 * left_.size() + kFewLeft;
}

void TreeFollower::handle_events() {
    if (hooks_) hooks_->begin_events();
    for (const TreeEvent& event : tree_.drain_events()) handle(event);
    if (hooks_) hooks_->end_events();
}

void TreeFollower::handle_mappings() {
    if (!mappings_) return;
    bool lost = false;
    for (const tree::NewMapping& mapping : mappings_->drain(lost)) {
        if (mapped_lately_.empty()) mapped_since_ = Clock::now();
        mapped_lately_.insert(mapping.pid);
    }
    if (lost && !std::exchange(lost_mappings_told_, true))
        warn_(
            "records of new mappings were lost (too many at once, or a CPU went offline or came "
            "online): looking at all processes again, so libraries may be slowed some seconds "
            "after they were loaded");
    if (lost)
        for (const auto& [tgid, member] : members_.all())
            if (member.alive) mapped_lately_.insert(member.pid);
    // A child has what its parent had mapped, of which no record says that the child has it.
    for (const auto& [parent, child] : std::exchange(born_, {}))
        if (mapped_lately_.contains(parent)) mapped_lately_.insert(child);
    if (!mapped_lately_.empty() && Clock::now() - mapped_since_ >= kMappingSettle) {
        for (const pid_t pid : std::exchange(mapped_lately_, {})) {
            if (Member* member = members_.find_pid(pid))
                finder_.look_at(*member);
            else if (pid != getpid() && outsiders_waiting_.insert(pid).second)
                outsiders_.push_back(pid);
        }
    }
    look_at_outsiders();
}

// Whoever maps code all the time, and is none of ours, must not keep the session from its members:
// those that there is no time for now wait for the next turn.
void TreeFollower::look_at_outsiders() {
    const auto end = Clock::now() + kOutsiderSlice;
    while (!outsiders_.empty() && Clock::now() < end) {
        const pid_t pid = outsiders_.front();
        outsiders_.pop_front();
        outsiders_waiting_.erase(pid);
        if (Member* member = members_.find_pid(pid)) // it has come into the tree meanwhile
            finder_.look_at(*member);
        else
            probes_.outsider_maps(pid);
    }
}

void TreeFollower::probe_newborns() {
    const auto now = Clock::now();
    eager_tokens_ = std::min(
        kEagerBurst,
        eager_tokens_ + kEagerPerSecond * std::chrono::duration<double>(now - tokens_at_).count());
    tokens_at_ = now;
    while (!newborn_.empty()) {
        const Newborn next = newborn_.front();
        const Member* member = members_.find(next.tgid);
        if (member && member->alive) {
            const bool grown = now - next.born >= kChildGrace;
            if (!grown && eager_tokens_ < 1) break;
            if (!grown) eager_tokens_ -= 1;
            finder_.probe(*member);
        }
        newborn_.pop_front();
    }
}

void TreeFollower::update_wake() {
    tree_.wake_on_fork(probes_.has_narrow() && eager_tokens_ >= 1);
}

Clock::duration TreeFollower::longest_sleep() const {
    if (!mapped_lately_.empty() || !outsiders_.empty()) return kMappingSettle;
    const Clock::duration sleep = newborn_.empty() ? Clock::duration(kTick) : kChildGrace;
    return mappings_ && mappings_->moderated() ? std::min<Clock::duration>(sleep, kModeratedTick)
                                               : sleep;
}

// --- losses

void TreeFollower::warn_of_losses(uint64_t events, uint64_t missed) {
    const auto now = Clock::now();
    if (now < losses_.next_warning || losses_.has_failed) return;
    warn_(
        fmt::format("{} events of the process tree and {} processes in it were lost: looking "
                    "at all of it again",
                    events - std::exchange(losses_.events_told, events),
                    missed - std::exchange(losses_.members_told, missed)));
    losses_.next_warning = now + kLossWarningPause;
}

// Who is a member now; of the others, who was one.
TreeFollower::RootBits TreeFollower::present_roots(const std::vector<ListedProcess>& listed) {
    RootBits bits;
    for (const ListedProcess& process : listed) {
        const uint64_t own = process.ended ? 0 : tree_.member_roots(process.tgid);
        const Member* member = members_.find(process.tgid);
        if (own == 0 && !process.ended && member && member->alive)
            note_left(process.tgid, process.start_time); // of which nobody told
        if (own != 0) bits[process.tgid] = own;
    }
    return with_cgroup(std::move(bits), listed);
}

void TreeFollower::make_up_for_losses() {
    const uint64_t events = tree_.lost_events();
    const uint64_t missed = tree_.lost_members();
    if (events == losses_.events && missed == losses_.members && !losses_.has_failed) return;
    if (Clock::now() < losses_.next_look) return;
    losses_.events = events;
    losses_.members = missed;
    warn_of_losses(events, missed);
    tree::TreeQuestion question;
    question.roots = [this](const auto& listed) -> Result<RootBits> {
        return present_roots(listed);
    };
    question.may_belong = [this](const auto& process) {
        return process::is_ours(process.pid) &&
               (process.in_cgroup || !left_.contains({process.tgid, process.start_time}));
    };
    question.follow_children = options_.follow_children;
    const tree::TreeLook look = tree::look_at_tree(tree_, question);
    take_in(look);
    if (look.failure && !losses_.has_failed)
        warn_(Error(*look.failure).with_context("look at the process tree").message);
    losses_.has_failed = look.failure.has_value();
    losses_.next_look = Clock::now() + (look.failure ? Clock::duration(kFailedLookPause)
                                                     : Clock::duration(kTreeLookPause));
}

// Of a look at the tree: who is new, and who has gone.
void TreeFollower::take_in(const tree::TreeLook& look) {
    for (const TreeEvent& event : look.events) handle(event);
    if (!look.members) return;
    std::set<uint32_t> living;
    for (const auto& [process, bits] : *look.members) {
        living.insert(process.tgid);
        Member* member = members_.find(process.tgid);
        if (!member || !member->alive)
            member = &members_.add({process.tgid, process.pid, process.command, bits, true, {}});
        finder_.look_at(*member);
        newborn_.push_back({process.tgid, Clock::now()});
    }
    std::vector<TreeEvent> exits;
    for (const auto& [tgid, member] : members_.all()) {
        if (!member.alive || living.contains(tgid)) continue;
        TreeEvent event{};
        event.type = TreeEvent::Type::kExit;
        event.tgid = tgid;
        event.pid = member.pid;
        exits.push_back(event);
    }
    for (const TreeEvent& event : exits) handle(event);
}

} // namespace speedbump::session
