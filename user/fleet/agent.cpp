// SPDX-License-Identifier: MIT
#include "fleet/agent.h"

#include <fcntl.h>
#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>

#include "experiment/columns.h"
#include "experiment/design.h"
#include "experiment/guard.h"
#include "experiment/host.h"
#include "experiment/subject.h"
#include "fleet/found.h"
#include "fleet/lines.h"
#include "fleet/player.h"
#include "targets/parser.h"
#include "util/clock.h"

namespace speedbump::fleet {

namespace {

using experiment::Subject;
using std::chrono::milliseconds;

constexpr auto kTick = milliseconds(20);
constexpr auto kGuardTick = milliseconds(50);
constexpr auto kDeserted = std::chrono::seconds(60);
constexpr auto kFarewell = std::chrono::seconds(1); // for the last report to leave
constexpr size_t kMostUnsent = 64u << 20;           // bytes; then nobody reads

// The two ends of the link. Nothing here waits for the other one but wait().
class Link {
  public:
    Link(const Fd& in, const Fd& out) : in_(in), out_(out) {}

    void tell(const Report& report) { outbox_.add(line_of(report)); }
    // Reads and sends what goes. False when the coordinator is gone.
    bool turn() {
        const Heard heard = read_into(lines_, in_);
        if (heard == Heard::kSomething) heard_ns_ = monotonic_ns();
        const bool is_deserted =
            monotonic_ns() - heard_ns_ > static_cast<uint64_t>(nanoseconds(kDeserted).count());
        return heard != Heard::kEnd && !is_deserted && outbox_.size() < kMostUnsent &&
               !lines_.is_broken() && outbox_.flush(out_);
    }
    std::optional<std::string> next() { return lines_.next(); }
    // Until there is something to read, or a while has passed.
    void wait(milliseconds time) const {
        pollfd wait{in_.get(), POLLIN, 0};
        ::poll(&wait, 1, static_cast<int>(time.count()));
    }
    void say_farewell() {
        const uint64_t end = monotonic_ns() + static_cast<uint64_t>(nanoseconds(kFarewell).count());
        while (outbox_.flush(out_) && outbox_.size() > 0 && monotonic_ns() < end) {
            pollfd wait{out_.get(), POLLOUT, 0};
            ::poll(&wait, 1, static_cast<int>(milliseconds(kTick).count()));
        }
    }
    uint64_t heard_ns() const { return heard_ns_; }

  private:
    const Fd &in_, &out_;
    LineBuffer lines_{kMaxLine};
    Outbox outbox_;
    uint64_t heard_ns_ = monotonic_ns();
};

Pong answer(const Ping& ping) {
    return {ping.id, agent_clock_ns()};
}

Result<experiment::Request> request_of(const Attach& attach) {
    experiment::Request request;
    std::string text;
    for (const std::string& line : attach.lines) text += line + "\n";
    targets::ParseOutcome outcome = targets::parse_targets(text, "targets");
    if (!outcome.errors.empty())
        return make_error(ErrorKind::kTargetsFile,
                          targets::format_diagnostics("targets", outcome.errors));
    request.file = std::move(outcome.file);
    request.positive_lines = attach.positive;
    for (const std::string& one : attach.progress) {
        auto spec = experiment::parse_progress(one);
        if (!spec) return std::move(spec).error();
        request.progress.push_back(std::move(*spec));
    }
    if (attach.whole_python) request.whole.insert(targets::Runtime::kPython);
    if (attach.whole_native) request.whole.insert(targets::Runtime::kNative);
    request.session.pids = attach.pids;
    request.session.cgroup = attach.cgroup;
    request.session.follow_children = attach.follow_children;
    if (attach.exe) {
        auto found = find_by_exe(*attach.exe);
        if (!found) return std::move(found).error();
        request.session.pids.insert(request.session.pids.end(), found->begin(), found->end());
    }
    request.slice = experiment::kShortestSwitched; // any that is switched
    request.max_slowdown = attach.max_slowdown;
    request.max_cpu = attach.max_cpu;
    return request;
}

// What it is attached to, and its life from there on.
class Agent {
  public:
    Agent(Link& link, experiment::Request request)
        : link_(link), request_(std::move(request)), subject_(request_, hooks_, document_) {
        hooks_.warn = [this](const std::string& text) { link_.tell(Warning{text}); };
        hooks_.say = [](const std::string&) {};
        hooks_.stop_asked = [] { return false; };
        document_.settings.settle = request_.settle.value_or(experiment::kDefaultSettle);
        document_.settings.max_slowdown = request_.max_slowdown;
        const auto cpus = static_cast<double>(::sysconf(_SC_NPROCESSORS_ONLN));
        document_.settings.max_cpu = request_.max_cpu > 0 ? request_.max_cpu : cpus / 2;
    }

