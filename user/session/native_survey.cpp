// SPDX-License-Identifier: MIT
#include "session/native_survey.h"

#include <algorithm>
#include <deque>
#include <set>
#include <thread>
#include <utility>

#include "engine/bpf_engine.h"
#include "engine/features.h"
#include "process/maps.h"
#include "process/remote_elf.h"
#include "targets/matcher.h"
#include "util/clock.h"
#include "util/log.h"

namespace speedbump::session {

namespace {

using std::chrono::milliseconds;
using std::chrono::nanoseconds;

constexpr size_t kFirstBatch = 256;
constexpr size_t kLargestBatch = 8192;
constexpr size_t kMostFunctions = 65536; // SB_MAX_TARGETS
constexpr milliseconds kShortestWatch(50);
constexpr milliseconds kLook(2);
constexpr milliseconds kLongEnough(500);
constexpr milliseconds kInlinedLimit(5000); // for the debug information of a file

// One survey under way.
class Surveyor {
  public:
    Surveyor(const SurveyOptions& options, const targets::TargetsFile& file,
             const std::function<bool()>& interrupted)
        : options_(options),
          features_(engine::probe_features()),
          resolver_(file, {engine::site_options(features_)}),
          interrupted_(interrupted) {}

    Result<void> prepare(const targets::TargetsFile& file);
    Result<void> run();
    Survey result();

  private:
    Result<std::vector<engine::Links>> attach(const std::vector<uint32_t>& batch);
    double take_counts();
    Result<bool> watch(const std::vector<uint32_t>& batch, nanoseconds time);
    void watch_again();
    void find_inlined(const targets::TargetsFile& file);
    bool is_over() const { return interrupted_() || Clock::now() >= end_; }

