// SPDX-License-Identifier: MIT
#include "engine/inprocess/inprocess_engine.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <iterator>
#include <map>
#include <set>
#include <string_view>
#include <thread>
#include <utility>

#include "engine/declared_absent.h"
#include "engine/inprocess/self_test.h"
#include "engine/measure.h"
#include "process/threads.h"

namespace speedbump::engine::inprocess {
namespace {

using std::chrono::milliseconds;

constexpr std::string_view kTsc = "tsc"; // SPEEDBUMP_WITHOUT=tsc
constexpr milliseconds kTakeOutTimeout{10000};
constexpr auto kHeirTime = std::chrono::seconds(60);
constexpr auto kMappingTime = std::chrono::seconds(5);
constexpr milliseconds kBetweenRounds{50};
// In which the pace of the monotonic clock may change against the processor's: of 500 ppm, the most
// that there is, half a millisecond.
constexpr milliseconds kClockPeriod{1000};
// Between looks for threads in memory that is to be unmapped, each of which stops them all.
constexpr milliseconds kFirstPause{5}, kLastPause{640};

// What the heir does: this program is gone, its delays have ended with it. First of all the code is
// as it was again, then the memory goes that it led to.
void take_all_out(const Ledger& ledger, ino_t table) {
    const Clock::time_point begin = Clock::now();
    for (bool is_done = false; !is_done && Clock::now() < begin + kHeirTime;) {
        const std::vector<Entry> entries = ledger.entries();
        const std::vector<Place> places = ledger.places();
        const std::vector<pid_t> having = processes_with(table);
        is_done = having.empty(); // what they have forked meanwhile has them, too
        for (const pid_t pid : having)
            if (!take_out(pid, entries, Clock::now() + kTakeOutTimeout)) is_done = false;
        std::set<pid_t> pids(having.begin(), having.end());
        for (const Place& place : places) {
            // A thread of that process may be at it just now, or at taking it away.
            pids.insert(place.pid);
            is_done = is_done && (place.is_mapped || Clock::now() > begin + kMappingTime);
        }
        for (const pid_t pid : pids)
            if (!clear_away(pid, table, places)) is_done = false;
        if (!is_done) std::this_thread::sleep_for(kBetweenRounds);
    }
}

} // namespace

// The jumps of batches in one process: the one that they were made for, or one that forked from it.
class InprocessEngine::Jumps final : public Attachment {
  public:
    explicit Jumps(pid_t pid) : pid_(pid) {}
    ~Jumps() override {
        for (const auto& batch : batches_) --batch->users;
    }
    void add(std::shared_ptr<Batch> batch) {
        ++batch->users;
        batches_.push_back(std::move(batch));
    }
    const std::vector<std::shared_ptr<Batch>>& batches() const { return batches_; }
    pid_t pid() const { return pid_; }