    Result<void> attach() {
        const auto design = experiment::design_of(request_);
        if (!design) return design.error();
        if (auto attached = subject_.attach(design->columns); !attached) return attached;
        if (auto found = subject_.find_targets(); !found) return found;
        columns_.emplace(subject_.session(), subject_.points(), subject_.groups(),
                         subject_.target_progress());
        if (auto set = columns_->set(); !set) return set;
        tell_what_is_attached();
        subject_.warn_all(experiment::host_warnings(subject_.pids()));
        return {};
    }

    // Until the coordinator is gone, or the processes are.
    Result<void> serve(const Fd& in) {
        Player player(subject_.session(), *columns_,
                      [this](const Report& report) { link_.tell(report); });
        uint64_t guarded_ns = 0;
        while (link_.turn()) {
            player.heard_at(link_.heard_ns());
            while (const auto line = link_.next())
                if (auto done = obey(player, *line); !done) return done;
            if (auto caught = player.catch_up(); !caught) return caught;
            const uint64_t now = monotonic_ns();
            if (now - guarded_ns >= static_cast<uint64_t>(nanoseconds(kGuardTick).count())) {
                guarded_ns = now;
                guard(player);
            }
            if (auto ran = subject_.session().run_for(kTick, in.get()); !ran)
                return ran.error().kind == ErrorKind::kNotFound
                           ? make_error(ErrorKind::kNotFound, "the processes ended")
                           : std::move(ran).error();
            if (subject_.stop()) return make_error(ErrorKind::kIo, subject_.stop()->reason);
        }
        player.end();
        return {};
    }

  private:
    void tell_what_is_attached() {
        Attached attached;
        for (size_t target = 0; target < document_.targets.size(); ++target) {
            const experiment::Target& one = document_.targets[target];
            const bool is_there = !subject_.groups()[target].empty();
            attached.targets.push_back({one.name, one.functions, one.function_count,
                                        is_there ? experiment::kLeastDose : nanoseconds(0),
                                        one.role == experiment::Role::kPositive, one.notes});
        }
        link_.tell(attached);
    }

    Result<void> obey(Player& player, const std::string& line) {
        auto order = read_order(line, document_.targets.size());
        if (!order) return std::move(order).error();
        if (const auto* ping = std::get_if<Ping>(&*order)) {
            link_.tell(answer(*ping));
        } else if (const auto* begin = std::get_if<Begin>(&*order)) {
            player.begin(*begin);
            guard_.begin();
        } else if (auto* rows = std::get_if<Rows>(&*order)) {
            player.add(std::move(*rows));
        } else if (std::holds_alternative<End>(*order)) {
            player.end();
        } else {
            return make_error(ErrorKind::kInvalid, "this agent is attached already");
        }
        return {};
    }

    // All delays end here at once where they take too much; the coordinator ends all others.
    void guard(Player& player) {
        if (!player.is_on()) return;
        Subject::Readings now = subject_.read(false);
        if (subject_.stop()) return;
        const auto why = guard_.look(std::move(now), ns(player.epoch().period));
        if (!why) return;
        link_.tell(Tripped{player.epoch().epoch, *why});
        player.end();
        guard_.begin();
    }

    Link& link_;
    experiment::Request request_;
    experiment::Hooks hooks_;
    experiment::Document document_;
    Subject subject_; // after the document
    std::optional<experiment::Columns> columns_;
    experiment::Guard guard_{document_.settings};
};

// The order to attach; nullopt when the coordinator went away before.
Result<std::optional<Attach>> wait_for_attach(Link& link) {
    while (link.turn()) {
        while (const auto line = link.next()) {
            auto order = read_order(*line, 0);
            if (!order) return std::move(order).error();
            if (auto* attach = std::get_if<Attach>(&*order))
                return std::optional(std::move(*attach));
            if (const auto* ping = std::get_if<Ping>(&*order)) link.tell(answer(*ping));
        }
        link.wait(kTick);
    }
    return std::optional<Attach>();
}

Result<void> live(Link& link, const Fd& in) {
    auto attach = wait_for_attach(link);
    if (!attach) return std::move(attach).error();
    if (!*attach) return {};
    auto request = request_of(**attach);
    if (!request) return std::move(request).error();
    Agent agent(link, std::move(*request));
    if (auto attached = agent.attach(); !attached) return attached;
    return agent.serve(in);
}

} // namespace

Result<void> run_agent(const Hello& hello, const Fd& in, const Fd& out) {
    ::signal(SIGPIPE, SIG_IGN); // a link that is gone is told by write()
    for (const Fd* fd : {&in, &out})
        if (::fcntl(fd->get(), F_SETFL, ::fcntl(fd->get(), F_GETFL) | O_NONBLOCK) != 0)
            return errno_error("make a link of stdin and stdout", errno);
    Link link(in, out);
    link.tell(hello);
    auto lived = live(link, in);
    if (!lived) link.tell(Failed{lived.error()});
    link.say_farewell();
    return lived;
}

} // namespace speedbump::fleet
