// SPDX-License-Identifier: MIT
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "engine/inprocess/batch.h"
#include "engine/inprocess/callers.h"
#include "engine/inprocess/ledger.h"
#include "engine/inprocess/open.h"
#include "engine/inprocess/table.h"
#include "inject/target_lock.h"
#include "util/clock.h"
#include "util/heir.h"

namespace speedbump::engine::inprocess {

// Delays calls by jumps in the processes themselves (docs/inprocess.md): each process has its own,
// those that fork from it have them with its memory. Whatever ends this program, the delays end
// with it, and a process apart takes the jumps out.
class InprocessEngine final : public InprocessProbes {
  public:
    using Warn = std::function<void(const std::string&)>;
    static Result<std::unique_ptr<InprocessEngine>> create(uint32_t columns, Warn warn);
    ~InprocessEngine() override;

    void follow(tree::ProcessTree& tree) override { tree_ = &tree; }
    void follow_children(bool follow) override;

    Capabilities capabilities() const override;
    Result<Floors> calibrate() override;
    nanoseconds floor(elf::SiteKind) const override { return floor_; }
    Result<void> configure(uint32_t target, const TargetSettings& settings, uint64_t armed_at_ns,
                           const ProbeSets& sets) override;
    void arm(bool armed) override { table_->arm(armed); }
    uint32_t* armed_word() override { return table_->armed_word(); }
    void handle_events() override;
    Clock::duration until_next() const override;
    Schedule* schedule() override { return table_->schedule(); }

    // Only for one process, in which a thread of its own maps memory, and of which all threads
    // stand still for a moment. kNotFound as well: it does not have the file mapped.
    Result<Attached> attach(const FileProbes& probes, std::optional<pid_t> only,
                            std::vector<RefusedProbe>& refused) override;
    std::vector<Attached> attach_each(const FileProbes& probes,
                                      const std::vector<pid_t>& pids) override;
    void release(std::vector<Attached> attachments) override;
    Result<std::vector<Counts>> read_counts() override;
    void forget_counts(uint32_t target, uint32_t tgid) override;

  private:
    class Jumps;
    using Having = std::pair<pid_t, std::shared_ptr<Batch>>; // a process that has it
    // What could not be taken out yet.
    struct Left {
        Having what;
        Clock::duration pause;
        Clock::time_point next;
    };
    InprocessEngine() = default;
    Result<uint32_t> member_of(pid_t pid, uint64_t& roots);
    Result<Attached> attach_to(uint32_t tgid, const FileProbes& probes, std::vector<Probe> wanted,
                               pid_t pid, std::vector<RefusedProbe>& refused);
    Result<void> put_in(const inject::Turn& turn, const std::shared_ptr<Batch>& batch,
                        std::vector<RefusedProbe>& refused);
    // What a process still has of a batch: its jumps, where they can't be taken out, or the memory
    // alone, where a thread stands in it or it can't be unmapped for now.
    enum class Rest { kNothing, kMemory, kJumps };
    Rest take_out_of(const inject::Turn& turn, const Batch& batch, Clock::duration timeout);
    Rest take_out_of(pid_t pid, const Batch& batch, Clock::duration timeout);
    void take_out_of_children(const std::vector<Having>& released, std::vector<Having>& in_use,
                              Clock::duration timeout);
    Result<void> take_out_what_is_left(const inject::Turn& turn);
    void keep_trying(pid_t pid, const std::shared_ptr<Batch>& batch);
    void try_again();
    bool is_left(const std::shared_ptr<Batch>& batch) const;
    void retire(const std::shared_ptr<Batch>& batch);
    static void add(std::map<std::pair<uint32_t, pid_t>, Counts>& sums,
                    const std::vector<Counts>& more);

    Warn warn_;
    tree::ProcessTree* tree_ = nullptr;
    Ticks ticks_;
    nanoseconds floor_{0};
    std::unique_ptr<Table> table_;
    Clock::time_point clock_due_ = Clock::now(); // of the table
    std::unique_ptr<Ledger> ledger_;
    std::optional<Heir> heir_;
    std::unique_ptr<Callers> callers_;
    std::vector<uint64_t> root_masks_; // by target
    std::mutex mutex_; // release() is called by other threads; before anybody's turn
    std::vector<std::shared_ptr<Batch>> batches_; // that are in some process
    std::vector<Left> left_;
    std::string trouble_;                                  // why the last could not be taken out
    std::map<std::pair<uint32_t, pid_t>, Counts> retired_; // what others have counted
};

} // namespace speedbump::engine::inprocess
