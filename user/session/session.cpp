// SPDX-License-Identifier: MIT
#include "session/session.h"

#include <algorithm>
#include <utility>

#include "session/finder.h"
#include "session/target_set.h"
#include "session/tree_counts.h"
#include "session/tree_follower.h"
#include "util/clock.h"
#include "util/event_loop.h"

namespace speedbump::session {

using std::chrono::milliseconds;

// How soon it is noticed that probes are out; until then hits of their file cost a little more.
constexpr auto kChangePause = milliseconds(10);

struct Session::Impl {
    Impl(engine::Engines opened, const SessionOptions& asked, const targets::TargetsFile& parsed,
         Warn warn_of)
        : options(asked),
          file(parsed),
          warn(std::move(warn_of)),
          engines(std::move(opened)),
          targets(options, file, *engines.probes, engines.hooks.get(), warn),
          probes(
              *engines.probes, *engines.tree, members, targets,
              {options.follow_children && engines.mappings && engines.probes->capabilities().wide,
               [this](const Member& member, const Error& error) { finder.put_off(member, error); },
               warn}),
          finder(options, file,
                 {engine::site_options(engines.features), options.entry_only,
                  engines.probes->capabilities().jumps},
                 members, targets, probes, engines.hooks.get(), warn),
          follower(options, file, engines, members, probes, finder, warn),
          schedule(engines, options.columns) {}

    Result<void> begin();
    Result<void> watch(int fd);
    Result<void> open_hooks();
    void hook_members();
    void take_turn();
    Clock::duration longest_sleep() const;
    void read_counts();
    void add_hooked(Snapshot& snapshot) const;
    void arm(bool armed);
    // The interpreter of a program that waits to start is still to come.
    bool is_to_start() const { return !options.run_command.empty() && armed_at_ns == 0; }

