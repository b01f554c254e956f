// SPDX-License-Identifier: MIT
#include "experiment/runner.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <map>

#include "experiment/analysis.h"
#include "experiment/bisect.h"
#include "experiment/busy_threads.h"
#include "experiment/design.h"
#include "experiment/host.h"
#include "experiment/plan.h"
#include "experiment/sliced_runner.h"
#include "experiment/subject.h"
#include "util/clock.h"
#include "util/units.h"

namespace speedbump::experiment {

namespace {

constexpr size_t kFewestBlocks = 6;          // before an interval is believed
constexpr size_t kOffEachBlocksOfPython = 4; // unhooking an interpreter is no small matter
// Doses are raised until one of these: a slowdown that is easily seen, or twice the period.
constexpr double kSeenSlowdown = 0.2, kLargestShare = 2;
constexpr double kFirstShare = 0.1;
constexpr double kLookingShare = 0.1; // of the time, for the cost of looking, with short slices
constexpr size_t kFewestLooks = 2, kMaxLooks = 8;
constexpr auto kBusyLook = std::chrono::milliseconds(200);
constexpr size_t kConfirmed = 3;       // the top targets
constexpr double kConfirmShare = 0.25; // of --time

class Runner {
  public:
    Runner(const Request& request, const Hooks& hooks)
        : request_(request), hooks_(hooks), subject_(request, hooks, document_) {}

    Result<Document> run();

  private:
    void choose_doses(size_t target);
    void run_block(const std::vector<size_t>& targets, bool confirms);
    void run_blocks();
    void confirm();
    void measure_one_by_one();
    Result<void> measure_at_once();
    bool is_over(nanoseconds limit) const;
    std::vector<size_t> all_targets() const;
    std::optional<Stop>& stop() { return subject_.stop(); }

