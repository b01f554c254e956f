// SPDX-License-Identifier: MIT
#include "discover/native_survey.h"

#include <algorithm>
#include <deque>
#include <iterator>
#include <numeric>
#include <optional>
#include <set>
#include <thread>
#include <tuple>
#include <utility>

#include "discover/inlined_places.h"
#include "discover/survey_candidates.h"
#include "engine/engines.h"
#include "sb_common.h"
#include "util/clock.h"
#include "util/log.h"

namespace speedbump::discover {

namespace {

using std::chrono::milliseconds;
using std::chrono::nanoseconds;

constexpr size_t kFirstBatch = 256;
constexpr size_t kLargestBatch = 8192;
constexpr size_t kMaxFunctions = SB_MAX_TARGETS;
constexpr size_t kMaxUnseen = 32'768;   // more than can be watched in any time that is usual
constexpr size_t kLargeTree = 32;       // more processes than that
constexpr size_t kWatchedProcesses = 8; // of a large tree
constexpr milliseconds kShortestWatch(50);
constexpr double kMaxPlacing = 0.04; // of a CPU: putting probes of unseen functions in place
constexpr int kInAndOut = 2;         // of that time: taking them out takes as long again
constexpr milliseconds kLook(2);
constexpr milliseconds kLongestLook(20); // while a batch is as cheap as it began
constexpr milliseconds kLongEnough(500);
constexpr const char* kSeldom = "the processes that run it ran too seldom";
constexpr int kTries = 4; // of those that were seen, each without what was too dear in the last one

} // namespace

// One survey under way.
class NativeSurvey::Impl {
  public:
    Impl(const SurveyOptions& options, const engine::Features& features,
         const targets::TargetsFile& file)
        : options_(options),
          features_(features),
          candidates_(file, {engine::site_options(features_)}) {}

    Result<void> prepare(const targets::TargetsFile& file);
    Result<void> choose(const stacks::Profile& seen);
    Result<void> run(nanoseconds time, const std::function<bool()>& interrupted);
    Survey result();

  private:
    Result<void> choose_processes(const stacks::Profile& seen);
    void place(const std::vector<process::Candidate>& candidates);
    Result<std::vector<engine::Attached>> attach(const std::vector<uint32_t>& batch);
    Result<void> attach_file(const engine::FileProbes& file, const std::vector<pid_t>& pids,
                             std::vector<engine::Attached>& all);
    Result<void> take_counts(std::map<uint32_t, double>& costs, bool are_all_in_place);
    Result<bool> watch(const std::vector<uint32_t>& batch, nanoseconds time, nanoseconds min_time);
    void mark_dear(const std::map<uint32_t, double>& costs, nanoseconds time);
    void pay_back() const;
    Result<void> watch_seen(Clock::time_point end);
    Result<void> watch_rest();
    Result<void> watch_again(Clock::time_point end);
    bool is_wanted(uint32_t index) const { // in a batch that is tried once more
        return !functions_[index].is_dear && !refused_.contains(index);
    }
    bool is_large() const { return options_.pids.size() > kLargeTree; }
    bool is_over() const { return (*interrupted_)() || Clock::now() >= end_; }

