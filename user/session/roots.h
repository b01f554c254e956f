// SPDX-License-Identifier: MIT
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "session/types.h"
#include "targets/target.h"
#include "tree/descent.h"
#include "util/result.h"

namespace speedbump::session {

// Bit 0 stands for the session as a whole; each pid=N of the targets file has a bit of its own.
inline constexpr uint64_t kSessionRoot = 1;
inline constexpr uint64_t kCgroupRoot = 2; // bit 1: who is in --cgroup

struct Roots {
    std::map<uint32_t, uint64_t> bits;     // tgid -> its root bits
    std::map<pid_t, uint64_t> mask_of_pid; // pid=N -> the bit it stands for
};

// Turns --pid and the pid= of lines into roots. A session with neither --pid nor a cgroup is made
// of the processes that the lines name. Errors say for each wrong PID what it is: no such process,
// a thread, a kernel thread, a zombie, speedbump itself.
Result<Roots> find_roots(const SessionOptions& options, const targets::TargetsFile& file,
                         const std::vector<tree::ListedProcess>& processes, uint32_t own_tgid);

// The kernel's id of a cgroup v2 directory. `path` is absolute, or relative to the cgroup v2 mount.
Result<uint64_t> cgroup_id(const std::string& path);

} // namespace speedbump::session
