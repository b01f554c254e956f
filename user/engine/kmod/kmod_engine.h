// SPDX-License-Identifier: MIT
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "engine/engine.h"
#include "engine/features.h"
#include "sbctl/client.h"
#include "util/clock.h"
#include "util/result.h"

namespace speedbump::engine {

// The delay engine in the kernel module (docs/sysfs-interface.md): forwards probes to it through
// its owner device, so that they go with this program, and does itself what the module does not
// know: arming, windows, and taking the cost of a hit off the delays. Loaded disarmed. The module
// tells no processes apart and knows no `every`. Not thread-safe.
class KmodEngine {
  public:
    // Opens the device, and holds the module switched on. kUnsupported: it is not loaded, or is
    // switched off with targets of others that would be live. Destruction leaves it as it was.
    static Result<std::unique_ptr<KmodEngine>> open();
    KmodEngine(const KmodEngine&) = delete;
    KmodEngine& operator=(const KmodEngine&) = delete;

    // As of BpfEngine; a kind of site that the module refuses costs 0.
    Result<Floors> calibrate();
    // Whether 5-byte nops may be probed, as of calibrate().
    bool accepts_nop5() const { return accepts_nop5_; }
    Result<std::vector<CalibrationRow>> measure_accuracy(const std::vector<nanoseconds>& delays);
    // Takes effect with the next tend().
    void configure(uint32_t target, const TargetSettings& settings, uint64_t window_origin_ns);
    void arm(bool armed);

    // Puts a probe into a file (an open descriptor) for each of these processes and all that
    // descend from it; of a process that is gone there is none. The errno is the module's: ENOSPC
    // when it has no room for more.
    Result<void> attach(int file, const Probe& probe, const std::vector<pid_t>& roots);

    // Begins and ends windows, and passes on changed settings; to be called until_next_change()
    // from now at the latest.
    void tend();
    Clock::duration until_next_change() const;

    // `process` of each is 0. What went on while disarmed is not counted.
    std::vector<Counts> read_counts();
    // Processes of the trees that the module could not follow while this was open, as of
    // read_counts(); other sessions' are among them.
    uint64_t lost_members() const { return lost_members_; }
    // What others did to the module that keeps these delays from happening, once; or empty.
    std::string take_trouble();

  private:
    class OwnProbe;
    struct Setting {
        TargetSettings settings;
        uint64_t window_origin_ns = 0;
    };
    // A target of the module.
    struct Spot {
        uint32_t target = 0;
        elf::SiteKind kind = elf::SiteKind::kSingleStep;
        nanoseconds asked{0};  // net of the probe's own cost, 0: no delay now
        nanoseconds latest{0}; // the last that was not 0
        sbctl::Target seen{};  // its line as last read
    };

    KmodEngine(sbctl::Owner owner, uint64_t lost_before)
        : owner_(std::move(owner)), lost_before_(lost_before) {}
    nanoseconds wanted(uint32_t target) const;
    // The delay to ask of the module for one of `asked`.
    nanoseconds spin_of(nanoseconds asked, elf::SiteKind kind) const;
    // Reads the module's counts and adds what is new.
    Result<void> refresh();
    // Tells the module of the delays that have changed.
    Result<void> push();
    void apply();

    sbctl::Owner owner_;
    uint64_t lost_before_ = 0; // as the module counted when this was opened
    uint64_t lost_members_ = 0;
    bool armed_ = false;
    bool accepts_nop5_ = true;
    nanoseconds outside_[3] = {}; // the part of a delayed hit outside the module's spin, by kind
    Clock::time_point next_change_ = Clock::time_point::max();
    std::vector<Setting> settings_;     // by target
    std::map<std::string, Spot> spots_; // by the module's name of it
    std::map<uint32_t, Counts> counts_; // by target
    std::string trouble_;
    bool trouble_told_ = false;
};

} // namespace speedbump::engine
