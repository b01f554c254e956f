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
constexpr milliseconds kTurnTimeout{10000}, kTakeOutTimeout{10000};
// What was in vain once is tried again with less patience, as the session waits for it.
constexpr milliseconds kRetryTimeout{500}, kFirstRetry{1000}, kLastRetry{60000};
constexpr auto kHeirTime = std::chrono::seconds(60);
constexpr auto kMappingTime = std::chrono::seconds(5);
constexpr milliseconds kBetweenRounds{50};
// In which the pace of the monotonic clock may change against the processor's: of 500 ppm, the most
// that there is, half a millisecond.
constexpr milliseconds kClockPeriod{1000};
// Between looks for threads in memory that is to be unmapped, each of which stops them all.
constexpr milliseconds kFirstPause{5}, kLastPause{640};

bool take_all_out_of(pid_t pid, const std::vector<Entry>& entries) {
    const auto turn = inject::Turn::take_if_any(pid, Clock::now() + kTurnTimeout);
    if (!turn) return turn.error().error_number == ESRCH;
    return take_out(*turn, entries, Clock::now() + kTakeOutTimeout).has_value();
}

bool clear_all_away(pid_t pid, ino_t table, const std::vector<Place>& places) {
    const auto turn = inject::Turn::take_if_any(pid, Clock::now() + kTurnTimeout);
    return turn ? clear_away(*turn, table, places) : turn.error().error_number == ESRCH;
}