    const SurveyOptions options_;
    engine::Features features_;
    SurveyCandidates candidates_;
    const std::function<bool()>* interrupted_ = nullptr;
    engine::Engines engines_;
    engine::Floors floors_;
    std::map<uint32_t, pid_t> pid_of_;                       // by tgid
    std::vector<SurveyedFunction> functions_;                // those that were seen come first
    size_t seen_ = 0;                                        // how many these are
    std::map<std::pair<uint32_t, pid_t>, uint64_t> counted_; // hits so far, by target and tgid
    std::set<uint32_t> refused_;
    std::set<FunctionPlace> elsewhere_; // seen, but in none of the processes that are watched
    Survey survey_;
    Clock::time_point start_;
    Clock::time_point end_;
    double cost_ns_ = 0;     // of all counting so far
    nanoseconds placing_{0}; // what the kernel took to put probes in and out, so far
};

Result<void> NativeSurvey::Impl::prepare(const targets::TargetsFile& file) {
    if (auto rights = engine::require_attach_rights(features_); !rights) return rights;
    // Else the stacks tell which files are worth reading.
    if (options_.is_asked_for) {
        const size_t first = is_large() ? kWatchedProcesses : options_.pids.size();
        for (size_t i = 0; i < first; ++i)
            if (auto looked = candidates_.look_at(options_.pids[i], nullptr); !looked)
                return looked;
        for (const size_t line : candidates_.resolver().unmatched_lines())
            survey_.unmatched.push_back(file.lines[line].original);
        survey_.inlined = find_inlined(options_.pids, file);
    }
    auto opened = engine::open_counting(features_);
    if (!opened) return std::move(opened).error();
    engines_ = std::move(*opened);
    const auto floors = engines_.probes->calibrate();
    if (!floors) return floors.error();
    floors_ = *floors;
    return {};
}

// Which processes are watched: all, or those of a large tree that ran most.
Result<void> NativeSurvey::Impl::choose_processes(const stacks::Profile& seen) {
    const auto active = [&seen](pid_t pid) {
        const auto found = seen.active_by_process().find(pid);
        return found == seen.active_by_process().end() ? 0 : found->second;
    };
    std::vector<pid_t> pids = options_.pids;
    if (is_large())
        std::stable_sort(pids.begin(), pids.end(),
                         [&active](pid_t a, pid_t b) { return active(a) > active(b); });
    const auto wants = options_.is_asked_for ? nullptr : SurveyCandidates::worth_reading(seen);
    std::set<pid_t> watched;
    for (const pid_t pid : pids) {
        if (is_large() && watched.size() == kWatchedProcesses) break;
        if (!candidates_.files().contains(pid))
            if (auto looked = candidates_.look_at(pid, wants); !looked) return looked;
        if (candidates_.files().contains(pid)) watched.insert(pid);
    }
    candidates_.keep_processes(watched);
    survey_.skipped = std::move(candidates_.skipped());
    survey_.files = candidates_.paths();
    survey_.files_left_out = candidates_.not_wanted();
    if (is_large()) {
        survey_.processes_not_watched = options_.pids.size() - watched.size();
        elsewhere_ = seen_elsewhere(seen, watched);
    }
    const auto processes = engines_.tree->list_processes();
    if (!processes) return processes.error();
    for (const tree::ListedProcess& process : *processes) {
        if (!watched.contains(process.pid)) continue;
        if (auto added = engines_.tree->add_member(process.tgid, 1); !added)
            return std::move(added).error();
        pid_of_[process.tgid] = process.pid;
    }
    return {};
}

// Finds the sites, and leaves out those that can't be probed, and, unless the user has asked for
// them, those that nobody has seen and that would be single-stepped.
void NativeSurvey::Impl::place(const std::vector<process::Candidate>& candidates) {
    auto matches = candidates_.resolver().place(candidates, survey_.skipped);
    const size_t seen = std::exchange(seen_, 0);
    for (size_t i = 0; i < matches.size(); ++i) {
        if (!matches[i]) continue;
        const bool is_worth_it = options_.is_asked_for || i < seen ||
                                 matches[i]->site.kind != elf::SiteKind::kSingleStep;
        if (!is_worth_it) {
            ++survey_.left_out;
            continue;
        }
        if (i < seen) ++seen_;
        functions_.push_back({std::move(*matches[i]), {}, {}, false});
    }
    std::stable_sort(
        functions_.begin() + static_cast<std::ptrdiff_t>(seen_), functions_.end(),
        [](const auto& a, const auto& b) { return a.match.site.kind < b.match.site.kind; });
}

// What was seen first, then the cheapest.
Result<void> NativeSurvey::Impl::choose(const stacks::Profile& seen) {
    if (auto chosen = choose_processes(seen); !chosen) return chosen;
    const size_t max_unseen = options_.is_asked_for ? kMaxFunctions : kMaxUnseen;
    const auto ordered = candidates_.take_ordered(seen, max_unseen, kMaxFunctions);
    (options_.is_asked_for ? survey_.not_watched : survey_.left_out) = ordered.left_out;
    for (const FunctionPlace& place : ordered.elsewhere) survey_.not_counted[place] = kSeldom;
    seen_ = ordered.seen;
    place(ordered.candidates);
    engine::TargetSettings counting; // a delay of 0
    for (uint32_t i = 0; i < functions_.size(); ++i)
        if (auto done = engines_.probes->configure(i, counting, 0, {}); !done) return done;
    return {};
}

Result<std::vector<engine::Attached>> NativeSurvey::Impl::attach(
    const std::vector<uint32_t>& batch) {
    std::map<process::FileKey, std::vector<engine::Probe>> probes;
    for (const uint32_t index : batch) {
        const process::NativeMatch& match = functions_[index].match;
        probes[match.file].push_back({index, match.site.file_offset, match.site.kind});
    }
    std::vector<engine::Attached> all;
    for (const auto& [key, list] : probes) {
        const engine::FileProbes file{candidates_.resolver().descriptor(key), list};
        std::vector<pid_t> pids;
        for (const auto& [pid, files] : candidates_.files())
            if (files.contains(key)) pids.push_back(pid);
        if (auto attached = attach_file(file, pids, all); !attached) {
            engines_.probes->release(std::move(all));
            return std::move(attached).error();
        }
    }
    return all;
}

Result<void> NativeSurvey::Impl::attach_file(const engine::FileProbes& file,
                                             const std::vector<pid_t>& pids,
                                             std::vector<engine::Attached>& all) {
    auto at_once = engines_.probes->attach_each(file, pids);
    for (size_t i = 0; i < pids.size(); ++i) {
        if (at_once[i]) {
            all.push_back(std::move(at_once[i]));
            continue;
        }
        std::vector<engine::RefusedProbe> refused; // that, or the process has ended
        auto attached = engines_.probes->attach(file, pids[i], refused);
        for (const engine::RefusedProbe& one : refused) refused_.insert(one.probe.target);
        if (attached)
            all.push_back(std::move(*attached));
        else if (attached.error().kind != ErrorKind::kNotFound)
            return std::move(attached).error();
    }
    return {};
}

// Takes in what was counted since the last time: adds what it cost, in ns, to that of all counting
// and to `costs`, by function. Calls count only where all probes of the batch are in place.
Result<void> NativeSurvey::Impl::take_counts(std::map<uint32_t, double>& costs,
                                             bool are_all_in_place) {
    const auto read = engines_.probes->read_counts();
    if (!read) return read.error();
    for (const engine::Counts& counts : *read) {
        if (counts.target >= functions_.size()) continue;
        uint64_t& before = counted_[{counts.target, counts.process}];
        const uint64_t more = counts.hits - before;
        before = counts.hits;
        if (more == 0) continue;
        SurveyedFunction& function = functions_[counts.target];
        const auto kind = static_cast<size_t>(function.match.site.kind);
        const double cost =
            static_cast<double>(more) * static_cast<double>(floors_.by_kind[kind].count());
        cost_ns_ += cost;
        costs[counts.target] += cost;
        const auto pid = pid_of_.find(static_cast<uint32_t>(counts.process));
        if (are_all_in_place && pid != pid_of_.end()) function.calls[pid->second] += more;
    }
    return {};
}

// Counts a batch for some time, for `min_time` of it also when the survey's has gone by while the
// probes were put in place. False when it was too dear and was given up early.
Result<bool> NativeSurvey::Impl::watch(const std::vector<uint32_t>& batch, nanoseconds time,
                                       nanoseconds min_time) {
    const Clock::time_point attach_start = Clock::now();
    std::map<uint32_t, double> costs;
    auto attached = attach(batch);
    placing_ += kInAndOut * (Clock::now() - attach_start);
    if (!attached) return std::move(attached).error();
    if (auto taken = take_counts(costs, false); !taken) return std::move(taken).error();
    const double cost_before = cost_ns_;
    const Clock::time_point start = Clock::now();
    bool is_too_dear = false;
    nanoseconds watched{0};
    do {
        std::this_thread::sleep_for(std::clamp<nanoseconds>(watched / 4, kLook, kLongestLook));
        if (auto taken = take_counts(costs, true); !taken) return std::move(taken).error();
        watched = Clock::now() - start;
        // Twice the budget for a moment can be paid back; more must stop at once.
        const double cost = cost_ns_ - cost_before;
        is_too_dear = cost > 2 * options_.budget * static_cast<double>(watched.count()) &&
                      cost > options_.budget * 5e6;
    } while (!is_too_dear && !(*interrupted_)() &&
             (watched < min_time || (watched < time && !is_over())));
    engines_.probes->release(std::move(*attached));
    if (auto taken = take_counts(costs, false); !taken) return std::move(taken).error();
    for (const uint32_t index : batch)
        if (!refused_.contains(index)) functions_[index].watched += watched;
    // While probes are put in place and taken away calls cost the same, and of a large batch there
    // are far more of them then: who is dear is known from all.
    if (is_too_dear) mark_dear(costs, Clock::now() - attach_start);
    return !is_too_dear;
}

// Of a batch that was given up: those that must not be watched with the others. `time`: in which
// they cost that.
void NativeSurvey::Impl::mark_dear(const std::map<uint32_t, double>& costs, nanoseconds time) {
    std::vector<std::pair<double, uint32_t>> dearest;
    double left = 0;
    for (const auto& [index, cost] : costs) {
        dearest.emplace_back(cost, index);
        left += cost;
    }
    std::sort(dearest.rbegin(), dearest.rend());
    bool is_first = true; // it goes in any case: else the same batch would be given up for ever
    for (const auto& [cost, index] : dearest) {
        if (!std::exchange(is_first, false) &&
            left <= options_.budget / 2 * static_cast<double>(time.count()))
            break;
        left -= cost;
        functions_[index].is_dear = true;
    }
}

// What was overdrawn is paid back by doing nothing.
void NativeSurvey::Impl::pay_back() const {
    const auto paid = start_ + nanoseconds(static_cast<int64_t>(cost_ns_ / options_.budget));
    while (Clock::now() < paid && !is_over()) std::this_thread::sleep_for(kLook);
}

// All of them together and as long as can be: many are called now and then only.
Result<void> NativeSurvey::Impl::watch_seen(Clock::time_point end) {
    std::vector<uint32_t> batch(seen_);
    std::iota(batch.begin(), batch.end(), 0);
    // Also when dear ones among them have taken all the time: it is what the user came for.
    for (int tried = 0; !batch.empty() && !(*interrupted_)(); ++tried) {
        if (tried >= kTries && Clock::now() >= end) break;
        const auto cheap = watch(batch, end - Clock::now(), kLongEnough);
        if (!cheap) return cheap.error();
        if (*cheap) break;
        std::erase_if(batch, [this](uint32_t index) { return !is_wanted(index); });
        pay_back();
    }
    return {};
}

Result<void> NativeSurvey::Impl::watch_rest() {
    std::deque<uint32_t> waiting(functions_.size() - seen_);
    std::iota(waiting.begin(), waiting.end(), static_cast<uint32_t>(seen_));
    const nanoseconds most =
        placing_ + std::chrono::duration_cast<nanoseconds>(kMaxPlacing * (end_ - start_));
    size_t size = kFirstBatch;
    while (!waiting.empty() && !is_over() && size > 0) {
        const auto length = static_cast<std::ptrdiff_t>(std::min(size, waiting.size()));
        const nanoseconds placed = placing_;
        const std::vector<uint32_t> batch(waiting.begin(), waiting.begin() + length);
        waiting.erase(waiting.begin(), waiting.begin() + length);
        const auto share =
            static_cast<double>(batch.size()) / static_cast<double>(batch.size() + waiting.size());
        const auto fair =
            std::chrono::duration_cast<nanoseconds>(0.8 * share * (end_ - Clock::now()));
        const auto cheap = watch(batch, fair, kShortestWatch);
        if (!cheap) return cheap.error();
        if (!*cheap)
            std::copy_if(batch.begin(), batch.end(), std::front_inserter(waiting),
                         [this](uint32_t index) { return is_wanted(index); });
        size = *cheap ? std::min(size * 4, kLargestBatch) : std::max<size_t>(size / 4, 1);
        const double each = std::max(1.0, ns(placing_ - placed) / static_cast<double>(length));
        if (!options_.is_asked_for)
            size = std::min(size, static_cast<size_t>(std::max(0.0, ns(most - placing_) / each)));
        pay_back();
    }
    return {};
}

// Those that were seen, or called, but watched for moments only: together, the dear ones each
// alone.
Result<void> NativeSurvey::Impl::watch_again(Clock::time_point end) {
    while (Clock::now() < end && !is_over()) {
        std::vector<uint32_t> batch;
        std::optional<uint32_t> dear;
        for (uint32_t i = 0; i < functions_.size(); ++i) {
            const SurveyedFunction& function = functions_[i];
            if (function.watched >= kLongEnough || refused_.contains(i)) continue;
            if (i >= seen_ && function.calls.empty()) continue;
            if (!function.is_dear)
                batch.push_back(i);
            else if (!dear || function.watched < functions_[*dear].watched)
                dear = i;
        }
        if (batch.empty() && dear) batch.push_back(*dear);
        if (batch.empty()) break;
        if (const auto cheap = watch(batch, kLongEnough, kShortestWatch); !cheap)
            return cheap.error();
        pay_back();
    }
    return {};
}

Result<void> NativeSurvey::Impl::run(nanoseconds time, const std::function<bool()>& interrupted) {
    interrupted_ = &interrupted;
    start_ = Clock::now();
    end_ = start_ + time;
    engines_.probes->arm(true);
    // The rest has a turn, too.
    const bool is_all = seen_ == functions_.size();
    if (auto done = watch_seen(start_ + time * (is_all ? 7 : 4) / 10); !done) return done;
    if (auto done = watch_again(is_all ? end_ : start_ + time * 6 / 10); !done) return done;
    if (auto done = watch_rest(); !done) return done;
    if (auto done = watch_again(end_); !done) return done;
    engines_.probes->arm(false);
    return {};
}

Survey NativeSurvey::Impl::result() {
    survey_.duration = Clock::now() - start_;
    survey_.added_cpu = cost_ns_ / static_cast<double>(survey_.duration.count());
    survey_.refused = refused_.size();
    for (uint32_t i = 0; i < functions_.size(); ++i) {
        SurveyedFunction& function = functions_[i];
        const FunctionPlace place(function.match.path, function.match.entry_offset);
        // A moment in which nothing was called tells nothing.
        const bool is_known = function.watched >= kShortestWatch || !function.calls.empty();
        if (function.calls.empty() && elsewhere_.contains(place)) {
            survey_.not_counted[place] = kSeldom;
        } else if (is_known) {
            survey_.functions.push_back(std::move(function));
        } else if (refused_.contains(i)) {
            survey_.not_counted[place] = "the kernel takes no probe there";
        } else {
            ++survey_.not_watched;
            survey_.not_counted[place] = "there was no time for it";
        }
    }
    return std::move(survey_);
}

NativeSurvey::NativeSurvey(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
NativeSurvey::NativeSurvey(NativeSurvey&&) noexcept = default;
NativeSurvey& NativeSurvey::operator=(NativeSurvey&&) noexcept = default;
NativeSurvey::~NativeSurvey() = default;

Result<NativeSurvey> NativeSurvey::prepare(const SurveyOptions& options,
                                           const engine::Features& features,
                                           const targets::TargetsFile& file) {
    auto impl = std::make_unique<Impl>(options, features, file);
    if (auto prepared = impl->prepare(file); !prepared) return std::move(prepared).error();
    return NativeSurvey(std::move(impl));
}

Result<Survey> NativeSurvey::count(const stacks::Profile& seen, nanoseconds time,
                                   const std::function<bool()>& interrupted) {
    if (auto chosen = impl_->choose(seen); !chosen) return std::move(chosen).error();
    if (auto done = impl_->run(time, interrupted); !done) return std::move(done).error();
    return impl_->result();
}

} // namespace speedbump::discover