    const SurveyOptions& options_;
    engine::Features features_;
    process::Resolver resolver_;
    const std::function<bool()>& interrupted_;
    std::unique_ptr<engine::BpfEngine> engine_;
    engine::Floors floors_;
    std::map<pid_t, std::set<process::FileKey>> files_; // of each process
    std::map<uint32_t, pid_t> pid_of_;                  // by tgid
    std::vector<SurveyedFunction> functions_;
    std::vector<uint64_t> counted_; // calls of each function so far
    std::deque<uint32_t> waiting_;
    std::set<uint32_t> refused_;
    Survey survey_;
    Clock::time_point start_;
    Clock::time_point end_;
    double cost_ns_ = 0; // of all counting so far
};

// In each file that the processes map and a line names.
void Surveyor::find_inlined(const targets::TargetsFile& file) {
    std::set<process::FileKey> done;
    for (const pid_t pid : options_.pids) {
        const auto modules = process::load_modules(pid);
        const auto mappings = process::read_maps(pid);
        if (!modules || !mappings) continue; // it ended
        for (const process::Mapping& mapping : *mappings) {
            if (!mapping.executable || !done.insert({mapping.device, mapping.inode}).second)
                continue;
            targets::BinaryIdentity identity{mapping.path, "", false};
            for (const process::RemoteModule& module : *modules)
                if (module.contains_code(mapping.start)) {
                    identity.soname = module.soname();
                    identity.is_main_executable = module.is_executable();
                }
            std::vector<const targets::TargetLine*> lines;
            for (const targets::TargetLine& line : file.lines)
                if (targets::binary_matches(line.container, identity)) lines.push_back(&line);
            if (lines.empty()) continue;
            const auto is_wanted = [&lines](const std::vector<std::string_view>& names) {
                return std::any_of(lines.begin(), lines.end(), [&names](const auto* line) {
                    return targets::symbol_matches(*line, {names, 0});
                });
            };
            const auto fd = process::open_mapped_file(pid, mapping);
            if (!fd) continue;
            const elf::DebugSearch search{"/proc/" + std::to_string(pid) + "/root",
                                          elf::DebugSearch{}.directories};
            auto inlined =
                elf::find_inlined(fd->get(), mapping.path, search, is_wanted, kInlinedLimit);
            if (!inlined) {
                log::warning(inlined.error().message);
                continue;
            }
            for (elf::InlinedFunction& function : *inlined)
                survey_.inlined.push_back({mapping.path, std::move(function)});
        }
    }
}

Result<void> Surveyor::prepare(const targets::TargetsFile& file) {
    if (auto rights = engine::require_attach_rights(features_); !rights) return rights;
    for (const pid_t pid : options_.pids) {
        auto findings = resolver_.look_at_process(pid);
        if (!findings && findings.error().kind == ErrorKind::kNotFound) continue; // it ended
        if (!findings) return std::move(findings).error();
        files_[pid] = std::move(findings->files);
        for (process::NativeMatch& match : findings->matches)
            functions_.push_back({std::move(match), {}, {}});
        std::move(findings->skipped.begin(), findings->skipped.end(),
                  std::back_inserter(survey_.skipped));
    }
    for (const size_t line : resolver_.unmatched_lines())
        survey_.unmatched.push_back(file.lines[line].original);
    if (options_.find_inlined) find_inlined(file);
    if (functions_.size() > kMostFunctions) {
        survey_.not_watched = functions_.size() - kMostFunctions;
        functions_.resize(kMostFunctions);
    }
    counted_.resize(functions_.size());
    auto loaded = engine::BpfEngine::load(features_);
    if (!loaded) return std::move(loaded).error();
    engine_ = std::move(*loaded);
    const auto floors = engine_->calibrate();
    if (!floors) return floors.error();
    floors_ = *floors;
    const auto processes = engine_->list_processes();
    if (!processes) return processes.error();
    engine_->follow_children(false);
    for (const process::ListedProcess& process : *processes) {
        if (!files_.contains(process.pid)) continue;
        if (auto added = engine_->add_member(process.tgid, 1); !added)
            return std::move(added).error();
        pid_of_[process.tgid] = process.pid;
    }
    engine::TargetSettings counting; // a delay of 0
    for (uint32_t i = 0; i < functions_.size(); ++i) {
        if (auto done = engine_->configure(i, counting, 0, false); !done) return done;
        waiting_.push_back(i);
    }
    return {};
}

Result<std::vector<engine::Links>> Surveyor::attach(const std::vector<uint32_t>& batch) {
    std::map<process::FileKey, std::vector<engine::Probe>> probes;
    for (const uint32_t index : batch) {
        const process::NativeMatch& match = functions_[index].match;
        probes[match.file].push_back({index, match.site.file_offset, match.site.kind});
    }
    std::vector<engine::Links> all;
    for (const auto& [key, list] : probes) {
        const std::string path = "/proc/self/fd/" + std::to_string(resolver_.descriptor(key));
        for (const auto& [pid, files] : files_) {
            if (!files.contains(key)) continue;
            std::vector<engine::RefusedProbe> refused;
            auto links = engine_->attach_narrow(path, list, pid, refused);
            for (const engine::RefusedProbe& one : refused) refused_.insert(one.probe.target);
            if (!links && links.error().kind == ErrorKind::kNotFound) continue; // it ended
            if (!links) {
                engine::Links::release_all(std::move(all));
                return std::move(links).error();
            }
            all.push_back(std::move(*links));
        }
    }
    return all;
}

// Adds what was counted since the last time; what that cost, in ns.
double Surveyor::take_counts() {
    double cost = 0;
    std::vector<uint64_t> now(functions_.size());
    for (const engine::Counts& counts : engine_->read_counts()) {
        if (counts.target >= functions_.size()) continue;
        now[counts.target] += counts.hits;
        const auto pid = pid_of_.find(static_cast<uint32_t>(counts.process));
        if (counts.hits > 0 && pid != pid_of_.end())
            functions_[counts.target].calls[pid->second] = counts.hits;
    }
    for (size_t i = 0; i < now.size(); ++i) {
        const auto kind = static_cast<size_t>(functions_[i].match.site.kind);
        cost += static_cast<double>(now[i] - counted_[i]) *
                static_cast<double>(floors_.by_kind[kind].count());
        counted_[i] = now[i];
    }
    return cost;
}

// Counts a batch for some time. False when it was too dear and was given up early; those that
// were called are known then, the others wait for another turn.
Result<bool> Surveyor::watch(const std::vector<uint32_t>& batch, nanoseconds time) {
    auto links = attach(batch);
    if (!links) return std::move(links).error();
    engine_->arm(true);
    const Clock::time_point start = Clock::now();
    double cost = 0;
    bool is_too_dear = false;
    nanoseconds watched{0};
    while (!is_too_dear && watched < time && !is_over()) {
        std::this_thread::sleep_for(kLook);
        cost += take_counts();
        watched = Clock::now() - start;
        // Twice the budget for a moment can be paid back; more must stop at once.
        is_too_dear = cost > 2 * options_.budget * static_cast<double>(watched.count()) &&
                      cost > options_.budget * 5e6;
    }
    engine_->arm(false);
    engine::Links::release_all(std::move(*links));
    cost_ns_ += cost + take_counts();
    for (const uint32_t index : batch) {
        SurveyedFunction& function = functions_[index];
        if (refused_.contains(index)) continue;
        if (watched.count() == 0 || (is_too_dear && function.calls.empty()))
            waiting_.push_back(index);
        else
            function.watched += watched;
    }
    return !is_too_dear;
}

// Once all have been watched: those that were called, but were watched for a moment only.
void Surveyor::watch_again() {
    for (uint32_t i = 0; i < functions_.size(); ++i)
        if (!functions_[i].calls.empty() && functions_[i].watched < kLongEnough)
            waiting_.push_back(i);
}

Result<void> Surveyor::run() {
    start_ = Clock::now();
    end_ = start_ + options_.duration;
    size_t size = kFirstBatch;
    while (!is_over()) {
        if (waiting_.empty()) watch_again();
        if (waiting_.empty()) break;
        std::vector<uint32_t> batch;
        while (batch.size() < size && !waiting_.empty()) {
            batch.push_back(waiting_.front());
            waiting_.pop_front();
        }
        const auto share =
            static_cast<double>(batch.size()) / static_cast<double>(batch.size() + waiting_.size());
        const auto fair =
            std::chrono::duration_cast<nanoseconds>(0.8 * share * (end_ - Clock::now()));
        const nanoseconds time = std::max<nanoseconds>(kShortestWatch, fair);
        const auto cheap = watch(batch, time);
        if (!cheap) return cheap.error();
        size = *cheap ? std::min(size * 4, kLargestBatch) : std::max<size_t>(size / 4, 1);
        // What was overdrawn is paid back by doing nothing.
        const auto owed =
            nanoseconds(static_cast<int64_t>(cost_ns_ / options_.budget)) - (Clock::now() - start_);
        const Clock::time_point paid = std::min(Clock::now() + owed, end_);
        while (Clock::now() < paid && !interrupted_()) std::this_thread::sleep_for(kLook);
    }
    return {};
}

Survey Surveyor::result() {
    survey_.duration = Clock::now() - start_;
    survey_.added_cpu = cost_ns_ / static_cast<double>(survey_.duration.count());
    survey_.not_watched +=
        static_cast<size_t>(std::count_if(waiting_.begin(), waiting_.end(), [this](uint32_t index) {
            return functions_[index].watched.count() == 0;
        }));
    survey_.refused = refused_.size();
    for (SurveyedFunction& function : functions_)
        if (function.watched.count() > 0) survey_.functions.push_back(std::move(function));
    return std::move(survey_);
}

} // namespace

Result<Survey> survey_native(const SurveyOptions& options, const targets::TargetsFile& file,
                             const std::function<bool()>& interrupted) {
    Surveyor surveyor(options, file, interrupted);
    if (auto prepared = surveyor.prepare(file); !prepared) return std::move(prepared).error();
    if (auto done = surveyor.run(); !done) return std::move(done).error();
    return surveyor.result();
}

} // namespace speedbump::session
