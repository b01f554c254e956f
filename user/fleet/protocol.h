// SPDX-License-Identifier: MIT
#pragma once

#include <sys/types.h>

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "experiment/slice_reading.h"
#include "util/result.h"

// What a coordinator and its agents say to each other: a JSON object on a line. Nothing that is
// read is trusted: each number has its bounds, each list its length. Pure functions.
namespace speedbump::fleet {

using experiment::SliceReading;
using std::chrono::nanoseconds;

inline constexpr uint64_t kProtocol = 2;
inline constexpr size_t kMaxLine = 4u << 20;
inline constexpr size_t kMaxTargets = 1000; // of one agent's
inline constexpr size_t kMaxRows = 4096;    // slices in one message

// --- from the coordinator

// What to attach to, and by which limits it guards itself. The first order, once.
struct Attach {
    std::vector<std::string> lines;    // of the targets file
    std::vector<size_t> positive;      // of these, the positive controls
    std::vector<std::string> progress; // as given with --progress, those of this host
    bool whole_python = false, whole_native = false;
    std::vector<pid_t> pids;
    std::optional<std::string> exe, cgroup;
    bool follow_children = true;
    double max_slowdown = 0.5;
    double max_cpu = 0; // CPUs; 0: half of the host's
};
struct Ping {
    uint64_t id = 0;
};
// A schedule from this time of the agent's clock on, whose slices are numbered from `first`.
struct Begin {
    uint64_t epoch = 0;
    uint64_t first = 0;
    uint64_t start_ns = 0; // of slice `first`
    nanoseconds slice{0};
    nanoseconds period{0}; // of the first progress point there without delay; 0: not known
};
// The delay of each target in some slices in a row.
struct Rows {
    uint64_t epoch = 0;
    uint64_t first = 0;
    std::vector<std::vector<nanoseconds>> doses;
};
// No delay from now on, until the next Begin.
struct End {};
using Order = std::variant<Attach, Ping, Begin, Rows, End>;

// --- from an agent

struct Hello {
    uint64_t protocol = kProtocol;
    std::string version, host, kernel, machine;
};
struct Attached {
    struct Target {
        std::string name;
        std::vector<std::string> functions;
        uint64_t function_count = 0;
        nanoseconds least{0}; // the shortest delay that is not lost in what a probe costs
        bool is_positive = false;
        std::vector<std::string> notes;
    };
    std::vector<Target> targets;
};
struct Pong {
    uint64_t id = 0;
    uint64_t now_ns = 0;
};
// What happened in some slices in a row; `began_ns` is when the first of them did.
struct Taken {
    uint64_t epoch = 0;
    uint64_t first = 0;
    uint64_t began_ns = 0;
    std::vector<SliceReading> slices;
};
// Slices of which nothing whole was counted: their rows came too late.
struct Late {
    uint64_t epoch = 0;
    uint64_t first = 0;
    uint64_t count = 0;
};
// A guard has ended all delays of this epoch there.
struct Tripped {
    uint64_t epoch = 0;
    std::string why;
};
struct Warning {
    std::string text;
};
// The last report.
struct Failed {
    Error error;
};
using Report = std::variant<Hello, Attached, Pong, Taken, Late, Tripped, Warning, Failed>;

// How many an agent has: what it may tell of.
struct Shape {
    size_t points = 0;
    size_t targets = 0;
};

// With its newline.
std::string line_of(const Order& order);
std::string line_of(const Report& report);
// kInvalid for a line that is none. Rows are of so many targets.
Result<Order> read_order(std::string_view line, size_t targets);
Result<Report> read_report(std::string_view line, const Shape& shape);

} // namespace speedbump::fleet
