// SPDX-License-Identifier: MIT
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "engine/engine.h"
#include "engine/features.h"
#include "sbctl/client.h"
#include "tree/process_tree.h"
#include "util/clock.h"
#include "util/result.h"

namespace speedbump::engine {

// The delay engine in the kernel module (docs/sysfs-interface.md): forwards probes to it through
// its owner device, so that they go with this program, and does itself what the module does not
// know: arming, windows, and taking the cost of a hit off the delays. Loaded disarmed. The module
// tells no processes apart and knows no `every`. Not thread-safe.
class KmodEngine final : public ProbeEngine {
  public:
    using Warn = std::function<void(const std::string&)>;
    // Opens the device, and holds the module switched on. kUnsupported: it is not loaded, or is
    // switched off with targets of others that would be live. Destruction leaves it as it was.
    // `warn` is told what others do to the module that keeps these delays from happening, once.
    static Result<std::unique_ptr<KmodEngine>> open(Warn warn);
    // The tree whose members attach() is to delay; must outlive this.
    void follow(tree::ProcessTree& tree) { tree_ = &tree; }

    Capabilities capabilities() const override;
    // A kind of site that the module refuses costs 0.
    Result<Floors> calibrate() override;
    nanoseconds floor(elf::SiteKind kind) const override {
        return floors_.by_kind[static_cast<size_t>(kind)];
    }
    Result<std::vector<CalibrationRow>> measure_accuracy(const std::vector<nanoseconds>& delays);
    Result<void> configure(uint32_t target, const TargetSettings& settings, uint64_t armed_at_ns,
                           const ProbeSets& sets) override;
    void arm(bool armed) override;

    // Its probes go with this engine, not before. Who does not descend from the tree pays nothing
    // for them, so they are never narrow.
    Result<Attached> attach(const FileProbes& probes, std::optional<pid_t> only,
                            std::vector<RefusedProbe>& refused) override;
    std::vector<Attached> attach_each(const FileProbes& probes,
                                      const std::vector<pid_t>& pids) override;
    void release(std::vector<Attached> attachments) override;
    // Puts a probe into a file (an open descriptor) for each of these processes and all that
    // descend from it; of a process that is gone there is none. The errno is the module's: ENOSPC
    // when it has no room for more.
    Result<void> add(int file, const Probe& probe, const std::vector<pid_t>& roots);

    // Begins and ends windows, and passes on changed settings.
    void tend() override;
    Clock::duration until_next() const override;

    // `process` of each is 0. What went on while disarmed is not counted.
    Result<std::vector<Counts>> read_counts() override;
    void forget_counts(uint32_t, uint32_t) override {}
    // As of read_counts(); other sessions' members are among them.
    Losses losses() const override { return {.members = lost_members_}; }

  private:
    class OwnProbe;
    struct Setting {
        TargetSettings settings;
        uint64_t armed_at_ns = 0;
    };
    // A target of the module.
    struct Spot {
        uint32_t target = 0;
        elf::SiteKind kind = elf::SiteKind::kSingleStep;
        nanoseconds asked{0};  // net of the probe's own cost, 0: no delay now
        nanoseconds latest{0}; // the last that was not 0
        sbctl::Target seen{};  // its line as last read
    };

    KmodEngine(sbctl::Owner owner, uint64_t lost_before, Warn warn)
        : warn_(std::move(warn)), owner_(std::move(owner)), lost_before_(lost_before) {}
    Result<std::vector<pid_t>> topmost(uint64_t mask);
    nanoseconds wanted(uint32_t target) const;
    // The delay to ask of the module for one of `asked`.
    nanoseconds spin_of(nanoseconds asked, elf::SiteKind kind) const;
    // Reads the module's counts and adds what is new.
    Result<void> refresh();
    // Tells the module of the delays that have changed.
    Result<void> push();
    void apply();

    Warn warn_;
    tree::ProcessTree* tree_ = nullptr;
    sbctl::Owner owner_;
    uint64_t lost_before_ = 0; // as the module counted when this was opened
    uint64_t lost_members_ = 0;
    bool armed_ = false;
    bool accepts_nop5_ = true;
    Floors floors_;
    nanoseconds outside_[3] = {}; // the part of a delayed hit outside the module's spin, by kind
    Clock::time_point next_change_ = Clock::time_point::max();
    std::vector<Setting> settings_;     // by target
    std::set<uint32_t> attached_;       // targets that attach() is done with
    std::map<std::string, Spot> spots_; // by the module's name of it
    std::map<uint32_t, Counts> counts_; // by target
    std::string trouble_;
    bool trouble_told_ = false;
};

} // namespace speedbump::engine