    const SessionOptions options;
    const targets::TargetsFile file;
    const Warn warn;
    engine::Engines engines;
    engine::Floors floors;
    Members members;
    TreeCounts tree_counts;
    TargetSet targets;
    ProbeSet probes;
    Finder finder;
    TreeFollower follower;
    Schedule schedule;
    Fd epoll;
    bool is_armed = false;
    uint64_t armed_at_ns = 0; // monotonic_ns()
};

Session::Session(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}

Session::~Session() {
    if (impl_->engines.hooks) impl_->engines.hooks->close();
    // Ends the delays in flight, for which taking probes out would wait.
    impl_->engines.probes->arm(false);
    impl_->probes.take_out();
}

const targets::TargetsFile& Session::file() const {
    return impl_->file;
}

// --- beginning

Result<std::unique_ptr<Session>> Session::over(engine::Engines engines,
                                               const SessionOptions& options,
                                               const targets::TargetsFile& file, Warn warn) {
    auto floors = engines.probes->calibrate();
    if (!floors) return std::move(floors).error();
    if (!engines.probes->capabilities().nop5) engines.features.nop5_is_safe = false;
    std::unique_ptr<Session> session(
        new Session(std::make_unique<Impl>(std::move(engines), options, file, std::move(warn))));
    session->impl_->floors = *floors;
    if (auto begun = session->impl_->begin(); !begun) return std::move(begun).error();
    return session;
}

Result<void> Session::Impl::begin() {
    auto made = make_epoll();
    if (!made) return std::move(made).error();
    epoll = std::move(*made);
    for (const int fd : {engines.tree->event_fd(), engines.mappings ? engines.mappings->fd() : -1,
                         engines.probes->fd()})
        if (auto watched = watch(fd); !watched) return watched;
    if (auto built = follower.build(); !built) return built;
    targets.set_roots(follower.roots().mask_of_pid);
    if (auto found = finder.find_all(); !found) return found;
    follower.update_wake();
    if (!engines.hooks) return {};
    if (auto opened = open_hooks(); !opened) return opened;
    targets.add_hooked_lines();
    if (options.run_command.empty()) hook_members();
    return {};
}

// -1: nothing to watch.
Result<void> Session::Impl::watch(int fd) {
    if (fd < 0) return {};
    return watch_descriptor(epoll, fd);
}

Result<void> Session::Impl::open_hooks() {
    if (auto opened = engines.hooks->open(); !opened) return opened;
    return watch(engines.hooks->fd());
}

void Session::Impl::hook_members() {
    std::vector<std::pair<pid_t, uint64_t>> processes;
    for (const auto& [tgid, member] : members.all())
        if (member.alive) processes.emplace_back(member.pid, member.roots);
    engines.hooks->attach(processes, true);
    follower.handle_events(); // those that were forked before the hook of their parent was in
}

// --- turns

Clock::duration Session::Impl::longest_sleep() const {
    if (probes.is_looking()) return milliseconds(0);
    Clock::duration sleep = std::min(follower.longest_sleep(), engines.probes->until_next());
    if (probes.is_changing()) sleep = std::min<Clock::duration>(sleep, kChangePause);
    if (const auto next = finder.until_next()) sleep = std::min(sleep, *next);
    return engines.hooks ? std::min(sleep, engines.hooks->until_next()) : sleep;
}

void Session::Impl::take_turn() {
    follower.handle_events();
    follower.handle_mappings();
    if (engines.hooks) engines.hooks->handle_events();
    engines.probes->handle_events();
    follower.probe_newborns();
    probes.end_changes();
    probes.look_for_outsiders();
    follower.update_wake();
    if (members.crowded()) read_counts();
    follower.make_up_for_losses();
    finder.try_unfinished();
    probes.warn_of_late_files();
}

Result<void> Session::run_for(milliseconds timeout, int wake_fd) {
    const auto deadline = Clock::now() + timeout;
    if (auto added = impl_->watch(wake_fd); !added && added.error().error_number != EEXIST)
        return added;
    for (;;) {
        // Before the wait: what wakes it is not to wait for a turn, which may take its time.
        impl_->take_turn();
        if (impl_->engines.tree->member_count() == 0 && !impl_->options.cgroup)
            return make_error(ErrorKind::kNotFound, "no process of the tree is left");
        const auto left = std::max<Clock::duration>(deadline - Clock::now(), Clock::duration(0));
        const auto sleep = std::min(left, impl_->longest_sleep());
        epoll_event ready[8];
        int count = -1;
        do { // a signal that matters makes `wake_fd` readable
            count = epoll_wait(impl_->epoll.get(), ready, 8,
                               static_cast<int>(std::chrono::ceil<milliseconds>(sleep).count()));
        } while (count < 0 && errno == EINTR);
        if (count < 0) return errno_error("epoll_wait", errno);
        for (int i = 0; i < count; ++i)
            if (ready[i].data.fd == wake_fd) return {};
        if (Clock::now() >= deadline) return {};
    }
}

// --- control

void Session::Impl::arm(bool armed) {
    is_armed = armed;
    engines.probes->arm(armed);
    if (engines.hooks) engines.hooks->arm(armed);
}

void Session::arm() {
    if (impl_->armed_at_ns == 0) {
        impl_->armed_at_ns = monotonic_ns();
        impl_->targets.begin_windows(impl_->armed_at_ns);
    }
    impl_->arm(true);
}

void Session::pause() {
    impl_->arm(false);
}
void Session::resume() {
    arm();
}

std::vector<uint32_t*> Session::armed_words() {
    std::vector<uint32_t*> words;
    for (engine::DelayEngine* engine :
         {static_cast<engine::DelayEngine*>(impl_->engines.probes.get()),
          static_cast<engine::DelayEngine*>(impl_->engines.hooks.get())})
        if (uint32_t* const word = engine ? engine->armed_word() : nullptr) words.push_back(word);
    return words;
}

Result<std::string> Session::python_path_entry() {
    if (!impl_->engines.hooks) return std::string();
    const SessionOptions& options = impl_->options;
    return impl_->engines.hooks->path_entry(options.follow_children ? 0 : options.pids[0]);
}

Result<size_t> Session::set(const std::string& pattern, const targets::Options& change) {
    return impl_->targets.set(pattern, change);
}

bool Session::apply(std::span<const nanoseconds> delays, uint64_t end_ns) {
    return impl_->targets.apply(delays, end_ns);
}

bool Session::set_column(uint32_t target, std::optional<uint32_t> column) {
    return impl_->targets.set_column(target, column);
}

Schedule* Session::schedule() {
    return impl_->options.columns > 0 ? &impl_->schedule : nullptr;
}

Result<void> Session::regroup(engine::Regrouping regrouping) {
    if (!impl_->engines.hooks) return {};
    return impl_->engines.hooks->regroup(std::move(regrouping));
}

void Session::take_out(bool keep_interpreters, const std::set<size_t>& enabled_lines) {
    impl_->probes.take_out();
    if (!impl_->engines.hooks) return;
    if (keep_interpreters)
        impl_->targets.enable_hooked(enabled_lines);
    else
        impl_->engines.hooks->close();
}

Result<void> Session::put_back() {
    if (auto put = impl_->probes.put_back(); !put) return put;
    engine::HookEngine* const hooks = impl_->engines.hooks.get();
    if (!hooks) return {};
    const bool is_unhooked = !hooks->is_open();
    if (is_unhooked)
        if (auto opened = impl_->open_hooks(); !opened) return opened;
    if (auto done = impl_->targets.restore_hooked(); !done) {
        if (is_unhooked) hooks->close();
        return done;
    }
    if (!is_unhooked) return {};
    hooks->arm(impl_->is_armed);
    impl_->hook_members();
    return {};
}

// --- what it is like

nanoseconds Session::floor(uint32_t target) const {
    return impl_->targets.floor(target);
}

int Session::tree_map() const {
    return impl_->engines.tree->tree_map();
}

int Session::schedule_map() const {
    return impl_->engines.tree->schedule_map();
}

const engine::Features& Session::features() const {
    return impl_->engines.features;
}

void Session::Impl::read_counts() {
    tree_counts.refresh(*engines.probes, engines.hooks.get(), members, warn);
}

Result<std::vector<engine::Counts>> Session::counts() {
    impl_->read_counts();
    if (const auto& failure = impl_->tree_counts.failure()) return Error(*failure);
    return impl_->tree_counts.latest();
}

Result<std::vector<engine::Counts>> Session::totals() {
    impl_->read_counts();
    if (const auto& failure = impl_->tree_counts.failure()) return Error(*failure);
    return impl_->tree_counts.totals(impl_->targets.all().size());
}

std::vector<ProcessInfo> Session::processes() const {
    std::vector<ProcessInfo> all;
    for (const auto& [tgid, member] : impl_->members.all())
        all.push_back({member.pid, member.command, member.alive});
    return all;
}

Snapshot Session::snapshot() {
    Impl& self = *impl_;
    self.follower.handle_events();
    Snapshot snapshot;
    snapshot.taken_at = std::chrono::system_clock::now();
    if (self.armed_at_ns != 0)
        snapshot.since_armed = nanoseconds(monotonic_ns() - self.armed_at_ns);
    snapshot.armed = self.is_armed;
    snapshot.targets = self.targets.all();
    snapshot.skipped = self.targets.skipped();
    snapshot.unmatched_lines = self.finder.unmatched_lines();
    snapshot.floors = self.floors;
    snapshot.engine = self.engines.probes->capabilities().name;
    self.read_counts();
    snapshot.counts = self.tree_counts.latest();
    snapshot.counts_are_old = self.tree_counts.failure().has_value();
    snapshot.lost_events = self.engines.tree->lost_events();
    snapshot.lost_members =
        self.engines.tree->lost_members() + self.engines.probes->losses().members;
    snapshot.late_files = self.probes.late_files();
    snapshot.nothing_matched = !self.targets.has_native();
    if (self.engines.hooks) self.add_hooked(snapshot);
    snapshot.processes = processes();
    return snapshot;
}

void Session::Impl::add_hooked(Snapshot& snapshot) const {
    engine::HookReport report = engines.hooks->report();
    if (!report.ever_attached) snapshot.hook_failure = std::move(report.first_failure);
    if (report.ever_attached || is_to_start()) snapshot.nothing_matched = false;
    snapshot.lost_counts = engines.hooks->losses().counts;
    std::erase_if(snapshot.unmatched_lines, [&](size_t line) {
        return std::any_of(report.matches.begin(), report.matches.end(),
                           [line](const auto& match) { return match.line == line; });
    });
    snapshot.python_matches = std::move(report.matches);
}

} // namespace speedbump::session
