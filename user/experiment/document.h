// SPDX-License-Identifier: MIT
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "experiment/model/sequence.h"
#include "util/result.h"

// What an experiment measured: passive structs, and their versioned JSON (docs/json.md, schema
// speedbump/experiment/1). Everything that is concluded is concluded from these (analysis.h).
namespace speedbump::experiment {

using std::chrono::nanoseconds;

// More than any time of a document, 36 years of all threads together: sums of two are times still.
inline constexpr nanoseconds kLongestTime{int64_t{1} << 60};

enum class ArmKind {
    kOff,   // no probe is there
    kProbe, // probes are there, delay 0
    kSham,  // as kProbe, taken for a dose in the analysis: must show no effect
    kDose,
};

// What a block tries in one slice of time.
struct Arm {
    ArmKind kind = ArmKind::kProbe;
    size_t target = 0;    // kDose
    nanoseconds delay{0}; // kDose
};

// The time of calls of a latency progress point.
struct Latency {
    nanoseconds p50{0}, p90{0}, p99{0};
};

// What happened at a device's interface in a slice, of all processes (kDevice progress points).
// `busy` is told when it is proven, also of time before the slice: only sums over slices tell.
struct DeviceReading {
    uint64_t launches = 0;
    uint64_t waits = 0;       // that ended
    uint64_t gaps = 0;        // how often events were lost, and all that was known with them
    uint64_t most_queued = 0; // launches that nobody knew to be done
    nanoseconds wait{0};      // in which somebody in the process waited
    nanoseconds launching{0}; // in launches whose ends are told
    nanoseconds held{0};      // of that: launches waited for room in a queue
    nanoseconds unsure{0};    // of that: it is not known whether they did
    nanoseconds watched{0};   // since what is queued is known
    nanoseconds idle{0};      // of that: nothing was queued
    nanoseconds busy{0};      // of that: something certainly was
};

// One arm of one block, as measured after the settling time.
struct Slice {
    Arm arm;
    nanoseconds start{0}; // since the experiment began
    nanoseconds length{0};
    std::vector<uint64_t> progress;                     // units of each progress point
    std::vector<nanoseconds> progress_time;             // in which these were counted
    std::vector<std::optional<Latency>> latency;        // of each progress point
    std::vector<std::optional<DeviceReading>> device{}; // of each, or empty
    std::vector<uint64_t> calls;                        // of each target; empty with kOff
    nanoseconds injected{0}; // kDose: by what the target's calls were slowed against kProbe
    nanoseconds waited{0};   // of all threads: able to run, without a CPU
};

struct Block {
    bool confirms = false; // a fresh block for the targets that stood out in the others
    std::vector<Slice> slices;
};

// What one target did in a run of short slices, by slice. A hit counts for the slice that it came
// in.
struct SlicedTarget {
    nanoseconds dose{0};               // the full one; 0: the target was not part of the run
    uint64_t calls = 0;                // in all slices together
    std::vector<Step> steps;           // that were drawn
    std::vector<uint64_t> injected_ns; // by which its calls were slowed
    std::vector<uint64_t> delays;      // delayed calls
    // Calls and delays are of so many hosts together, on average; injected time is their mean.
    double hosts = 1;
};

// All targets at once in short slices, which the clock switched (decision 12): in order, and
// without a gap but where the schedule ran out.
struct Sliced {
    nanoseconds slice{0};
    double chance = kEvenChance;              // of a dose, of each target in each slice
    std::vector<std::vector<uint64_t>> units; // of each progress point, by slice
    // The same of how long after the slice's beginning they were done, all of them together; empty:
    // not known.
    std::vector<std::vector<uint64_t>> since_ns;
    std::vector<SlicedTarget> targets; // of each of the document's
    nanoseconds waited{0};             // as Slice's, over all slices