// What the heir does: this program is gone, its delays have ended with it. First of all the code is
// as it was again, then the memory goes that it led to.
void take_all_out(const Ledger& ledger, ino_t table) {
    const Clock::time_point begin = Clock::now();
    for (bool is_done = false; !is_done && Clock::now() < begin + kHeirTime;) {
        const std::vector<Entry> entries = ledger.entries();
        const std::vector<Place> places = ledger.places();
        const std::vector<pid_t> having = processes_with(table);
        is_done = having.empty(); // what they have forked meanwhile has them, too
        std::set<pid_t> pids(having.begin(), having.end());
        for (const Place& place : places) {
            // A thread of that process may be at it just now, or at taking it away.
            pids.insert(place.pid);
            is_done = is_done && (place.is_mapped || Clock::now() > begin + kMappingTime);
        }
        for (const pid_t pid : having)
            if (!take_all_out_of(pid, entries)) {
                is_done = false;
                pids.erase(pid); // its jumps lead to that memory
            }
        for (const pid_t pid : pids)
            if (!clear_all_away(pid, table, places)) is_done = false;
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

// What is left is the heir's from here on.
InprocessEngine::~InprocessEngine() {
    if (heir_ && !left_.empty()) heir_->begin();
}

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
    clock_due_ = Clock::now() + kClockPeriod;
    // Not while memory that it writes to is taken out; that may last.
    const std::unique_lock lock(mutex_, std::try_to_lock);
    if (!lock) return;
    callers_->refresh();
    try_again();
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
    return attach_to(*tgid, probes, std::move(wanted), *only, refused);
}

Result<Attached> InprocessEngine::attach_to(uint32_t tgid, const FileProbes& probes,
                                            std::vector<Probe> wanted, pid_t pid,
                                            std::vector<RefusedProbe>& refused) {
    const std::lock_guard lock(mutex_);
    auto jumps = std::make_unique<Jumps>(pid);
    // What has forked from a process with jumps has them already.
    std::vector<std::shared_ptr<Batch>> of_other_clock;
    for (const auto& batch : batches_) {
        if (!batch->is_in(pid)) continue;
        if (!batch->has_clock_of(pid)) {
            of_other_clock.push_back(batch);
            continue;
        }
        const auto has = [&](const Probe& probe) { return batch->has_jump(pid, probe); };
        if (std::erase_if(wanted, has) == 0) continue;
        std::erase_if(left_, [&](const Left& one) { return one.what == Having(pid, batch); });
        jumps->add(batch);
        callers_->watch_child(pid, batch);
    }
    if (wanted.empty() && of_other_clock.empty()) return Attached(std::move(jumps));
    const auto turn = inject::Turn::take(pid, Clock::now() + kTurnTimeout);
    if (!turn) return turn.error();
    if (auto done = take_out_what_is_left(*turn); !done) return std::move(done).error();
    for (const auto& batch : of_other_clock) // it gets its own
        if (take_out_of(*turn, *batch, kTakeOutTimeout) != Rest::kNothing) keep_trying(pid, batch);
    auto sites = find_sites(pid, {probes.file, wanted, probes.set}, refused);
    if (!sites) return std::move(sites).error();
    auto callers = callers_->choose(pid, *sites, refused);
    if (!callers) return std::move(callers).error();
    for (Site& site : *sites)
        site.filter.is_asked =
            site.filter.callers || table_->targets()[site.probe.target].thread != 0;
    if (sites->empty()) return Attached(std::move(jumps));
    auto batch =
        Batch::prepare(*turn, std::move(*sites), *table_, callers->ranges, *ledger_, refused);
    if (!batch) return std::move(batch).error();
    (*batch)->tgid = tgid;
    if (auto done = put_in(*turn, *batch, refused); !done) return std::move(done).error();
    callers_->watch(pid, *batch, std::move(*callers));
    jumps->add(std::move(*batch));
    return Attached(std::move(jumps));
}

Result<void> InprocessEngine::put_in(const inject::Turn& turn, const std::shared_ptr<Batch>& batch,
                                     std::vector<RefusedProbe>& refused) {
    auto done = batch->put_in(turn, *ledger_, refused);
    if (done) {
        batches_.push_back(batch);
        return done;
    }
    // No jump leads there, but a thread may stand there already.
    if (take_out_of(turn, *batch, kRetryTimeout) == Rest::kNothing)
        batch->forget(*ledger_);
    else
        keep_trying(turn.pid(), batch);
    return done;
}

std::vector<Attached> InprocessEngine::attach_each(const FileProbes&,
                                                   const std::vector<pid_t>& pids) {
    return std::vector<Attached>(pids.size());
}

void InprocessEngine::release(std::vector<Attached> attachments) {
    const std::lock_guard lock(mutex_);
    std::vector<Having> released;
    for (const Attached& one : attachments) {
        const auto* jumps = dynamic_cast<const Jumps*>(one.get());
        if (jumps == nullptr) continue;
        for (const auto& batch : jumps->batches()) released.emplace_back(jumps->pid(), batch);
    }
    attachments.clear();
    std::vector<Having> in_use;
    std::set<pid_t> stuck; // what is in the way is so for all of its files
    const Clock::time_point end = Clock::now() + kTakeOutTimeout;
    for (const auto& [pid, batch] : released) {
        const Clock::duration time = std::max<Clock::duration>(end - Clock::now(), kRetryTimeout);
        const Rest rest = stuck.contains(pid) ? Rest::kJumps : take_out_of(pid, *batch, time);
        if (rest == Rest::kMemory) in_use.emplace_back(pid, batch);
        if (rest != Rest::kJumps) continue;
        stuck.insert(pid);
        keep_trying(pid, batch);
    }
    take_out_of_children(released, in_use, kTakeOutTimeout);
    // A thread that stood in their memory goes on behind it, and does not come back. On a busy host
    // the thread that unmaps it may come too late.
    for (milliseconds pause = kFirstPause; !in_use.empty() && pause <= kLastPause; pause *= 2) {
        std::this_thread::sleep_for(pause);
        std::erase_if(in_use, [this](const Having& one) {
            return take_out_of(one.first, *one.second, kTakeOutTimeout) == Rest::kNothing;
        });
    }
    for (const auto& [pid, batch] : in_use) keep_trying(pid, batch);
    for (const auto& [pid, batch] : released)
        if (batch->users == 0 && !is_left(batch)) retire(batch);
}

// Children that were never heard of have them, too, and what they fork while they are looked for.
void InprocessEngine::take_out_of_children(const std::vector<Having>& released,
                                           std::vector<Having>& in_use, Clock::duration timeout) {
    std::set<Having> looked_at(released.begin(), released.end());
    for (const Left& one : left_) looked_at.insert(one.what);
    std::vector<std::shared_ptr<Batch>> last;
    for (const auto& [pid, batch] : released)
        if (batch->users == 0) last.push_back(batch);
    const Clock::time_point end = Clock::now() + timeout;
    for (bool is_new = !last.empty(); is_new && Clock::now() < end;) {
        is_new = false;
        for (const pid_t pid : processes_with(table_->inode()))
            for (const auto& batch : last) {
                if (!batch->is_in(pid) || !looked_at.emplace(pid, batch).second) continue;
                is_new = true;
                const Rest rest = take_out_of(pid, *batch, timeout);
                if (rest == Rest::kMemory) in_use.emplace_back(pid, batch);
                if (rest == Rest::kJumps) keep_trying(pid, batch);
            }
    }
}

// No process has it any more: what it has counted is kept, and not its memory and descriptor.
void InprocessEngine::retire(const std::shared_ptr<Batch>& batch) {
    batch->forget(*ledger_);
    if (std::erase(batches_, batch) == 0) return;
    std::vector<Counts> last;
    batch->add_counts(last, ticks_);
    add(retired_, last);
}

InprocessEngine::Rest InprocessEngine::take_out_of(const inject::Turn& turn, const Batch& batch,
                                                   Clock::duration timeout) {
    inject::Quiet quiet = batch.range();
    auto done = take_out(turn, batch.entries(), Clock::now() + timeout, &quiet);
    if (!done) {
        trouble_ = done.error().message;
        return Rest::kJumps;
    }
    const bool is_unmapped = quiet.is_quiet && batch.unmap(turn);
    return is_unmapped || !batch.is_in(turn.pid()) ? Rest::kNothing : Rest::kMemory;
}

InprocessEngine::Rest InprocessEngine::take_out_of(pid_t pid, const Batch& batch,
                                                   Clock::duration timeout) {
    const auto turn = inject::Turn::take_if_any(pid, Clock::now() + timeout);
    if (turn) return take_out_of(*turn, batch, timeout);
    if (!batch.may_be_in(pid)) return Rest::kNothing;
    trouble_ = turn.error().message;
    return Rest::kJumps;
}

// --- what could not be taken out

void InprocessEngine::keep_trying(pid_t pid, const std::shared_ptr<Batch>& batch) {
    if (!trouble_.empty())
        warn_(std::exchange(trouble_, {}) +
              ": code that does nothing any more is left in it; trying again");
    const Having what(pid, batch);
    if (std::none_of(left_.begin(), left_.end(), [&](const Left& one) { return one.what == what; }))
        left_.push_back({what, kFirstRetry, Clock::now() + kFirstRetry});
}

bool InprocessEngine::is_left(const std::shared_ptr<Batch>& batch) const {
    return std::any_of(left_.begin(), left_.end(),
                       [&](const Left& one) { return one.what.second == batch; });
}

// A process that lets nothing be taken out gets nothing more: else each attempt would leave its
// own.
Result<void> InprocessEngine::take_out_what_is_left(const inject::Turn& turn) {
    for (const Left& one : left_) {
        const auto& [pid, batch] = one.what;
        if (pid != turn.pid() || batch->users != 0) continue;
        if (take_out_of(turn, *batch, kRetryTimeout) == Rest::kJumps)
            return make_error(ErrorKind::kTimeout, std::exchange(trouble_, {}));
    }
    return {};
}

// The session waits for it: what it has no time for comes later.
void InprocessEngine::try_again() {
    std::vector<Having> out, in_use;
    const Clock::time_point begin = Clock::now();
    std::erase_if(left_, [&](Left& one) {
        const auto& [pid, batch] = one.what;
        if (Clock::now() < one.next || Clock::now() > begin + kRetryTimeout) return false;
        if (take_out_of(pid, *batch, kRetryTimeout) == Rest::kNothing) {
            out.push_back(one.what);
            return true;
        }
        one.pause = std::min<Clock::duration>(2 * one.pause, kLastRetry);
        one.next = Clock::now() + one.pause;
        return false;
    });
    trouble_.clear(); // it was told
    if (out.empty()) return;
    take_out_of_children(out, in_use, kRetryTimeout); // that it has forked meanwhile
    for (const auto& [pid, batch] : in_use) keep_trying(pid, batch);
    for (const auto& [pid, batch] : out)
        if (batch->users == 0 && !is_left(batch)) retire(batch);
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
