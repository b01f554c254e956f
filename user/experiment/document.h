// SPDX-License-Identifier: MIT
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "util/result.h"

// What an experiment measured: passive structs, and their versioned JSON (docs/json.md, schema
// speedbump/experiment/1). Everything that is concluded is concluded from these (analysis.h).
namespace speedbump::experiment {

using std::chrono::nanoseconds;

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

// One arm of one block, as measured after the settling time.
struct Slice {
    Arm arm;
    nanoseconds start{0}; // since the experiment began
    nanoseconds length{0};
    std::vector<uint64_t> progress;              // units of each progress point
    std::vector<nanoseconds> progress_time;      // in which these were counted
    std::vector<std::optional<Latency>> latency; // of each progress point
    std::vector<uint64_t> calls;                 // of each target; empty with kOff
    nanoseconds injected{0}; // kDose: by what the target's calls were slowed against kProbe
    nanoseconds waited{0};   // of all threads: able to run, without a CPU
};

struct Block {
    bool confirms = false; // a fresh block for the targets that stood out in the others
    std::vector<Slice> slices;
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
};

struct Settings {
    nanoseconds slice{0};
    nanoseconds settle{0};
    double precision = 0; // of the criticality, half the interval's width; 0: none asked for
    double max_slowdown = 0;
    double max_cpu = 0; // CPUs that delays may use up
};

struct Document {
    std::string version; // of speedbump
    std::string host;
    std::string kernel;
    std::string machine;
    int64_t started_unix_ns = 0;
    uint64_t seed = 0;
    Settings settings;
    std::vector<std::string> progress; // as given with --progress
    std::vector<Target> targets;
    std::vector<Block> blocks;
    std::vector<std::string> warnings;
    double tool_cpu = 0;   // CPUs that this program used itself
    std::string stopped;   // "precision", "blocks", "time", "interrupted", or what went wrong
    bool complete = false; // it stopped as planned
};

// The document as JSON on one line, with what is concluded from it under "results".
std::string to_json(const Document& document);
// kInvalid, with the place, for anything that to_json() would not have written.
Result<Document> from_json(const std::string& text, const std::string& path);
Result<Document> load_document(const std::string& path);

// One document of several with the same progress and targets: of other hosts or ranks, or of the
// same one later. kInvalid when they differ.
Result<Document> merge(const std::vector<Document>& documents);

std::string to_string(ArmKind kind);

} // namespace speedbump::experiment
