// SPDX-License-Identifier: MIT
#include "session/session.h"

#include <fmt/format.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <deque>
#include <map>
#include <set>

#include "engine/bpf/bpf_engine.h"
#include "engine/features.h"
#include "engine/kmod/kmod_engine.h"
#include "engine/mapping_watch.h"
#include "engine/python/python_side.h"
#include "process/ownership.h"
#include "process/resolver.h"
#include "session/engine_choice.h"
#include "session/late_files.h"
#include "session/members.h"
#include "session/outsiders.h"
#include "session/program_files.h"
#include "session/reaper.h"
#include "session/roots.h"
#include "session/tree_counts.h"
#include "session/tree_look.h"
#include "session/unfinished.h"
#include "targets/matcher.h"
#include "util/clock.h"
#include "util/event_loop.h"

namespace speedbump::session {

using engine::Links;
using engine::Probe;
using engine::TargetSettings;
using process::FileKey;
using std::chrono::milliseconds;

namespace {

// A child that dies within this time is never worth probes of its own.
constexpr auto kChildGrace = milliseconds(20);
// Children probed at once, before they have lived that long, in a burst and per second after it.
constexpr double kEagerBurst = 50;
constexpr double kEagerPerSecond = 100;
// Records of new mappings come in bursts: ld.so maps a library in several steps.
constexpr auto kMappingSettle = milliseconds(3);
// How long the loop works on the scan for outsiders before it looks at events again.
constexpr auto kScanSlice = std::chrono::microseconds(3000);
// A file that outsiders map is looked at again this often, in case they are gone.
constexpr auto kRescan = std::chrono::seconds(10);
// And one that is new, the first time, this long after the look before.
constexpr auto kFirstScan = std::chrono::seconds(1);
// The longest sleep: events that wake nobody are collected at least this often.
constexpr auto kTick = milliseconds(200);
// While mapping records wake nobody.
constexpr auto kModeratedTick = milliseconds(30);
// Between looks at the whole tree, however many events are lost: one takes some milliseconds.
constexpr auto kTreeLookPause = milliseconds(200);
// While something keeps them from being complete.
constexpr auto kFailedLookPause = std::chrono::seconds(1);
constexpr auto kLossWarningPause = std::chrono::seconds(10);
constexpr pid_t kEveryone = -1;

// One file with targets, and how it is probed. Narrow: each member has probes of its own, and
// nobody else pays for them, but a new child runs unprobed until the session has heard of it.
// Wide: one set of probes for whoever maps the file, children included from their first
// instruction; right as long as no process outside the tree maps it. The kernel module's probes are
// wide, and outsiders pay nothing for them.
struct TargetFile {
    // Of these the first so many are in place.
    struct Placed {
        Links links;
        size_t count = 0;
    };
    std::vector<Probe> probes; // only ever more
    bool wide = false;
    Placed for_all;
    std::map<uint32_t, Placed> narrow; // by tgid
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

} // namespace

struct Session::Impl {
    SessionOptions options;
    targets::TargetsFile file;
    std::function<void(const std::string&)> warn;
    engine::Features features;
    std::unique_ptr<engine::BpfEngine> bpf;   // follows the tree in any case
    std::unique_ptr<engine::KmodEngine> kmod; // when it delays
    std::unique_ptr<engine::MappingWatch> mappings;
    std::unique_ptr<process::Resolver> resolver;
    std::unique_ptr<engine::PythonSide> python; // only with Python lines
    std::map<size_t, uint32_t> target_of_line;  // Python targets: line -> index
    // (line, process) of interpreters that were unhooked
    std::map<std::pair<uint32_t, pid_t>, engine::Counts> python_folded;
    bool is_out = false; // take_out()
    bool armed = false;
    Roots roots;
    Fd epoll;

    std::vector<Target> targets;
    std::map<FileKey, TargetFile> files;
    std::vector<FileKey> file_of;                               // of each target
    std::map<std::pair<FileKey, uint64_t>, uint32_t> target_of; // (file, entry) -> index
    std::vector<SkippedTarget> skipped;
    engine::Floors floors;
    Members members;
    TreeCounts tree_counts;

    uint64_t armed_at_ns = 0; // monotonic_ns()
    OutsiderScan scan;
    Clock::time_point last_scan{};
    bool has_new_files = false; // since then
    struct Newborn {
        uint32_t tgid;
        Clock::time_point born;
    };
    std::deque<Newborn> newborn;
    double eager_tokens = kEagerBurst;
    Clock::time_point tokens_at = Clock::now();
    std::set<pid_t> mapped_lately;
    Clock::time_point mapped_since{};
    bool lost_mappings_told = false;
    Losses losses;
    std::set<std::pair<uint32_t, uint64_t>> left; // tgid and start time: no members, though alive
    Unfinished unfinished;
    std::set<FileKey> told_narrow; // files that could not be probed for all their processes
    LateFiles late;

    Reaper reaper; // last: its probes go before the engine they lead to

    void warn_of(Error error, const std::string& what) const {
        warn(std::move(error).with_context(what).message);
    }

    // --- beginning
    Result<void> build_tree();
    Result<void> find_targets();
    Result<void> find_python_targets();
    Result<void> watch_python();
    void hook_interpreters();

    // --- targets and probes
    void take(Member& member, process::Findings&& findings);
    uint32_t add_target(const process::NativeMatch& match);
    void describe(Target& target) const;
    bool is_below_floor(const Target& target) const;
    Result<void> configure(uint32_t index);
    void configure_or_warn(uint32_t index);
    void configure_all(const std::vector<Probe>& probes);
    bool may_be_narrow() const { return features.uprobe_multi_pid || !features.uprobe_multi; }
    Result<void> place(const FileKey& key, TargetFile::Placed& placed, pid_t only);
    Result<void> probe_member(Member& member, const FileKey& key);
    Result<void> probe_all_files(Member& member);
    void probe_together(const FileKey& key);
    Result<void> forward(const FileKey& key, TargetFile::Placed& placed);
    Result<std::vector<pid_t>> topmost(uint64_t mask);
    Result<void> widen(const FileKey& key);
    void put_off(const Member& member, const Error& error);
    void narrow(const FileKey& key);
    void refused(const std::vector<engine::RefusedProbe>& probes);
    std::string attach_path(const FileKey& key) const {
        return "/proc/self/fd/" + std::to_string(resolver->descriptor(key));
    }

