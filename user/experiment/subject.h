// SPDX-License-Identifier: MIT
#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "experiment/document.h"
#include "experiment/progress.h"
#include "experiment/runner.h"
#include "experiment/target_progress.h"
#include "session/session.h"
#include "util/result.h"

namespace speedbump::experiment {

// What ends an experiment; a reason for Document::stopped.
struct Stop {
    std::string reason;
    bool planned = false;
};

// What was counted of one target so far.
struct Injected {
    nanoseconds time{0}; // by delays of its own: more than a probe without delay takes
    nanoseconds took{0}; // of CPUs, by delays of any kind: nothing taken off
    uint64_t calls = 0;
};

// The running service that an experiment is made on: a session with its targets, and the progress
// points. Applies one arm at a time and measures what it does, within the guards. What there is to
// tell goes into the document. Not thread-safe.
class Subject {
  public:
    // All outlive this.
    Subject(const Request& request, const Hooks& hooks, Document& document)
        : request_(request), hooks_(hooks), document_(document) {}

    // Attaches everything, with every delay 0; with so many columns of a schedule.
    Result<void> attach(uint32_t columns);
    // What the lines of the targets file name: document.targets, and their groups. kNothingMatched
    // when that is nothing.
    Result<void> find_targets();
    // Until its pace is steady; tells the first progress point's, and chooses
    // settings.slice where none was asked for. kTimeout when it doesn't tick.
    Result<void> warm_up();
    // Without any delay, what doses are chosen by. nullopt as measure(), or when nothing ticked.
    std::optional<Slice> measure_plain(nanoseconds least = nanoseconds(0));
    // The delay by which a target's injected time is this share of a unit's. nullopt, which is
    // noted, when it was not called.
    std::optional<nanoseconds> dose_of(size_t target, const Slice& plain, double share,
                                       nanoseconds least);
    // The same, raised from `first` until it slows the service by `seen` or is `largest`.
    std::optional<nanoseconds> find_dose(size_t target, const Slice& plain, double seen,
                                         double first, double largest);

    // Below this the delay of a call is lost in what a probe costs.
    nanoseconds least_dose(size_t target) const;

    // Gives the arm's target its delay and all others none; ends by itself some time after
    // `length`.
    void apply(const Arm& arm, nanoseconds length);
    // Applies the arm, waits for it to settle, and measures. nullopt when it was given up, or all
    // has come to an end (stop()).
    std::optional<Slice> measure(const Arm& arm, nanoseconds length);
    // After a guard has tripped. Measures without any delay: is the service as fast as it was? If
    // not, others slowed it.
    bool is_slow_by_delays();
    // Deals with what happens in the tree meanwhile.
    void wait(nanoseconds time);
    // Whether it is to end: the user asks for it.
    bool is_interrupted();
    // What has become of a while in which the session ran: an error ends the experiment.
    void note_ran(const Result<void>& ran);
    // When the first progress point has not ticked for long, as it was read, that ends the
    // experiment.
    void end_if_silent();
    // Other targets than before, each a group of the session's.
    void regroup(std::vector<Target> targets, std::vector<std::vector<uint32_t>> groups);
    // Targets of the session for groups of Python functions (Session::regroup()), each with its
    // line; none unless the request bisects Python lines.
    struct Spare {
        size_t line = 0;
        uint32_t target = 0;
    };
    const std::vector<Spare>& spares() const { return spares_; }
    // No delay from now on; what is left to tell goes into the document.
    void end();

    void warn(const std::string& text);
    void warn_all(const std::vector<std::string>& warnings);

    // What has ended the experiment, if anything has.
    std::optional<Stop>& stop() { return stop_; }
    session::Session& session() { return *session_; }
    const std::vector<std::vector<uint32_t>>& groups() const { return groups_; }
    const std::vector<pid_t>& pids() const { return pids_; }
    const std::vector<std::unique_ptr<ProgressPoint>>& points() const { return points_; }
    // The progress points that are targets of the session.
    const TargetProgress& target_progress() const { return target_progress_; }
    bool has_python() const { return has_python_; }
    // Whether the probes can be taken out for a while: not where they count the progress.
    bool can_take_out() const { return !progress_lines_.has_jumps; }
    // So long that an arm tells something: settings.slice, unless a shorter one was asked for.
    nanoseconds arm_length() const { return arm_length_; }
    // Of the first progress point without delay, in ns, as it was last.
    double period() const { return period_; }
    void follow_period(const Slice& slice);
    // From here on the start of slices counts.
    void begin() { begun_ns_ = monotonic_ns(); }
    nanoseconds elapsed() const { return nanoseconds(monotonic_ns() - begun_ns_); }

    struct Readings {
        std::vector<Reading> progress;
        std::vector<std::vector<uint64_t>> latencies;
        std::vector<std::optional<DeviceReading>> devices;
        std::vector<Injected> targets;
        std::map<pid_t, nanoseconds> waits;
        uint64_t at_ns = 0;
    };
    Readings read(bool is_bound); // of a slice, or only a look within one

  private:
    Totals read_totals();
    void note_tick(const Readings& now);
    std::vector<Injected> injected_by(const Totals& totals) const;
    Slice between(const Arm& arm, const Readings& before, const Readings& after) const;
    std::optional<std::string> guard(const Arm& arm, const Readings& before);
    // Waits within the guards; false when they, or something else, have ended it.
    bool watch(const Arm& arm, const Readings& from, nanoseconds time);
    void give_up_dose(const Arm& arm, const std::string& why);
    void note_bad_reading(size_t point, const std::string& what);

    const Request& request_;
    const Hooks& hooks_;
    Document& document_;
    std::vector<std::vector<uint32_t>> groups_; // session targets of each of the document's
    ProgressLines progress_lines_;
    TargetProgress target_progress_;
    std::vector<Spare> spares_;
    std::unique_ptr<session::Session> session_;
    std::vector<std::unique_ptr<ProgressPoint>> points_; // after the session
    std::vector<pid_t> pids_;                            // when it began
    std::vector<Reading> last_;
    std::vector<int> bad_readings_;
    std::vector<uint64_t> lost_;                        // calls that each point could not time
    std::map<std::pair<size_t, int64_t>, int> strikes_; // of a guard, by target and delay
    std::optional<Stop> stop_;
    uint64_t begun_ns_ = 0;                                         // of the first block
    uint64_t last_units_ = 0, last_tick_ns_ = 0, last_read_ns_ = 0; // of the first progress point
    double period_ = 0;
    nanoseconds arm_length_{0};
    std::chrono::milliseconds guard_tick_;
    bool has_python_ = false;
    bool is_out_ = false;
};

} // namespace speedbump::experiment
