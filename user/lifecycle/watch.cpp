// SPDX-License-Identifier: MIT
#include "lifecycle/watch.h"

#include <algorithm>
#include <memory>
#include <optional>

#include "control/server.h"
#include "report/text.h"
#include "targets/parser.h"
#include "util/clock.h"
#include "util/control_directory.h"
#include "util/event_loop.h"
#include "util/log.h"

namespace speedbump::lifecycle {

namespace {

using std::chrono::milliseconds;
using std::chrono::nanoseconds;

// After this time without a call, a line's targets are worth a warning.
constexpr auto kNoHitAfter = std::chrono::seconds(5);
constexpr auto kLongestWait = std::chrono::hours(1);

// When the session ends by itself: --duration counts from --start.
std::optional<nanoseconds> session_length(const targets::Options& defaults) {
    if (!defaults.duration || defaults.duration->count() == 0) return std::nullopt;
    return defaults.start.value_or(nanoseconds(0)) + *defaults.duration;
}

// How far the session has come; requests change it between turns of the loop.
struct Progress {
    std::optional<Clock::time_point> armed_at; // --duration counts from here
    bool delays_ended = false;                 // for good
    bool detach_asked = false;
};

// Only while this program has a single thread and no BPF descriptor is open. A session goes on
// without its socket where there can be none.
Result<std::unique_ptr<control::ControlServer>> open_control(const WatchRequest& request) {
    auto control = control::ControlServer::create();
    if (!control) return control;
    if (!request.control_fifo.empty()) {
        if (auto opened = (*control)->open_fifo(request.control_fifo); !opened) {
            return std::move(opened).error();
        }
    }
    const auto directory = control_directory();
    const auto listening = directory ? (*control)->listen(*directory) : directory.error();
    if (!listening)
        log::warning(listening.error().message +
                     "; status, set, pause, resume and "
                     "detach won't find this session");
    return control;
}

control::ControlHandlers control_handlers(session::Session& session, const WatchReporter& reporter,
                                          Progress& progress) {
    control::ControlHandlers handlers;
    handlers.status = [&session, &reporter] {
        return reporter.status(session.snapshot(), session.file());
    };
    handlers.set = [&session](const std::string& pattern, const targets::Options& change) {
        return session.set(pattern, change);
    };
    handlers.pause = [&session] {
        session.pause();
        return Result<void>();
    };
    handlers.resume = [&session, &progress]() -> Result<void> {
        if (progress.delays_ended) {
            return make_error(ErrorKind::kUsage, "the delays of this session have ended");
        }
        if (!progress.armed_at) progress.armed_at = Clock::now();
        session.resume();
        return {};
    };
    handlers.detach = [&session, &progress] {
        session.pause();
        progress.detach_asked = true;
    };
    return handlers;
}

// One descriptor that is readable when either is.
Result<Fd> make_wake(const Signals& signals, const control::ControlServer& control) {
    auto wake = make_epoll();
    if (!wake) return wake;
    for (const int fd : {signals.fd(), control.fd()})
        if (auto added = watch_descriptor(*wake, fd); !added) return std::move(added).error();
    return wake;
}

// While it lives, a signal that asks to stop ends the delays itself.
class EndedBySignals {
  public:
    EndedBySignals(Signals& signals, const std::vector<uint32_t*>& words) : signals_(signals) {
        signals_.zero_on_stop(words);
    }
    EndedBySignals(const EndedBySignals&) = delete;
    EndedBySignals& operator=(const EndedBySignals&) = delete;
    ~EndedBySignals() { signals_.zero_on_stop({}); }