    size_t slices() const { return units.empty() ? 0 : units.front().size(); }
};

enum class Role {
    kTarget,
    kPositive, // known to be serial: its criticality must be near 1
};

struct Target {
    std::string name; // as in the targets file
    Role role = Role::kTarget;
    std::vector<std::string> functions; // that it names; the first ones of many
    size_t function_count = 0;
    std::vector<nanoseconds> doses;
    std::vector<std::string> notes; // why a dose was given up, why nothing was measured
    // Of the fleet's: slowed there alone; the name says so, too.
    std::optional<size_t> host{};
};

// One step of --bisect: groups of functions that were measured as targets are.
struct Rung {
    std::vector<Target> targets;
    std::vector<Block> blocks;
    std::vector<size_t> followed;   // of the targets: those that were taken apart next
    std::vector<std::string> notes; // what was left out
};

struct Settings {
    nanoseconds slice{0};
    nanoseconds settle{0};
    double precision = 0; // of the criticality, half the interval's width; 0: none asked for
    double max_slowdown = 0;
    double max_cpu = 0; // CPUs that delays may use up
};

// What one host of a fleet has told, by slice of Document::sliced.
struct FleetHost {
    std::string name;
    std::string launch; // the command that its agent was started by, as given
    std::string version, kernel, machine;
    nanoseconds clock_ahead{0}; // of the coordinator's, as known last
    nanoseconds clock_error{0};
    std::vector<bool> told;                      // whether it was part of this slice
    std::vector<std::vector<uint64_t>> units;    // of each progress point; 0 where it was not
    std::vector<std::vector<uint64_t>> since_ns; // as Sliced's
    std::vector<SlicedTarget> targets;           // of each that was asked of it, without steps
    uint64_t lost = 0; // slices that nobody has, for it did not tell of them
    std::string ended; // why it ended before the others did
};

// One schedule on many hosts.
struct Fleet {
    bool each = false; // one host slowed at a time; else all of them together
    // How each progress point is made of the hosts': "sum", "min", or "at:N", the Nth host's.
    std::vector<std::string> progress;
    std::vector<FleetHost> hosts;
    // Between the first and the last host to begin the same slice, by what is known of their
    // clocks.
    nanoseconds apart{0}, most_apart{0}; // the median, and the most of all slices
};

struct Document {
    std::string version; // of speedbump
    std::string host;
    std::string kernel;
    std::string machine;
    std::string engine; // that delayed native calls
    int64_t started_unix_ns = 0;
    uint64_t seed = 0;
    Settings settings;
    std::vector<std::string> progress; // as given with --progress
    std::vector<Target> targets;
    std::vector<Block> blocks;
    std::vector<Rung> rungs;      // that led to these targets, the first one first
    std::optional<Sliced> sliced; // then the blocks tell of the cost of looking alone
    std::optional<Fleet> fleet;   // whose hosts' slices these are
    std::vector<std::string> warnings;
    double tool_cpu = 0;   // CPUs that this program used itself
    std::string stopped;   // "precision", "blocks", "time", "interrupted", or what went wrong
    bool complete = false; // it stopped as planned
};

// A rung of the document as one that was measured alone.
inline Document document_of(const Document& document, const Rung& rung) {
    Document alone;
    alone.seed = document.seed;
    alone.settings = document.settings;
    alone.progress = document.progress;
    alone.targets = rung.targets;
    alone.blocks = rung.blocks;
    return alone;
}

// A progress point by its name, and of a fleet by how it is made of the hosts', too, as it was
// given: "sum:native:exe:f" and "min:native:exe:f" are two.
std::string progress_name(const Document& document, size_t point);

// A host of a fleet that slowed all of them together, as one that was measured alone: where it was
// part of it, by its own progress. nullopt where it has none of its own.
std::optional<Document> document_of(const Document& document, size_t host);

struct Results; // analysis.h

// The document as JSON on one line, with what is concluded from it under "results".
std::string to_json(const Document& document, const Results& results);
std::string to_json(const Document& document); // concluded for this
// The same without the raw slices.
std::string summary_json(const Document& document, const Results& results);
// kInvalid, with the place, for anything that to_json() would not have written.
Result<Document> from_json(const std::string& text, const std::string& path);
Result<Document> load_document(const std::string& path);

// One document of several with the same progress and targets: of other hosts or ranks, or of the
// same one later. kInvalid when they differ. The rungs are those of the first.
Result<Document> merge(const std::vector<Document>& documents);

std::string to_string(ArmKind kind);

} // namespace speedbump::experiment