    const Request& request_;
    const Hooks& hooks_;
    Document document_;
    Subject subject_; // after the document
};

std::vector<size_t> Runner::all_targets() const {
    std::vector<size_t> all;
    for (size_t target = 0; target < document_.targets.size(); ++target) all.push_back(target);
    return all;
}

void Runner::choose_doses(size_t target) {
    if (subject_.groups()[target].empty()) return;
    std::vector<nanoseconds>& doses = document_.targets[target].doses;
    const double seen = std::min(kSeenSlowdown, 0.4 * request_.max_slowdown);
    if (!request_.doses.empty()) {
        doses = request_.doses;
    } else if (const auto plain = subject_.measure_plain()) {
        if (const auto top = subject_.find_dose(target, *plain, seen, kFirstShare, kLargestShare))
            doses = doses_up_to(*top);
    }
}

// A block that does not come to its end is kept as far as it got: its arms are in random order.
void Runner::run_block(const std::vector<size_t>& targets, bool confirms) {
    const size_t number = document_.blocks.size();
    const bool with_off = request_.off_arm && !confirms && subject_.can_take_out() &&
                          (!subject_.has_python() || number % kOffEachBlocksOfPython == 0);
    Block block;
    block.confirms = confirms;
    for (const Arm& arm : arms_of_block(document_, targets, with_off, number)) {
        // A larger dose of this block may have been given up meanwhile.
        if (arm.kind == ArmKind::kDose) {
            const auto& doses = document_.targets[arm.target].doses;
            if (std::find(doses.begin(), doses.end(), arm.delay) == doses.end()) continue;
        }
        if (auto slice = subject_.measure(arm, subject_.arm_length())) {
            if (arm.kind == ArmKind::kProbe) subject_.follow_period(*slice);
            block.slices.push_back(std::move(*slice));
        }
        if (stop()) break;
    }
    subject_.apply({ArmKind::kProbe, 0, {}}, nanoseconds(0));
    if (!block.slices.empty()) document_.blocks.push_back(std::move(block));
    hooks_.after_block(document_);
}

// Whether the next block would go beyond the limit.
bool Runner::is_over(nanoseconds limit) const {
    if (limit.count() == 0 || document_.blocks.empty()) return false;
    const auto each = subject_.elapsed() / static_cast<int64_t>(document_.blocks.size());
    return subject_.elapsed() + each > limit;
}

void Runner::run_blocks() {
    size_t wanted = 0; // targets that are left with something to measure
    for (const Target& target : document_.targets) wanted += !target.doses.empty();
    if (wanted == 0) {
        stop() = Stop{"no target has a delay that could be tried", false};
        return;
    }
    nanoseconds limit = request_.time;
    if (wanted > 1) limit -= nanoseconds(static_cast<int64_t>(ns(limit) * kConfirmShare));
    while (!stop()) {
        if (request_.blocks > 0 && document_.blocks.size() >= request_.blocks) {
            stop() = Stop{"blocks", true};
        } else if (is_over(limit)) {
            stop() = Stop{"time", true};
        } else if (request_.precision > 0 && document_.blocks.size() >= kFewestBlocks &&
                   is_precise(document_, request_.precision)) {
            stop() = Stop{"precision", true};
        } else {
            run_block(all_targets(), false);
        }
    }
}

// What stands out of several was chosen for its result: fresh blocks tell without that favour.
void Runner::confirm() {
    if (!stop()->planned || document_.targets.size() < 2) return;
    std::vector<size_t> chosen;
    document_.stopped = stop()->reason; // which intervals hold depends on it
    const Results results = analyse(document_);
    for (const TargetResult& target : results.progress[0].targets)
        if (target.verdict == Verdict::kMatters && chosen.size() < kConfirmed &&
            document_.targets[target.target].role == Role::kTarget)
            chosen.push_back(target.target);
    if (chosen.empty()) return;
    hooks_.say("confirming on fresh blocks");
    const Stop planned = *std::exchange(stop(), std::nullopt);
    const size_t blocks = std::max(kFewestBlocks, document_.blocks.size() / 3);
    for (size_t i = 0; i < blocks && !stop() && !is_over(request_.time); ++i)
        run_block(chosen, true);
    if (!stop()) stop() = planned;
}

void Runner::measure_one_by_one() {
    subject_.begin();
    if (request_.bisect) {
        const auto dose = [this](size_t target) { choose_doses(target); };
        const auto block = [this] { run_block(all_targets(), false); };
        Bisect(hooks_, subject_, document_, {dose, block}).run();
    }
    for (const size_t target : all_targets())
        if (!stop()) choose_doses(target);
    subject_.begin();
    if (!stop()) run_blocks();
    confirm();
}

// Blocks before and after the slices tell of the cost of looking: probes can't be taken out within
// a slice.
Result<void> Runner::measure_at_once() {
    subject_.begin();
    const double block = 3 * ns(subject_.arm_length() + document_.settings.settle);
    const auto looks = std::clamp(static_cast<size_t>(kLookingShare * ns(request_.time) / block),
                                  kFewestLooks, kMaxLooks);
    for (size_t look = 0; look < looks / 2 && !stop(); ++look) run_block({}, false);
    if (auto measured = run_slices(subject_, request_, hooks_, document_); !measured)
        return measured;
    if (!stop()->planned) return {};
    const Stop planned = *std::exchange(stop(), std::nullopt);
    for (size_t look = looks / 2; look < looks && !stop(); ++look) run_block({}, false);
    if (!stop()) stop() = planned;
    return {};
}

Result<Document> Runner::run() {
    document_.seed = request_.seed;
    document_.started_unix_ns =
        std::chrono::duration_cast<nanoseconds>(std::chrono::system_clock::now().time_since_epoch())
            .count();
    const double cpus = static_cast<double>(::sysconf(_SC_NPROCESSORS_ONLN));
    document_.settings = {request_.slice, request_.settle.value_or(kDefaultSettle),
                          request_.precision, request_.max_slowdown,
                          request_.max_cpu > 0 ? request_.max_cpu : cpus / 2};
    for (const ProgressSpec& spec : request_.progress) document_.progress.push_back(spec.text);

    auto design = design_of(request_);
    if (!design) return std::move(design).error();
    if (auto attached = subject_.attach(design->columns); !attached)
        return std::move(attached).error();
    if (auto found = subject_.find_targets(); !found) return std::move(found).error();
    subject_.warn_all(host_warnings(subject_.pids()));
    hooks_.say("waiting for a steady pace");
    const CpuTimes before = read_cpu_times(subject_.pids());
    const ProcessTimes processes = read_process_times();
    if (auto warm = subject_.warm_up(); !warm) return std::move(warm).error();
    subject_.warn_all(busy_warnings(find_busy_threads(processes, subject_.pids(), kBusyLook)));
    if (design->at_once && request_.slice.count() == 0 &&
        !fits_short_slices(subject_.period(), request_.time)) {
        design->at_once = false;
        design->why = "a unit takes " + show_time(nanoseconds(std::llround(subject_.period())));
    }
    if (!design->why.empty())
        document_.warnings.push_back("one target after the other, in long slices: " + design->why);
    if (!design->at_once)
        measure_one_by_one();
    else if (auto measured = measure_at_once(); !measured)
        return std::move(measured).error();
    subject_.end();
    const CpuTimes after = read_cpu_times(subject_.pids());
    if (stop()->planned) subject_.warn_all(load_warnings(before, after));
    subject_.warn_all(contention_warnings(document_));
    subject_.warn_all(counting_warnings(document_));
    document_.tool_cpu = (after.own - before.own) / ((after.total - before.total) / cpus);
    document_.stopped = stop()->reason;
    document_.complete = stop()->planned;
    return document_;
}

} // namespace

Result<Document> run_experiment(const Request& request, const Hooks& hooks) {
    Runner runner(request, hooks);
    return runner.run();
}

} // namespace speedbump::experiment
