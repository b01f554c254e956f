// SPDX-License-Identifier: MIT
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "util/result.h"

// The hosts of a Slurm job or of a Kubernetes selector, as squeue, scontrol and kubectl list them.
// Pure.
namespace speedbump::fleet {

// How an agent is started on a host.
struct Launch {
    std::string text; // the beginning of a command, as --at takes it
    std::string name; // for people, where a list has one; else empty
    bool operator==(const Launch&) const = default;
};

// A job that runs.
struct Job {
    std::string id;    // the one of it alone, also where it is a part of an array
    std::string nodes; // as Slurm writes lists: "n[1-4,7]"
    bool operator==(const Job&) const = default;
};

// "42", "42_3" (of an array) or "42+1" (of a heterogeneous job).
bool is_job_id(std::string_view text);

// Columns that squeue is asked for, and what it says of the job. kNotFound when Slurm does not know
// it, or it does not run; kUsage where these are several jobs.
inline constexpr const char* kJobColumns = "%A|%T|%N";
Result<Job> read_job(std::string_view text);
// What `scontrol show hostnames` says of the job's nodes, a name a line.
Result<std::vector<Launch>> read_nodes(const Job& job, std::string_view text);

// Columns that kubectl is asked for, and what it says of the pods. Those that don't run are left
// out, and named in `left_out`. kNotFound when none is left.
inline constexpr const char* kPodColumns =
    "jsonpath={range .items[*]}{.metadata.namespace}{\"|\"}{.metadata.name}{\"|\"}{.status.phase}"
    "{\"|\"}{.metadata.deletionTimestamp}{\"\\n\"}{end}";
Result<std::vector<Launch>> read_pods(std::string_view text, std::vector<std::string>& left_out);

} // namespace speedbump::fleet