  private:
    pid_t pid_;
    std::vector<std::shared_ptr<Batch>> batches_;
};

// --- beginning and end

Result<std::unique_ptr<InprocessEngine>> InprocessEngine::create(uint32_t columns, Warn warn) {
    std::unique_ptr<InprocessEngine> engine(new InprocessEngine());
    engine->warn_ = std::move(warn);
    engine->callers_ = std::make_unique<Callers>(engine->warn_);
    auto ticks = measure_ticks(!is_declared_absent(kTsc));
    if (!ticks) return std::move(ticks).error();
    engine->ticks_ = *ticks;
    auto table = Table::create(*ticks, columns);
    if (!table) return std::move(table).error();
    engine->table_ = std::move(*table);
    auto ledger = Ledger::create();
    if (!ledger) return std::move(ledger).error();
    engine->ledger_ = std::move(*ledger);
    // The heir is a copy of this program which needs its memory allocator: no other thread may be
    // in that when it is made.
    if (process::read_threads(getpid()).size() != 1)
        return make_error(ErrorKind::kInvalid,
                          "the in-process engine was opened by a program with several threads");
    auto heir = Heir::start("sb-jumps", {},
                            [ledger = engine->ledger_.get(), inode = engine->table_->inode()] {
                                take_all_out(*ledger, inode);
                            });
    if (!heir) return std::move(heir).error();
    engine->heir_.emplace(std::move(*heir));
    if (auto owned = engine->table_->own(); !owned) return std::move(owned).error();
    return engine;
}

InprocessEngine::~InprocessEngine() = default;

void InprocessEngine::follow_children(bool follow) {
    __atomic_store_n(&table_->settings().follow, follow ? 1u : 0u, __ATOMIC_RELEASE);
}

Capabilities InprocessEngine::capabilities() const {
    return {.name = "inprocess",
            .title = "the in-process engine",
            .narrow = true,
            .wide = false,
            .every = true,
            .schedule = true,
            .jumps = true,
            .outlives_exec = false};
}

// --- calibration

Result<Floors> InprocessEngine::calibrate() {
    auto self = SelfTest::create(*table_);
    if (!self) return std::move(self).error().with_context("calibrate the in-process engine");
    floor_ = (*self)->calibrate(ticks_);
    Floors floors;
    floors.by_kind[static_cast<size_t>(elf::SiteKind::kJump)] = floor_;
    return floors;
}

Result<CalibrationRow> measure_accuracy(const std::vector<nanoseconds>& delays) {
    const auto ticks = measure_ticks(!is_declared_absent(kTsc));
    if (!ticks) return ticks.error();
    const auto table = Table::create(*ticks, 0);
    if (!table) return table.error();
    const auto self = SelfTest::create(**table);
    if (!self) return self.error();
    (*self)->calibrate(*ticks);
    return accuracy_of(
        "inprocess", elf::SiteKind::kJump, delays,
        [&](nanoseconds delay, int calls) { return (*self)->added_ns(delay, calls); });
}

// --- settings

Result<void> InprocessEngine::configure(uint32_t target, const TargetSettings& settings,
                                        uint64_t armed_at_ns, const ProbeSets&) {
    if (target >= kScratchTarget)
        return make_error(ErrorKind::kUnsupported,
                          fmt::format("no more than {} functions can be slowed", kScratchTarget));
    if (target >= root_masks_.size()) root_masks_.resize(target + 1);
    root_masks_[target] = settings.root_mask;
    callers_->configure(target, settings.caller);
    return table_->configure(target, settings, armed_at_ns);
}

void InprocessEngine::handle_events() {
    if (Clock::now() < clock_due_) return;
    table_->set_clock();
    callers_->refresh();
    clock_due_ = Clock::now() + kClockPeriod;
}

Clock::duration InprocessEngine::until_next() const {
    return std::max<Clock::duration>(clock_due_ - Clock::now(), Clock::duration(0));
}

// --- jumps

Result<uint32_t> InprocessEngine::member_of(pid_t pid, uint64_t& roots) {
    auto listed = tree_->list_processes();
    if (!listed) return std::move(listed).error().with_context("list the processes");
    const auto process = std::find_if(listed->begin(), listed->end(), [pid](const auto& one) {
        return one.pid == pid && !one.ended;
    });
    if (process == listed->end()) return errno_error(fmt::format("process {}", pid), ESRCH);
    roots = tree_->member_roots(process->tgid);
    return process->tgid;
}

std::vector<std::shared_ptr<Batch>> InprocessEngine::batches() const {
    const std::lock_guard lock(mutex_);
    return batches_;
}

Result<Attached> InprocessEngine::attach(const FileProbes& probes, std::optional<pid_t> only,
                                         std::vector<RefusedProbe>& refused) {
    if (!only)
        return make_error(ErrorKind::kUnsupported,
                          "the in-process engine puts probes into processes, not into files");
    uint64_t roots = 0;
    const auto tgid = member_of(*only, roots);
    if (!tgid) return tgid.error();
    std::vector<Probe> wanted;
    std::copy_if(probes.probes.begin(), probes.probes.end(), std::back_inserter(wanted),
                 [&](const Probe& probe) { return (root_masks_[probe.target] & roots) != 0; });
    if (wanted.empty()) return Attached();
    auto jumps = std::make_unique<Jumps>(*only);
    // What has forked from a process with jumps has them already.
    for (const auto& batch : batches()) {
        if (!batch->is_in(*only)) continue;
        if (!batch->has_clock_of(*only)) {
            const std::lock_guard lock(mutex_);
            take_out_of(*only, *batch); // it gets its own
            continue;
        }
        const auto has = [&](const Probe& probe) { return batch->has_jump(*only, probe); };
        if (std::erase_if(wanted, has) == 0) continue;
        jumps->add(batch);
        callers_->watch_child(*only, batch);
    }
    if (wanted.empty()) return Attached(std::move(jumps));
    auto sites = find_sites(*only, {probes.file, wanted, probes.set}, refused);
    if (!sites) return std::move(sites).error();
    auto callers = callers_->choose(*only, *sites, refused);
    if (!callers) return std::move(callers).error();
    for (Site& site : *sites)
        site.filter.is_asked =
            site.filter.callers || table_->targets()[site.probe.target].thread != 0;
    if (sites->empty()) return Attached(std::move(jumps));
    auto batch =
        Batch::prepare(*only, std::move(*sites), *table_, callers->ranges, *ledger_, refused);
    if (!batch) return std::move(batch).error();
    (*batch)->tgid = *tgid;
    if (auto done = put_in(*batch, refused); !done) return std::move(done).error();
    callers_->watch(*only, *batch, std::move(*callers));
    jumps->add(std::move(*batch));
    return Attached(std::move(jumps));
}

Result<void> InprocessEngine::put_in(const std::shared_ptr<Batch>& batch,
                                     std::vector<RefusedProbe>& refused) {
    const std::lock_guard lock(mutex_);
    auto done = batch->put_in(*ledger_, refused);
    if (done) {
        batches_.push_back(batch);
        return done;
    }
    batch->forget(*ledger_);
    // No jump leads there, and none has. Where it can't be unmapped it lies there and does nothing.
    if (done.error().kind != ErrorKind::kNotFound) (void)batch->unmap(batch->pid());
    return done;
}

std::vector<Attached> InprocessEngine::attach_each(const FileProbes&,
                                                   const std::vector<pid_t>& pids) {
    return std::vector<Attached>(pids.size());
}

void InprocessEngine::release(std::vector<Attached> attachments) {
    const std::lock_guard lock(mutex_);
    std::vector<std::pair<pid_t, std::shared_ptr<Batch>>> released;
    for (const Attached& one : attachments) {
        const auto* jumps = dynamic_cast<const Jumps*>(one.get());
        if (jumps == nullptr) continue;
        for (const auto& batch : jumps->batches()) released.emplace_back(jumps->pid(), batch);
    }
    attachments.clear();
    std::vector<std::pair<pid_t, std::shared_ptr<Batch>>> left; // with memory that is in use
    const auto is_over = [this](const auto& one) { return take_out_of(one.first, *one.second); };
    std::copy_if(released.begin(), released.end(), std::back_inserter(left), std::not_fn(is_over));
    // Children that were never heard of have them, too.
    const bool is_last = std::any_of(released.begin(), released.end(),
                                     [](const auto& one) { return one.second->users == 0; });
    if (is_last)
        for (const pid_t pid : processes_with(table_->inode()))
            for (const auto& [known, batch] : released)
                if (batch->users == 0 && known != pid && batch->is_in(pid) &&
                    !take_out_of(pid, *batch))
                    left.emplace_back(pid, batch);
    // A thread that stood in their memory goes on behind it, and does not come back. On a busy host
    // the thread that unmaps it may come too late.
    for (milliseconds pause = kFirstPause; !left.empty() && pause <= kLastPause; pause *= 2) {
        std::this_thread::sleep_for(pause);
        std::erase_if(left, is_over);
    }
    for (const auto& [pid, batch] : released)
        if (batch->users == 0) retire(batch);
}

// No process has it any more: what it has counted is kept, and not its memory and descriptor.
void InprocessEngine::retire(const std::shared_ptr<Batch>& batch) {
    batch->forget(*ledger_);
    if (std::erase(batches_, batch) == 0) return;
    std::vector<Counts> last;
    batch->add_counts(last, ticks_);
    add(retired_, last);
}

// With its memory; false: a thread stands there, for now, or it can't be unmapped.
bool InprocessEngine::take_out_of(pid_t pid, const Batch& batch) {
    inject::Quiet quiet = batch.range();
    auto done = take_out(pid, batch.entries(), Clock::now() + kTakeOutTimeout, &quiet);
    if (!done) {
        warn_(done.error().message + ": code that does nothing any more may be left in it");
        return true;
    }
    const bool is_unmapped = quiet.is_quiet && batch.unmap(pid);
    return is_unmapped || !batch.is_in(pid); // else it lies there and does nothing
}

// --- counts

void InprocessEngine::add(std::map<std::pair<uint32_t, pid_t>, Counts>& sums,
                          const std::vector<Counts>& more) {
    for (const Counts& counts : more) {
        Counts& sum = sums[{counts.target, counts.process}];
        sum.target = counts.target;
        sum.process = counts.process;
        sum += counts;
    }
}

Result<std::vector<Counts>> InprocessEngine::read_counts() {
    const std::lock_guard lock(mutex_);
    auto sums = retired_;
    std::vector<Counts> all;
    for (const auto& batch : batches_) batch->add_counts(all, ticks_);
    add(sums, all);
    std::vector<Counts> result;
    for (const auto& [key, counts] : sums) result.push_back(counts);
    return result;
}

void InprocessEngine::forget_counts(uint32_t target, uint32_t tgid) {
    const std::lock_guard lock(mutex_);
    retired_.erase({target, static_cast<pid_t>(tgid)});
    for (const auto& batch : batches_)
        if (batch->tgid == tgid) batch->forget_counts(target);
}

Result<std::unique_ptr<InprocessProbes>> open(uint32_t columns,
                                              std::function<void(const std::string&)> warn) {
    auto engine = InprocessEngine::create(columns, std::move(warn));
    if (!engine) return std::move(engine).error();
    return std::unique_ptr<InprocessProbes>(std::move(*engine));
}

} // namespace speedbump::engine::inprocess