  private:
    Signals& signals_;
};

// The loop between arming and the end. Gives why it ended.
Result<std::string> watch_armed(session::Session& session, const WatchRequest& request,
                                WatchReporter& reporter, Signals& signals, const WatchHooks& hooks,
                                control::ControlServer& control, Progress& progress) {
    const auto wake = make_wake(signals, control);
    if (!wake) return wake.error();
    const EndedBySignals ended_by_signals(signals, session.armed_words());
    const std::optional<nanoseconds> length = session_length(request.session.defaults);
    session::Snapshot before = session.snapshot();
    Clock::time_point next_sample = Clock::now() + request.stats_interval;
    bool may_warn_of_no_hits = true;
    while (true) {
        control.serve();
        if (progress.detach_asked) return std::string("detached");
        if (hooks.program_ended()) return std::string("program-ended");
        if (signals.stop_signal() != 0) {
            if (!hooks.lasts_as_program) return std::string("interrupted");
            if (!progress.delays_ended) session.pause();
            progress.delays_ended = true;
        }
        const Clock::time_point now = Clock::now();
        if (length && progress.armed_at && now >= *progress.armed_at + *length) {
            if (!hooks.lasts_as_program) return std::string("duration");
            if (!progress.delays_ended) session.pause();
            progress.delays_ended = true;
        }
        const bool is_due = now >= next_sample, shows = is_due && reporter.wants_samples();
        if (shows || (is_due && may_warn_of_no_hits)) {
            session::Snapshot latest = session.snapshot();
            if (shows) reporter.sample(before, latest, session.file());
            if (may_warn_of_no_hits && progress.armed_at &&
                now >= *progress.armed_at + kNoHitAfter) {
                may_warn_of_no_hits = false;
                for (const std::string& text : report::no_hit_warnings(latest, session.file())) {
                    reporter.warn(text);
                }
            }
            if (shows) before = std::move(latest);
        }
        while (next_sample <= now) next_sample += request.stats_interval;
        Clock::time_point until = std::min<Clock::time_point>(next_sample, now + kLongestWait);
        if (length && progress.armed_at && !progress.delays_ended) {
            until = std::min(until, *progress.armed_at + *length);
        }
        const auto timeout = std::chrono::ceil<milliseconds>(until - Clock::now());
        const auto ran = session.run_for(std::max(timeout, milliseconds(0)), wake->get());
        signals.drain();
        if (ran) continue;
        if (ran.error().kind != ErrorKind::kNotFound) return ran.error();
        return std::string(hooks.lasts_as_program ? "program-ended" : "processes-ended");
    }
}

} // namespace

Result<std::string> watch_session(const WatchRequest& request, WatchReporter& reporter,
                                  Signals& signals, const WatchHooks& hooks) {
    auto file = targets::load_targets(request.targets_path);
    if (!file) return std::move(file).error();
    if (auto opened = reporter.open(); !opened) return std::move(opened).error();

    const auto control = open_control(request);
    if (!control) return control.error();
    const auto warn = [&reporter](const std::string& text) { reporter.warn(text); };
    auto session = session::Session::attach(request.session, *file, warn);
    if (!session) return std::move(session).error();

    const session::Snapshot attached = (*session)->snapshot();
    reporter.matched(attached, (*session)->file());
    const auto judged = report::judge_matches(attached, *file, request.session.missing);
    if (!judged) return judged.error();
    if (request.session.missing == session::MissingPolicy::kWarn) {
        for (const std::string& text : report::unmatched_warnings(attached, *file)) warn(text);
    }
    Progress progress;
    if (auto started = (*control)->start(control_handlers(**session, reporter, progress), warn);
        !started) {
        return std::move(started).error();
    }
    if (signals.stop_signal() == 0 && !request.session.start_paused) {
        (*session)->arm();
        progress.armed_at = Clock::now();
    }
    if (auto started = hooks.after_arming(**session); !started) return std::move(started).error();

    auto reason = watch_armed(**session, request, reporter, signals, hooks, **control, progress);
    (*session)->pause();
    const session::Snapshot total = (*session)->snapshot();
    session->reset();
    (*control)->detached();
    reporter.final(total, *file, reason ? *reason : "failed");
    if (!reason) return reason;
    if (total.nothing_matched) {
        Error error = total.hook_failure.value_or(make_error({}, "no target matched anything"));
        // A program of ours ran all the same; its status counts, not this.
        if (hooks.lasts_as_program || !total.hook_failure) error.kind = ErrorKind::kNothingMatched;
        return error;
    }
    if (auto written = reporter.finish(); !written) return std::move(written).error();
    return reason;
}

} // namespace speedbump::lifecycle
