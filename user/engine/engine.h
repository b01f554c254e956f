// SPDX-License-Identifier: MIT
#pragma once

#include <sys/types.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "abi.h"
#include "elf/placement.h"
#include "engine/schedule.h"
#include "targets/target.h"
#include "util/clock.h"
#include "util/result.h"

namespace speedbump::engine {

using std::chrono::nanoseconds;

enum class EngineChoice { kAuto, kBpf, kKmod, kInprocess };

// Live settings of one target; times count from the moment the session is armed.
struct TargetSettings {
    nanoseconds delay{0};
    uint64_t every = 1;
    nanoseconds start{0};
    nanoseconds duration{0}; // 0: without end
    uint64_t root_mask = ~uint64_t{0};
    bool enabled = true;
    targets::Mode mode = targets::Mode::kSpin; // this and what follows: require_options()
    std::optional<targets::Pattern> caller{};
    std::optional<targets::Pattern> thread{};
    // The delay is that of this column of the engine's schedule, instead of `delay`.
    std::optional<uint32_t> column{};
};

// What happened at one target in one process since the session began.
struct Counts {
    uint32_t target = 0;
    pid_t process = 0; // 0: could not be told apart
    uint64_t hits = 0;
    uint64_t delays = 0;
    nanoseconds requested{0};
    nanoseconds measured{0};

    // Adds what was counted; whose it is stays. Times stop at the largest there is: some were
    // written by targets.
    Counts& operator+=(const Counts& other) {
        hits += other.hits;
        delays += other.delays;
        requested += std::min(other.requested, nanoseconds::max() - requested);
        measured += std::min(other.measured, nanoseconds::max() - measured);
        return *this;
    }
};

// A Python function that a line of the targets file selects in one process.
struct PythonMatch {
    pid_t process = 0;
    size_t line = 0;
    std::string module;
    std::string name;
    std::string file;
};

// One place to probe, already resolved.
struct Probe {
    uint32_t target = 0;
    uint64_t file_offset = 0;
    elf::SiteKind kind = elf::SiteKind::kSingleStep;
    std::optional<uint32_t> return_distance{}; // elf::ProbeSite
};

// The floor of each kind of site on this host: what a hit costs with a delay of 0.
struct Floors {
    nanoseconds by_kind[4] = {};
};

// A probe that was refused: by the kernel with its errno, or by the engine, which says why.
struct RefusedProbe {
    Probe probe;
    int error_number = 0;
    std::string reason{};
};

// Probes of one file, in a set of that number (modulo SB_SET_MASK + 1).
struct FileProbes {
    int file = -1; // an open descriptor of it
    std::span<const Probe> probes;
    uint32_t set = 0;
};

// The sets of probes that a file has in place, and which one's hits count. Between two sets the
// file changes without a hit that is lost or counts twice, where these steps are taken: {A, B,
// false}; all of B is put in place; {A, B, true}; all of A is taken out; {B, B}.
struct ProbeSets {
    uint32_t older = 0;
    uint32_t newer = 0; // the same: there is one set
    bool newer_counts = false;

    uint32_t word() const { return SB_SETS(older, newer, newer_counts); }
};

// Probes that are in place. Destruction takes them out, which may wait for the kernel.
class Attachment {
  public:
    Attachment() = default;
    Attachment(const Attachment&) = delete;
    Attachment& operator=(const Attachment&) = delete;
    virtual ~Attachment() = default;
};
using Attached = std::unique_ptr<Attachment>;

// What an engine can do. A session asks this, never which engine it has.
struct Capabilities {
    std::string name;      // in reports: "bpf", "kmod"
    std::string title;     // in messages: "the kernel module"
    bool narrow = false;   // probes can be aimed at one process
    bool wide = true;      // and at all who map a file
    bool every = true;     // of the calls each Nth can be delayed
    bool nop5 = true;      // 5-byte nops may be probed; known after calibrate()
    bool schedule = false; // delays by slices of time: schedule()
    bool jumps = false;    // its probes are jumps, for which places are others (elf/jump_site.h)
    bool outlives_exec = true; // its probes in a process are still there after an exec
};

// What an engine could not take in since it was opened.
struct Losses {
    uint64_t members = 0; // processes that it could not follow
    uint64_t counts = 0;
};

// What delays calls. Made disarmed; destruction ends its delays and takes out what it has put into
// processes. Not thread-safe, but for what says so.
class DelayEngine {
  public:
    DelayEngine() = default;
    DelayEngine(const DelayEngine&) = delete;
    DelayEngine& operator=(const DelayEngine&) = delete;
    virtual ~DelayEngine() = default;

    virtual Capabilities capabilities() const = 0;
    // What a call costs with a delay of 0, where the target is of this kind.
    virtual nanoseconds floor(elf::SiteKind kind) const = 0;