    // --- events
    void look_at(Member& member);
    void try_unfinished();
    void handle(const engine::TreeEvent& event);
    void handle_events();
    void make_up_for_losses();
    void take_in(const TreeLook& look);
    void handle_mappings();
    void probe_newborns();
    void advance_scan();
    void update_wake();
    void tell_of_late_files();
    void drop_probes(uint32_t tgid);
    void release_links();
    std::vector<engine::Counts> latest_counts();
    Clock::duration longest_sleep() const;
};

// Takes out all probes.
void Session::Impl::release_links() {
    std::vector<Links> all;
    for (auto& [key, target_file] : files) {
        all.push_back(std::exchange(target_file.for_all, {}).links);
        for (auto& [tgid, placed] : target_file.narrow) all.push_back(std::move(placed.links));
        target_file.narrow.clear();
    }
    Links::release_all(std::move(all));
}

Session::Session(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}

Session::~Session() {
    impl_->python.reset();
    impl_->kmod.reset();
    impl_->bpf->arm(false); // ends the delays in flight, for which taking probes out would wait
    impl_->release_links();
}

const targets::TargetsFile& Session::file() const {
    return impl_->file;
}

// --- beginning

Result<std::unique_ptr<Session>> Session::attach(const SessionOptions& options,
                                                 const targets::TargetsFile& file,
                                                 std::function<void(const std::string&)> warn) {
    auto impl = std::make_unique<Impl>();
    impl->options = options;
    impl->file = file;
    impl->warn = std::move(warn);
    impl->features = engine::probe_features();
    if (auto rights = engine::require_attach_rights(impl->features); !rights)
        return std::move(rights).error();
    auto kmod = open_chosen_module(options, file, impl->features, impl->warn);
    if (!kmod) return std::move(kmod).error();
    impl->kmod = std::move(*kmod);

    rlimit open_files{};
    if (getrlimit(RLIMIT_NOFILE, &open_files) == 0) { // a probe set is a descriptor
        open_files.rlim_cur = open_files.rlim_max;
        setrlimit(RLIMIT_NOFILE, &open_files);
    }

    auto bpf = engine::BpfEngine::load(impl->features);
    if (!bpf) return std::move(bpf).error();
    impl->bpf = std::move(*bpf);
    if (impl->kmod) impl->kmod->follow(*impl->bpf);
    if (impl->features.mmap_events) {
        auto mappings = engine::MappingWatch::open();
        if (!mappings) return std::move(mappings).error();
        impl->mappings = std::move(*mappings);
    } else {
        impl->warn(
            "this host tells nothing of new mappings: libraries that are loaded later stay "
            "unslowed, and so does each new process for its first milliseconds (speedbump "
            "doctor)");
    }
    auto floors = impl->kmod ? impl->kmod->calibrate() : impl->bpf->calibrate();
    if (!floors) return std::move(floors).error();
    impl->floors = *floors;
    if (impl->kmod && !impl->kmod->capabilities().nop5) impl->features.nop5_is_safe = false;

    auto epoll = make_epoll();
    if (!epoll) return std::move(epoll).error();
    impl->epoll = std::move(*epoll);
    for (const int fd : {impl->bpf->event_fd(), impl->mappings ? impl->mappings->fd() : -1}) {
        if (fd < 0) continue;
        if (auto added = watch_descriptor(impl->epoll, fd, static_cast<uint64_t>(fd)); !added)
            return std::move(added).error();
    }

    if (auto built = impl->build_tree(); !built) return std::move(built).error();
    if (auto found = impl->find_targets(); !found) return std::move(found).error();
    if (auto found = impl->find_python_targets(); !found) return std::move(found).error();
    return std::unique_ptr<Session>(new Session(std::move(impl)));
}

Result<void> Session::Impl::build_tree() {
    bpf->follow_children(options.follow_children);
    if (options.cgroup) {
        auto id = cgroup_id(*options.cgroup);
        if (!id) return std::move(id).error();
        bpf->set_cgroup(*id, kSessionRoot);
    }
    TreeQuestion question;
    bool are_found = false; // one that has ended since is no error
    question.roots = [&](const auto& listed) -> Result<std::map<uint32_t, uint64_t>> {
        if (!std::exchange(are_found, true)) {
            auto found = find_roots(options, file, listed, bpf->own_tgid());
            if (!found) return std::move(found).error();
            roots = std::move(*found);
        }
        auto bits = roots.bits;
        for (const process::ListedProcess& process : listed)
            if (process.in_cgroup && process.tgid != bpf->own_tgid())
                bits[process.tgid] |= kSessionRoot;
        return bits;
    };
    // Below it, but not the caller's to slow.
    question.may_belong = [](const auto& process) { return process::is_ours(process.pid); };
    question.follow_children = options.follow_children;
    const TreeLook look = look_at_tree(*bpf, question);
    if (look.failure) return *look.failure;
    if (look.lost_events > 0)
        warn(
            fmt::format("{} events of the process tree were lost in the last of several looks at "
                        "it: processes that have just been forked may be missing",
                        look.lost_events));
    for (const auto& [process, bits] : *look.members)
        members.add({process.tgid, process.pid, process.command, bits, true, {}});
    for (const engine::TreeEvent& event : look.events) handle(event);
    if (members.all().empty())
        return make_error(ErrorKind::kNotFound, options.cgroup && options.pids.empty()
                                                    ? "no process is in cgroup " + *options.cgroup
                                                    : "the process ended before it was attached");
    return {};
}

Result<void> Session::Impl::find_targets() {
    const elf::PlacementOptions placement{engine::site_options(features), options.entry_only};
    resolver = std::make_unique<process::Resolver>(file, placement);

    for (auto& [tgid, member] : members.all()) {
        if (!member.alive) continue;
        auto findings = resolver->look_at_process(member.pid);
        if (!findings) {
            if (findings.error().kind == ErrorKind::kNotFound) continue; // its exit is on the way
            if (findings.error().kind == ErrorKind::kPermission)
                return std::move(findings)
                    .error()
                    .with_context(
                        fmt::format("look at process {} ({})", member.pid, member.command))
                    .with_hint(
                        "CAP_SYS_PTRACE is needed to look into the processes of others: "
                        "run as root (sudo)");
            return std::move(findings).error();
        }
        take(member, std::move(*findings));
    }
    if (!options.run_command.empty()) {
        auto program = program_files(options.run_command);
        if (!program) return std::move(program).error();
        Member& child = members.all().begin()->second;
        const auto look = [&](const std::string& path, bool executable) {
            if (auto findings = resolver->look_at_file(path, "", executable))
                take(child, std::move(*findings));
        };
        look(program->executable, true);
        for (const std::string& library : program->libraries) look(library, false);
    }
    // Paths that nothing maps yet are probed now, so that their first call is slowed already.
    std::set<std::string> roots_seen;
    for (auto& [tgid, member] : members.all()) {
        std::string root = fmt::format("/proc/{}/root", member.pid);
        char target[4096];
        const ssize_t length = readlink(root.c_str(), target, sizeof(target));
        if (length < 0 ||
            !roots_seen.insert(std::string(target, static_cast<size_t>(length))).second)
            continue;
        process::Findings findings = resolver->look_at_named_files(root);
        const std::set<FileKey> named = findings.files;
        take(member, std::move(findings));
        for (auto& [other_tgid, other] : members.all())
            other.files.insert(named.begin(), named.end());
    }
    for (const auto& [key, target_file] : files) probe_together(key);
    for (auto& [tgid, member] : members.all())
        if (auto probed = probe_all_files(member); !probed)
            return std::move(probed).error().with_context(
                fmt::format("process {} ({})", member.pid, member.command));
    // A program that has not started yet can wait until its children are covered as well.
    if (!options.run_command.empty()) {
        do advance_scan();
        while (!scan.files().empty());
    }
    update_wake();
    return {};
}

// A Python target is a line; what functions it names, each interpreter finds out.
Result<void> Session::Impl::find_python_targets() {
    auto side = engine::PythonSide::create(file, warn);
    if (!side) return std::move(side).error();
    python = std::move(*side);
    if (!python) return {};
    for (size_t line = 0; line < file.lines.size(); ++line) {
        const targets::TargetLine& target_line = file.lines[line];
        if (target_line.world != targets::World::kPython || target_line.exclude) continue;
        Target target;
        target.world = targets::World::kPython;
        target.line_index = line;
        target.container = target_line.container.text;
        target.name = target_line.name.text;
        describe(target);
        python->configure(line, target.settings, 0);
        target_of_line[line] = static_cast<uint32_t>(targets.size());
        targets.push_back(std::move(target));
        file_of.push_back({});
    }
    if (auto watched = watch_python(); !watched) return watched;
    // The interpreter of a program that waits to start is still to come.
    if (options.run_command.empty()) hook_interpreters();
    return {};
}

Result<void> Session::Impl::watch_python() {
    return watch_descriptor(epoll, python->fd(), static_cast<uint64_t>(python->fd()));
}

void Session::Impl::hook_interpreters() {
    std::vector<std::pair<pid_t, uint64_t>> processes;
    for (const auto& [tgid, member] : members.all())
        if (member.alive) processes.emplace_back(member.pid, member.roots);
    python->attach(processes, true);
    handle_events(); // those that were forked before the hook of their parent was in
}

// --- targets and probes

void Session::Impl::describe(Target& target) const {
    const targets::Options& own = file.lines[target.line_index].options;
    const targets::Options& general = options.defaults;
    const auto choose = [](const auto& first, const auto& second, auto otherwise) {
        return first ? *first : second ? *second : otherwise;
    };
    target.settings.delay = choose(own.delay, general.delay, targets::kDefaultDelay);
    target.settings.every = choose(own.every, general.every, uint64_t{1});
    target.settings.start = choose(own.start, general.start, nanoseconds(0));
    target.settings.duration = choose(own.duration, general.duration, nanoseconds(0));
    target.settings.root_mask = kSessionRoot;
    if (own.pid) target.settings.root_mask = roots.mask_of_pid.at(*own.pid);
    target.below_floor = is_below_floor(target);
}

bool Session::Impl::is_below_floor(const Target& target) const {
    return target.world == targets::World::kNative && target.settings.delay.count() > 0 &&
           target.settings.delay < floors.by_kind[static_cast<size_t>(target.site.kind)];
}

Result<void> Session::Impl::configure(uint32_t index) {
    if (targets[index].world == targets::World::kPython) {
        if (!python) return {}; // taken out
        python->configure(targets[index].line_index, targets[index].settings,
                          engine::on_host_clock(armed_at_ns));
        return {};
    }
    if (kmod) return kmod->configure(index, targets[index].settings, armed_at_ns, true);
    return bpf->configure(index, targets[index].settings, armed_at_ns, files[file_of[index]].wide);
}

// A target that keeps its old settings is told of.
void Session::Impl::configure_or_warn(uint32_t index) {
    if (auto done = configure(index); !done)
        warn_of(done.error(), "configure " + targets[index].name);
}

void Session::Impl::configure_all(const std::vector<Probe>& probes) {
    for (const Probe& probe : probes) configure_or_warn(probe.target);
}

uint32_t Session::Impl::add_target(const process::NativeMatch& match) {
    const auto index = static_cast<uint32_t>(targets.size());
    Target target;
    target.world = targets::World::kNative;
    target.line_index = match.line_index;
    target.container = match.path;
    target.name = match.name;
    target.entry_offset = match.entry_offset;
    target.site = match.site;
    describe(target);
    targets.push_back(std::move(target));
    file_of.push_back(match.file);
    target_of[{match.file, match.entry_offset}] = index;
    return index;
}

void Session::Impl::take(Member& member, process::Findings&& findings) {
    member.files.insert(findings.files.begin(), findings.files.end());
    std::map<FileKey, std::vector<Probe>> fresh;
    for (const process::NativeMatch& match : findings.matches) {
        if (target_of.contains({match.file, match.entry_offset})) continue;
        const uint32_t index = add_target(match);
        if (auto done = configure(index); !done) {
            warn(done.error().message);
            continue;
        }
        fresh[match.file].push_back({index, match.site.file_offset, match.site.kind});
    }
    for (process::Skipped& skip : findings.skipped)
        skipped.push_back(
            {std::move(skip.path), std::move(skip.name),
             skip.line_index == SIZE_MAX ? std::nullopt : std::optional(skip.line_index),
             std::move(skip.reason)});
    // A file that is probed already gets the new ones added wherever it is.
    for (auto& [key, probes] : fresh) {
        TargetFile& target_file = files[key];
        has_new_files |= target_file.probes.empty();
        target_file.probes.insert(target_file.probes.end(), probes.begin(), probes.end());
        std::set<uint32_t> present;
        if (target_file.wide) present.insert(member.tgid); // for all at once
        for (const auto& [tgid, placed] : target_file.narrow) present.insert(tgid);
        for (const uint32_t tgid : present) {
            Member* other = members.find(tgid);
            if (!other || !other->alive) continue;
            if (auto probed = probe_member(*other, key); !probed) put_off(*other, probed.error());
        }
    }
}

// It is told of once, and tried again.
void Session::Impl::put_off(const Member& member, const Error& error) {
    if (unfinished.add(member.tgid, error.kind))
        warn(fmt::format("process {} ({}): {}: it is not slowed everywhere; trying again",
                         member.pid, member.command, error.message));
}

void Session::Impl::refused(const std::vector<engine::RefusedProbe>& probes) {
    for (const engine::RefusedProbe& failed : probes) {
        const Target& target = targets[failed.probe.target];
        const bool told = std::any_of(skipped.begin(), skipped.end(), [&](const auto& skip) {
            return skip.container == target.container && skip.name == target.name;
        });
        if (told) continue;
        skipped.push_back(
            {target.container, target.name, target.line_index,
             fmt::format("the kernel refuses a probe at 0x{:x} ({}): {}", failed.probe.file_offset,
                         target.site.instruction, error_text(failed.error_number))});
    }
}

// Puts the probes of a file in place that are not there yet; kEveryone: for all its processes.
Result<void> Session::Impl::place(const FileKey& key, TargetFile::Placed& placed, pid_t only) {
    const std::vector<Probe>& all = files[key].probes;
    if (placed.count == all.size()) return {};
    if (kmod) return forward(key, placed);
    const std::vector<Probe> missing(all.begin() + static_cast<std::ptrdiff_t>(placed.count),
                                     all.end());
    std::vector<engine::RefusedProbe> failed;
    auto links = only == kEveryone ? bpf->attach_wide(attach_path(key), missing, failed)
                                   : bpf->attach_narrow(attach_path(key), missing, only, failed);
    if (!links) return std::move(links).error();
    refused(failed);
    placed.links.append(std::move(*links));
    placed.count = all.size();
    return {};
}

Result<void> Session::Impl::probe_member(Member& member, const FileKey& key) {
    TargetFile& target_file = files[key];
    if (is_out || target_file.probes.empty()) return {};
    if (kmod) target_file.wide = true;
    // A kernel that filters by thread: all or nothing.
    if (!target_file.wide && !may_be_narrow()) return widen(key);
    if (target_file.wide) return place(key, target_file.for_all, kEveryone);
    TargetFile::Placed& placed = target_file.narrow[member.tgid];
    auto done = place(key, placed, member.pid);
    if (done) return done;
    if (placed.count == 0) target_file.narrow.erase(member.tgid);
    if (done.error().kind == ErrorKind::kNotFound) return {}; // it has ended
    return done;
}

// Puts a file's probes in place in all members that have none of them; where that is refused it is
// left to probe_member().
void Session::Impl::probe_together(const FileKey& key) {
    TargetFile& target_file = files[key];
    if (is_out || kmod || target_file.wide || target_file.probes.empty()) return;
    std::vector<uint32_t> tgids;
    std::vector<pid_t> pids;
    for (const auto& [tgid, member] : members.all()) {
        if (!member.alive || !member.files.contains(key) || target_file.narrow.contains(tgid))
            continue;
        tgids.push_back(tgid);
        pids.push_back(member.pid);
    }
    if (pids.size() < 2) return;
    auto links = bpf->attach_narrow(attach_path(key), target_file.probes, pids);
    for (size_t i = 0; i < tgids.size(); ++i)
        if (!links[i].empty())
            target_file.narrow[tgids[i]] = {std::move(links[i]), target_file.probes.size()};
}

Result<void> Session::Impl::probe_all_files(Member& member) {
    for (const FileKey& key : member.files)
        if (auto probed = probe_member(member, key); !probed) return probed;
    return {};
}

// The living members that share a bit with the mask and whose parents don't: all others descend
// from them, for as long as these live.
Result<std::vector<pid_t>> Session::Impl::topmost(uint64_t mask) {
    auto listed = bpf->list_processes();
    if (!listed) return std::move(listed).error().with_context("list the processes");
    const auto belongs = [&](uint32_t tgid) { return (bpf->member_roots(tgid) & mask) != 0; };
    std::vector<pid_t> pids;
    for (const process::ListedProcess& process : *listed)
        if (!process.ended && process.pid > 0 && belongs(process.tgid) &&
            !belongs(process.parent_tgid))
            pids.push_back(process.pid);
    return pids;
}

// Hands probes to the kernel module.
Result<void> Session::Impl::forward(const FileKey& key, TargetFile::Placed& placed) {
    const std::vector<Probe>& all = files[key].probes;
    std::map<uint64_t, std::vector<pid_t>> pids; // by mask
    std::vector<engine::RefusedProbe> failed;
    Result<void> done;
    for (; placed.count < all.size(); ++placed.count) {
        const Probe& probe = all[placed.count];
        const uint64_t mask = targets[probe.target].settings.root_mask;
        if (!pids.contains(mask)) {
            auto top = topmost(mask);
            if (!top) {
                done = std::move(top).error();
                break;
            }
            pids[mask] = std::move(*top);
        }
        const auto attached = kmod->add(resolver->descriptor(key), probe, pids[mask]);
        if (attached) continue;
        const int error = attached.error().error_number;
        if (error == ENOSPC) {
            done = Error(attached.error())
                       .with_context("attach " + std::to_string(all.size()) + " probes")
                       .with_hint("load it with max_targets=65536, or use --engine=bpf");
            break;
        }
        failed.push_back({probe, error});
    }
    refused(failed);
    return done;
}

Result<void> Session::Impl::widen(const FileKey& key) {
    TargetFile& target_file = files[key];
    if (target_file.wide) return {};
    if (auto placed = place(key, target_file.for_all, kEveryone); !placed) return placed;
    target_file.wide = true;
    late.erase(key);
    // Both sets of probes are in place; each target changes from one to the other at once.
    configure_all(target_file.probes);
    for (auto& [tgid, placed] : target_file.narrow) reaper.release(std::move(placed.links));
    target_file.narrow.clear();
    return {};
}

void Session::Impl::narrow(const FileKey& key) {
    TargetFile& target_file = files[key];
    if (!target_file.wide || !may_be_narrow() || kmod) return;
    target_file.wide = false;
    late.add(key, targets[target_file.probes[0].target].container);
    probe_together(key);
    for (auto& [tgid, member] : members.all())
        if (member.alive && member.files.contains(key))
            if (auto probed = probe_member(member, key); !probed) put_off(member, probed.error());
    configure_all(target_file.probes);
    reaper.release(std::exchange(target_file.for_all, {}).links);
}

void Session::Impl::drop_probes(uint32_t tgid) {
    for (auto& [key, target_file] : files) {
        const auto own = target_file.narrow.find(tgid);
        if (own == target_file.narrow.end()) continue;
        reaper.release(std::move(own->second.links));
        target_file.narrow.erase(own);
    }
}

// --- events

void Session::Impl::look_at(Member& member) {
    if (!resolver) return; // the tree is still being built: all are looked at afterwards
    auto findings = resolver->look_at_process(member.pid);
    if (!findings) {
        // Gone, or going: its exit tells.
        if (findings.error().kind != ErrorKind::kNotFound) put_off(member, findings.error());
        return;
    }
    take(member, std::move(*findings));
    if (auto probed = probe_all_files(member); !probed)
        put_off(member, probed.error());
    else
        unfinished.done(member.tgid);
    // An interpreter shows once its library is mapped, some time after the exec.
    if (python) python->attach({{member.pid, member.roots}}, false);
}

void Session::Impl::try_unfinished() {
    for (const uint32_t tgid : unfinished.due()) {
        Member* member = members.find(tgid);
        if (member && member->alive)
            look_at(*member);
        else
            unfinished.forget(tgid);
    }
}

// Of all engines; of BPF what was read last, should it not be to be had.
std::vector<engine::Counts> Session::Impl::latest_counts() {
    tree_counts.refresh(*bpf, members, warn);
    std::vector<engine::Counts> result = tree_counts.latest();
    if (kmod)
        if (const auto counts = kmod->read_counts())
            result.insert(result.end(), counts->begin(), counts->end());
    auto python_sums = python_folded;
    if (python)
        for (const engine::Counts& counts : python->read_counts())
            python_sums[{counts.target, counts.process}] += counts;
    for (auto& [key, counts] : python_sums) {
        const auto target = target_of_line.find(key.first);
        if (target == target_of_line.end()) continue;
        counts.target = target->second;
        counts.process = key.second;
        result.push_back(counts);
    }
    return result;
}

void Session::Impl::handle(const engine::TreeEvent& event) {
    using Type = engine::TreeEvent::Type;
    switch (event.type) {
        case Type::kFork:
        case Type::kJoin: {
            const Member* parent = members.find(event.parent_tgid);
            const pid_t parent_pid = parent ? parent->pid : 0;
            Member& member = members.add({event.tgid, event.pid, event.command, event.roots, true,
                                          parent ? parent->files : std::set<FileKey>()});
            if (event.type == Type::kJoin) {
                left.erase({event.tgid, event.start_time});
                look_at(member);
            } else {
                newborn.push_back({event.tgid, Clock::now()});
                if (resolver) late.born(); // before that the tree is only being built
                if (python) python->forked(parent_pid, event.pid, event.roots);
            }
            break;
        }
        case Type::kExec: {
            Member* member = members.find(event.tgid);
            if (!member) break;
            member->command = event.command;
            member->files.clear();
            // Probes aimed at a process go on in its new memory, from its first instruction; but
            // the kernel aims at the leader's task, and when another thread calls exec that one
            // is gone.
            if (event.parent_tgid != 0) drop_probes(event.tgid);
            if (python) python->execed(event.pid);
            if (!process::is_ours(event.pid)) { // a program that runs with other rights
                bpf->remove_member(event.tgid);
                drop_probes(event.tgid);
                break;
            }
            look_at(*member);
            break;
        }
        case Type::kExit:
        case Type::kLeave: {
            Member* member = members.find(event.tgid);
            if (!member) break;
            const std::set<FileKey> mapped = member->files;
            members.ended(*member);
            drop_probes(event.tgid);
            unfinished.forget(event.tgid);
            if (event.type == Type::kLeave) left.insert({event.tgid, event.start_time});
            if (python && event.type == Type::kExit) python->exited(event.pid);
            if (event.type == Type::kLeave)
                for (const FileKey& key : mapped) narrow(key);
            break;
        }
        case Type::kEdge:
            break; // recorded while the tree was built only
    }
}

void Session::Impl::handle_events() {
    // What was hooked before this look at the events is told of all forks from before its hook.
    const bool fresh = python && python->has_fresh();
    for (const engine::TreeEvent& event : bpf->drain_events()) handle(event);
    if (fresh) python->all_forks_told();
}

// Where the kernel could not tell of a member, or had no room for one, the tree is looked at again:
// who is a member and not known here is, and whoever should be one becomes one.
void Session::Impl::make_up_for_losses() {
    const uint64_t events = bpf->lost_events();
    const uint64_t missed = bpf->lost_members();
    if (events == losses.events && missed == losses.members && !losses.has_failed) return;
    const auto now = Clock::now();
    if (now < losses.next_look) return;
    losses.events = events;
    losses.members = missed;
    if (now >= losses.next_warning && !losses.has_failed) {
        warn(
            fmt::format("{} events of the process tree and {} processes in it were lost: looking "
                        "at all of it again",
                        events - std::exchange(losses.events_told, events),
                        missed - std::exchange(losses.members_told, missed)));
        losses.next_warning = now + kLossWarningPause;
    }
    TreeQuestion question;
    question.roots = [this](const auto& listed) -> Result<std::map<uint32_t, uint64_t>> {
        std::map<uint32_t, uint64_t> bits;
        for (const process::ListedProcess& process : listed) {
            uint64_t own = process.ended ? 0 : bpf->member_roots(process.tgid);
            const Member* member = members.find(process.tgid);
            if (own == 0 && !process.ended && member && member->alive)
                left.insert({process.tgid, process.start_time}); // of which nobody told
            if (process.in_cgroup && process.tgid != bpf->own_tgid()) own |= kSessionRoot;
            if (own != 0) bits[process.tgid] = own;
        }
        return bits;
    };
    question.may_belong = [this](const auto& process) {
        return process::is_ours(process.pid) &&
               (process.in_cgroup || !left.contains({process.tgid, process.start_time}));
    };
    question.follow_children = options.follow_children;
    const TreeLook look = look_at_tree(*bpf, question);
    take_in(look);
    if (look.failure && !losses.has_failed) warn_of(*look.failure, "look at the process tree");
    losses.has_failed = look.failure.has_value();
    losses.next_look = Clock::now() + (look.failure ? Clock::duration(kFailedLookPause)
                                                    : Clock::duration(kTreeLookPause));
}

// Of a look at the tree: who is new, and who has gone.
void Session::Impl::take_in(const TreeLook& look) {
    for (const engine::TreeEvent& event : look.events) handle(event);
    if (!look.members) return;
    std::set<uint32_t> living;
    for (const auto& [process, bits] : *look.members) {
        living.insert(process.tgid);
        Member* member = members.find(process.tgid);
        if (!member || !member->alive)
            member = &members.add({process.tgid, process.pid, process.command, bits, true, {}});
        look_at(*member);
        newborn.push_back({process.tgid, Clock::now()});
    }
    std::vector<engine::TreeEvent> exits;
    for (const auto& [tgid, member] : members.all()) {
        if (!member.alive || living.contains(tgid)) continue;
        engine::TreeEvent event{};
        event.type = engine::TreeEvent::Type::kExit;
        event.tgid = tgid;
        event.pid = member.pid;
        exits.push_back(event);
    }
    for (const engine::TreeEvent& event : exits) handle(event);
}

void Session::Impl::handle_mappings() {
    bool lost = false;
    for (const engine::NewMapping& mapping : mappings->drain(lost)) {
        if (mapped_lately.empty()) mapped_since = Clock::now();
        mapped_lately.insert(mapping.pid);
    }
    if (lost && !std::exchange(lost_mappings_told, true))
        warn(
            "records of new mappings were lost (too many at once, or a CPU went offline or came "
            "online): looking at all processes again, so libraries may be slowed some seconds "
            "after they were loaded");
    if (lost)
        for (auto& [tgid, member] : members.all())
            if (member.alive) mapped_lately.insert(member.pid);
    if (mapped_lately.empty() || Clock::now() - mapped_since < kMappingSettle) return;

    std::set<FileKey> watched = scan.files(); // a scan may have passed the outsider already
    for (const auto& [key, target_file] : files)
        if (target_file.wide) watched.insert(key);
    for (const pid_t pid : std::exchange(mapped_lately, {})) {
        if (Member* member = members.find_pid(pid)) {
            look_at(*member);
        } else if (pid != getpid()) {
            const std::set<FileKey> shared = mapped_of(pid, watched);
            scan.note_shared(shared);
            for (const FileKey& key : shared) narrow(key);
        }
    }
    update_wake();
}

// Children that are born one by one are probed at once; in a storm of forks only those that live
// on, so that following the tree does not slow it down.
void Session::Impl::probe_newborns() {
    const auto now = Clock::now();
    eager_tokens = std::min(
        kEagerBurst,
        eager_tokens + kEagerPerSecond * std::chrono::duration<double>(now - tokens_at).count());
    tokens_at = now;
    while (!newborn.empty()) {
        const Newborn next = newborn.front();
        Member* member = members.find(next.tgid);
        if (member && member->alive) {
            const bool grown = now - next.born >= kChildGrace;
            if (!grown && eager_tokens < 1) break;
            if (!grown) eager_tokens -= 1;
            if (auto probed = probe_all_files(*member); !probed) put_off(*member, probed.error());
        }
        newborn.pop_front();
    }
    update_wake();
}

// Once the tree is probed narrowly, files that no outsider maps are changed to wide probes.
void Session::Impl::advance_scan() {
    if (!options.follow_children || !mappings || is_out) return;
    if (!scan.running() && !scan.files().empty()) {
        for (const FileKey& key : scan.files()) {
            const std::string& name = targets[files[key].probes[0].target].container;
            if (scan.shared().contains(key))
                late.add(key, name);
            else if (auto done = widen(key); !done && told_narrow.insert(key).second)
                warn_of(done.error(), fmt::format("probe {} for all its processes at once", name));
        }
        scan = {};
        last_scan = Clock::now();
        update_wake();
        return;
    }
    if (scan.running()) {
        scan.advance(kScanSlice);
        return;
    }
    const auto pause = has_new_files ? Clock::duration(kFirstScan) : Clock::duration(kRescan);
    if (last_scan != Clock::time_point{} && Clock::now() - last_scan < pause) return;
    std::set<FileKey> candidates;
    for (const auto& [key, target_file] : files)
        if (!target_file.wide && !target_file.probes.empty()) candidates.insert(key);
    last_scan = Clock::now();
    has_new_files = false;
    if (candidates.empty()) return;
    auto listed = bpf->list_processes();
    if (!listed) return;
    std::vector<pid_t> outsiders;
    for (const process::ListedProcess& process : *listed)
        if (!process.kernel_thread && process.pid != getpid() &&
            bpf->member_roots(process.tgid) == 0)
            outsiders.push_back(process.pid);
    scan = OutsiderScan(std::move(outsiders), std::move(candidates));
}

void Session::Impl::tell_of_late_files() {
    for (const std::string& name : late.take_untold())
        warn(fmt::format(
            "{} is mapped by processes outside the tree as well, so that the tree's are probed one "
            "by one: each new one runs unslowed for some milliseconds, and one that lives no "
            "longer is missed (docs/targets-file.md, new processes)",
            name));
}

void Session::Impl::update_wake() {
    const bool narrow_files = std::any_of(files.begin(), files.end(), [](const auto& entry) {
        return !entry.second.wide && !entry.second.probes.empty();
    });
    bpf->wake_on_fork(narrow_files && eager_tokens >= 1);
}

Clock::duration Session::Impl::longest_sleep() const {
    if (scan.running() || !scan.files().empty()) return milliseconds(0);
    if (!mapped_lately.empty()) return kMappingSettle;
    Clock::duration sleep = newborn.empty() ? Clock::duration(kTick) : kChildGrace;
    if (kmod) sleep = std::min(sleep, kmod->until_next());
    if (mappings && mappings->moderated()) sleep = std::min<Clock::duration>(sleep, kModeratedTick);
    if (const auto next = unfinished.until_next()) sleep = std::min(sleep, *next);
    return python ? std::min(sleep, python->longest_sleep()) : sleep;
}

Result<std::string> Session::python_path_entry() {
    if (!impl_->python) return std::string();
    return impl_->python->path_entry(impl_->options.follow_children ? 0 : impl_->options.pids[0]);
}

Result<void> Session::run_for(milliseconds timeout, int wake_fd) {
    const auto deadline = Clock::now() + timeout;
    if (wake_fd >= 0) {
        auto added = watch_descriptor(impl_->epoll, wake_fd, static_cast<uint64_t>(wake_fd));
        if (!added && added.error().error_number != EEXIST) return std::move(added).error();
    }
    for (;;) {
        const auto left = std::max<Clock::duration>(deadline - Clock::now(), Clock::duration(0));
        const auto sleep = std::min(left, impl_->longest_sleep());
        epoll_event ready[8];
        const int count =
            epoll_wait(impl_->epoll.get(), ready, 8,
                       static_cast<int>(std::chrono::ceil<milliseconds>(sleep).count()));
        if (count < 0 && errno != EINTR) return errno_error("epoll_wait", errno);
        impl_->handle_events();
        if (impl_->mappings) impl_->handle_mappings();
        if (impl_->python) impl_->python->tend();
        if (impl_->kmod) impl_->kmod->tend();
        impl_->probe_newborns();
        impl_->advance_scan();
        if (impl_->members.crowded())
            impl_->tree_counts.refresh(*impl_->bpf, impl_->members, impl_->warn);
        impl_->make_up_for_losses();
        impl_->try_unfinished();
        impl_->tell_of_late_files();
        if (impl_->bpf->member_count() == 0 && !impl_->options.cgroup)
            return make_error(ErrorKind::kNotFound, "no process of the tree is left");
        for (int i = 0; i < count; ++i)
            if (ready[i].data.fd == wake_fd) return {};
        if (Clock::now() >= deadline) return {};
    }
}

// --- control

void Session::arm() {
    if (impl_->armed_at_ns == 0) {
        impl_->armed_at_ns = monotonic_ns();
        for (uint32_t index = 0; index < impl_->targets.size(); ++index) {
            const TargetSettings& settings = impl_->targets[index].settings;
            if (settings.start.count() > 0 || settings.duration.count() > 0)
                impl_->configure_or_warn(index);
        }
    }
    impl_->armed = true;
    impl_->bpf->arm(true);
    if (impl_->kmod) impl_->kmod->arm(true);
    if (impl_->python) impl_->python->arm(true);
}

void Session::pause() {
    impl_->armed = false;
    impl_->bpf->arm(false);
    if (impl_->kmod) impl_->kmod->arm(false);
    if (impl_->python) impl_->python->arm(false);
}
void Session::resume() {
    arm();
}

Result<size_t> Session::set(const std::string& pattern, const targets::Options& change) {
    if (impl_->kmod && change.every.value_or(1) > 1)
        return make_error(ErrorKind::kUsage, "the kernel module delays each call: no every=")
            .with_hint("start the session with --engine=bpf");
    const targets::Pattern glob{pattern.empty() ? "*" : pattern, true};
    size_t changed = 0;
    for (uint32_t index = 0; index < impl_->targets.size(); ++index) {
        const Target& target = impl_->targets[index];
        const std::string& line = impl_->file.lines[target.line_index].original;
        const std::string name = target.container + ":" + target.name;
        if (!targets::matches(glob, target.name) && !targets::matches(glob, name) &&
            line != pattern)
            continue;
        if (set(index, change)) ++changed;
    }
    if (impl_->kmod) impl_->kmod->tend();
    return changed;
}

bool Session::set(uint32_t index, const targets::Options& change) {
    Target& target = impl_->targets[index];
    TargetSettings& settings = target.settings;
    if (change.delay) settings.delay = *change.delay;
    if (change.every) settings.every = *change.every;
    if (change.start) settings.start = *change.start;
    if (change.duration) settings.duration = *change.duration;
    target.below_floor = impl_->is_below_floor(target);
    return impl_->configure(index).has_value();
}

void Session::take_out(bool keep_interpreters, const std::set<size_t>& enabled_lines) {
    Impl& self = *impl_;
    self.is_out = true;
    self.release_links();
    if (!self.python) return;
    if (keep_interpreters) {
        for (const auto& [line, index] : self.target_of_line) {
            self.targets[index].settings.enabled = enabled_lines.contains(line);
            self.configure_or_warn(index);
        }
        return;
    }
    for (const engine::Counts& counts : self.python->read_counts())
        self.python_folded[{counts.target, counts.process}] += counts;
    self.python.reset();
}

Result<void> Session::put_back() {
    Impl& self = *impl_;
    self.is_out = false;
    for (auto& [key, target_file] : self.files) {
        if (!target_file.wide || target_file.probes.empty()) continue;
        if (auto placed = self.place(key, target_file.for_all, kEveryone); !placed) return placed;
    }
    for (const auto& [key, target_file] : self.files) self.probe_together(key);
    for (auto& [tgid, member] : self.members.all())
        if (member.alive)
            if (auto probed = self.probe_all_files(member); !probed)
                return std::move(probed).error().with_context(
                    fmt::format("process {} ({})", member.pid, member.command));
    if (self.target_of_line.empty()) return {};
    for (const auto& [line, index] : self.target_of_line)
        self.targets[index].settings.enabled = true;
    const bool unhooked = !self.python;
    if (unhooked) {
        auto side = engine::PythonSide::create(self.file, self.warn);
        if (!side) return std::move(side).error();
        self.python = std::move(*side);
        if (auto watched = self.watch_python(); !watched) return watched;
    }
    for (const auto& [line, index] : self.target_of_line)
        if (auto done = self.configure(index); !done) return done;
    if (!unhooked) return {};
    self.python->arm(self.armed);
    self.hook_interpreters();
    return {};
}

nanoseconds Session::floor(uint32_t target) const {
    const Target& described = impl_->targets.at(target);
    if (described.world == targets::World::kNative)
        return impl_->floors.by_kind[static_cast<size_t>(described.site.kind)];
    if (!impl_->python || impl_->python->attached().empty()) return nanoseconds(0);
    return impl_->python->attached().begin()->second.hook_overhead;
}

int Session::tree_map() const {
    return impl_->bpf->tree_map();
}

const engine::Features& Session::features() const {
    return impl_->features;
}

Snapshot Session::snapshot() {
    Impl& self = *impl_;
    self.handle_events();
    Snapshot snapshot;
    snapshot.taken_at = std::chrono::system_clock::now();
    if (self.armed_at_ns != 0)
        snapshot.since_armed = nanoseconds(monotonic_ns() - self.armed_at_ns);
    snapshot.armed = self.armed;
    snapshot.targets = self.targets;
    // The interpreter of a program that waits to start is still to come.
    const bool to_come = self.python && !self.options.run_command.empty() && self.armed_at_ns == 0;
    snapshot.nothing_matched =
        self.target_of.empty() && !to_come && (!self.python || !self.python->ever_attached());
    snapshot.skipped = self.skipped;
    snapshot.unmatched_lines = self.resolver->unmatched_lines();
    snapshot.floors = self.floors;
    snapshot.engine = self.kmod ? "kmod" : "bpf";
    snapshot.lost_events = self.bpf->lost_events();
    snapshot.lost_members = self.bpf->lost_members();
    snapshot.late_files = self.late.told();

    snapshot.counts = self.latest_counts();
    snapshot.counts_are_old = self.tree_counts.failure().has_value();
    if (self.kmod) snapshot.lost_members += self.kmod->losses().members;
    if (self.python) {
        if (!self.python->ever_attached()) snapshot.hook_failure = self.python->first_failure();
        snapshot.lost_counts = self.python->lost_counts();
        snapshot.python_matches = self.python->matches();
        std::erase_if(snapshot.unmatched_lines, [&](size_t line) {
            return std::any_of(snapshot.python_matches.begin(), snapshot.python_matches.end(),
                               [line](const auto& match) { return match.line == line; });
        });
    }
    for (const auto& [tgid, member] : self.members.all())
        snapshot.processes.push_back({member.pid, member.command, member.alive});
    return snapshot;
}

Result<std::vector<engine::Counts>> Session::counts() {
    std::vector<engine::Counts> result = impl_->latest_counts();
    if (const auto& failure = impl_->tree_counts.failure()) return Error(*failure);
    return result;
}

} // namespace speedbump::session
