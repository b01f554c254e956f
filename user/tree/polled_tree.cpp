// SPDX-License-Identifier: MIT
#include "tree/polled_tree.h"

#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <utility>

#include "util/clock.h"
#include "util/proc.h"

namespace speedbump::tree {

namespace {

constexpr uint64_t kKernelThread = 0x00200000; // PF_KTHREAD, <linux/sched.h>
// CPU time for each of a look, so that looks take a twentieth of a CPU.
constexpr int kMaxShare = 20;

std::optional<ProcessStat> read_process_stat(uint32_t pid) {
    return parse_process_stat(read_proc(fmt::format("/proc/{}/stat", pid)));
}

// The number that the last process or thread was given: it changes with each fork.
std::string last_pid() {
    const std::string load = read_proc("/proc/loadavg");
    return load.substr(load.rfind(' ') + 1);
}

bool is_another_program(const ProcessStat& before, const ProcessStat& now) {
    return before.start_code != now.start_code || before.start_stack != now.start_stack;
}

ListedProcess listed(uint32_t pid, const ProcessStat& stat) {
    ListedProcess process;
    process.tgid = pid;
    process.parent_tgid = static_cast<uint32_t>(stat.parent);
    process.pid = static_cast<pid_t>(pid);
    process.start_time = stat.start_time;
    process.kernel_thread = stat.kernel_thread;
    process.command = stat.command;
    process.ended = stat.ended;
    return process;
}

TreeEvent event_of(TreeEvent::Type type, uint32_t pid, const ProcessStat& stat, uint64_t roots) {
    TreeEvent event{};
    event.type = type;
    event.tgid = pid;
    event.pid = static_cast<pid_t>(pid);
    event.roots = roots;
    event.start_time = stat.start_time;
    event.command = stat.command;
    return event;
}

} // namespace

std::optional<ProcessStat> parse_process_stat(std::string_view text) {
    const auto read = parse_stat(text);
    constexpr size_t kLast = 28; // fields
    if (!read || read->numbers.size() < kLast - 3) return std::nullopt;
    const auto ticks = static_cast<uint64_t>(sysconf(_SC_CLK_TCK));
    ProcessStat stat;
    stat.command = read->name;
    stat.parent = static_cast<pid_t>(read->field(4));
    stat.kernel_thread = (read->field(9) & kKernelThread) != 0;
    // A first thread that has ended is a zombie as long as others live.
    stat.ended = read->state == 'X' || (read->state == 'Z' && read->field(20) <= 1);
    stat.start_time = read->field(22) * (1'000'000'000 / ticks);
    stat.size = read->field(23);
    stat.start_code = read->field(26);
    stat.start_stack = read->field(28);
    return stat;
}

std::vector<ListedProcess> list_proc() {
    std::vector<ListedProcess> list;
    for (const pid_t pid : list_pids()) {
        const auto tgid = static_cast<uint32_t>(pid);
        if (const auto stat = read_process_stat(tgid)) list.push_back(listed(tgid, *stat));
    }
    return list;
}

// --- the tree

PolledTree::PolledTree(std::function<bool(pid_t)> may_belong)
    : may_belong_(std::move(may_belong)) {}

uint32_t PolledTree::own_tgid() const {
    return static_cast<uint32_t>(getpid());
}

Result<std::vector<ListedProcess>> PolledTree::list_processes() {
    std::vector<ListedProcess> list = list_proc();
    if (list.empty())
        return make_error(ErrorKind::kUnsupported, "no process can be seen in /proc")
            .with_hint("mount it: mount -t proc proc /proc");
    return list;
}

Result<bool> PolledTree::add_member(uint32_t tgid, uint64_t roots) {
    const auto stat = read_process_stat(tgid);
    if (!stat || stat->ended) return false; // it has ended since it was listed
    Member& member = members_.try_emplace(tgid, Member{0, *stat}).first->second;
    const bool is_new = (roots & ~member.roots) != 0;
    member.roots |= roots;
    return is_new;
}

uint64_t PolledTree::member_roots(uint32_t tgid) const {
    const auto found = members_.find(tgid);
    return found != members_.end() ? found->second.roots : 0;
}

std::vector<TreeEvent> PolledTree::drain_events() {
    std::vector<TreeEvent> events;
    if (Clock::now() < due_ && !looks_always_) return events;
    const auto before = thread_cpu_time();
    look_at_members(events);
    if (follow_children_) look_for_children(events);
    due_ = Clock::now() + (thread_cpu_time() - before) * kMaxShare;
    return events;
}

// Whether they have ended, run another program, or have mapped something.
void PolledTree::look_at_members(std::vector<TreeEvent>& events) {
    for (auto entry = members_.begin(); entry != members_.end();) {
        const uint32_t pid = entry->first;
        Member& member = entry->second;
        const auto now = read_process_stat(pid);
        // A number that was used again stands for another process now.
        if (!now || now->ended || now->start_time != member.stat.start_time) {
            events.push_back(event_of(TreeEvent::Type::kExit, pid, member.stat, member.roots));
            entry = members_.erase(entry);
            continue;
        }
        // Its first thread has ended, and with that what is told of its memory.
        if (now->size == 0) {
            ++entry;
            continue;
        }
        if (is_another_program(member.stat, *now))
            events.push_back(event_of(TreeEvent::Type::kExec, pid, *now, member.roots));
        else if (now->size != member.stat.size)
            mapped_.push_back({static_cast<pid_t>(pid), 0, {}});
        member.stat = *now;
        ++entry;
    }
}

void PolledTree::look_for_children(std::vector<TreeEvent>& events) {
    std::string last = last_pid();
    // Once more after a fork: it takes its number some time before it is listed.
    const bool is_new = last != last_pid_;
    if (!is_new && !looks_again_ && !looks_always_) return;
    looks_again_ = is_new;
    last_pid_ = std::move(last);
    std::vector<ListedProcess> list = list_proc();
    const auto is_settled = [&](const ListedProcess& process) {
        return process.kernel_thread || process.ended || process.tgid == own_tgid() ||
               members_.contains(process.tgid);
    };
    std::erase_if(list, is_settled);
    // Again for the children of those that were found.
    for (size_t found = 1; found > 0;)
        found = std::erase_if(list, [&](const ListedProcess& process) {
            return members_.contains(process.parent_tgid) && adopt(process, events);
        });
}

// A child of a member, unless it may not belong.
bool PolledTree::adopt(const ListedProcess& process, std::vector<TreeEvent>& events) {
    const Member& parent = members_.at(process.parent_tgid);
    const auto stat = read_process_stat(process.tgid);
    if (!stat || stat->ended || stat->start_time != process.start_time || !may_belong_(process.pid))
        return false;
    events.push_back(event_of(TreeEvent::Type::kFork, process.tgid, *stat, parent.roots));
    events.back().parent_tgid = process.parent_tgid;
    if (is_another_program(parent.stat, *stat))
        events.push_back(event_of(TreeEvent::Type::kExec, process.tgid, *stat, parent.roots));
    members_[process.tgid] = {parent.roots, *stat};
    return true;
}

// --- mappings

class PolledTree::Mappings final : public MappingRecords {
  public:
    explicit Mappings(PolledTree& tree) : tree_(tree) {}
    int fd() const override { return -1; }
    bool moderated() const override { return true; }
    std::vector<NewMapping> drain(bool&) override { return std::exchange(tree_.mapped_, {}); }

  private:
    PolledTree& tree_;
};

std::unique_ptr<MappingRecords> PolledTree::mappings() {
    return std::make_unique<Mappings>(*this);
}

} // namespace speedbump::tree