    // Takes effect with the next handle_events() at the latest. Windows count from `armed_at_ns`
    // (monotonic_ns()); 0: not armed yet, none.
    virtual Result<void> configure(uint32_t target, const TargetSettings& settings,
                                   uint64_t armed_at_ns, const ProbeSets& sets) = 0;
    virtual void arm(bool armed) = 0;
    // A word that is 0 while disarmed: a signal handler, which may call next to nothing, ends all
    // delays by a 0 there. Lives as long as the engine, a HookEngine's until close(); nullptr:
    // none.
    virtual uint32_t* armed_word() { return nullptr; }

    // Readable when handle_events() has something to do; -1: it never is.
    virtual int fd() const { return -1; }
    // Does what is due; never waits. To be called until_next() from now at the latest.
    virtual void handle_events() {}
    virtual Clock::duration until_next() const { return Clock::duration::max(); }

    // nullptr where it was opened without columns, or can have none.
    virtual Schedule* schedule() { return nullptr; }

    // All counts so far, or an error.
    virtual Result<std::vector<Counts>> read_counts() = 0;
    virtual Losses losses() const { return {}; }
};

// Delays calls by probes in files. `process` of its counts is a tgid of the initial PID namespace,
// 0 where they could not be told apart.
class ProbeEngine : public DelayEngine {
  public:
    // Measures on this host what a hit costs, and takes it off the delays from then on. Only before
    // the first probe.
    virtual Result<Floors> calibrate() = 0;

    // Puts probes of configured targets in place, for one process or for all who map the file, of
    // which the members of the tree alone are delayed. Those that the kernel refuses one by one are
    // left out and added to `refused`. An error is one that concerns all of them; a later call with
    // the same probes goes on where this one ended.
    virtual Result<Attached> attach(const FileProbes& probes, std::optional<pid_t> only,
                                    std::vector<RefusedProbe>& refused) = 0;
    // The same for each of these processes, at once where that can be: nullptr for those where it
    // can't, or was refused.
    virtual std::vector<Attached> attach_each(const FileProbes& probes,
                                              const std::vector<pid_t>& pids) = 0;
    // Takes out all of these in one wait. Any thread may call it.
    virtual void release(std::vector<Attached> attachments) = 0;

    // Counters of a process that has ended, which the caller keeps from now on.
    virtual void forget_counts(uint32_t target, uint32_t tgid) = 0;
};

// How the functions that some lines of the targets file select are told apart while hooks are in:
// as other targets than that of their line.
struct Regrouping {
    std::vector<size_t>
        lines; // whose functions it is about; with none each line is one target again
    std::vector<targets::TargetLine> groups; // Python; the last that matches decides
    std::vector<size_t> line_of; // of each group: the line whose target its functions are; unless
                                 // it is an exclusion
};

// What a HookEngine has found in processes.
struct HookReport {
    bool ever_attached = false;
    std::optional<Error> first_failure; // why the first process that could not be hooked was not
    std::vector<PythonMatch> matches;
};

// Delays calls by hooks in the interpreters of processes, each of which finds out for itself what
// a line of the targets file selects. PIDs, those of its counts too, are as this program sees them.
class HookEngine : public DelayEngine {
  public:
    // The lines (indexes) that are its to slow.
    virtual std::vector<size_t> lines() const = 0;
    // The target that a line stands for.
    virtual void add_line(uint32_t target, size_t line) = 0;

    // Has functions told apart in all processes, those that are hooked later too, and waits until
    // all have said that they do. kTimeout: a process does not; it goes on as before.
    virtual Result<void> regroup(Regrouping regrouping) = 0;

    // Makes it ready to hook. Settings do not outlive close(); the counts of before do.
    virtual Result<void> open() = 0;
    virtual bool is_open() const = 0;
    // Takes all hooks out. While it is closed calls do nothing.
    virtual void close() = 0;

    // Hooks those of the processes that it can; roots are their root bits. `wait`: until all are
    // hooked or have failed; else handle_events() takes in what came of it.
    virtual void attach(const std::vector<std::pair<pid_t, uint64_t>>& processes_and_roots,
                        bool wait) = 0;
    // What happens in the tree, of every fork and in its order, between these two.
    virtual void begin_events() = 0;
    virtual void end_events() = 0;
    virtual void forked(pid_t parent, pid_t child, uint64_t roots) = 0;
    virtual void execed(pid_t pid) = 0;
    virtual void exited(pid_t pid) = 0;

    // For the front of the PYTHONPATH of a program, which is then hooked before its first line; so
    // are the Pythons that it starts, unless `only` (0: none) names its process.
    virtual Result<std::string> path_entry(pid_t only) = 0;
    virtual HookReport report() const = 0;
};

// A time of this program's monotonic_ns() on the host's clock, which BPF and the hooks compare
// with, whatever time namespace this program is in; 0 stays 0.
uint64_t on_host_clock(uint64_t here_ns);

// Writes settings into an entry of a table that hooks read meanwhile (bpf/abi.h). Windows are
// relative to `window_origin_ns` (CLOCK_MONOTONIC); 0: not armed yet, so none.
void write_target(sb_target& entry, const TargetSettings& settings, uint64_t window_origin_ns,
                  const ProbeSets& sets);

} // namespace speedbump::engine
