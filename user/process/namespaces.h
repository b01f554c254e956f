// SPDX-License-Identifier: MIT
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <map>
#include <set>
#include <utility>

namespace speedbump::process {

// The number of the PID namespace that a process is one of (pid_namespaces(7)); 0: not known.
uint32_t pid_namespace_of(pid_t pid);

// By how many nanoseconds CLOCK_MONOTONIC of a process's time namespace is ahead of the host's
// (time_namespaces(7)), which is the clock that BPF reads; 0 where there are no such namespaces.
int64_t monotonic_offset_of(pid_t pid);
// Whether children that it forks would be in another time namespace than it is in itself, which is
// the one that is asked above.
bool has_clock_for_children(pid_t pid);

// Translates PIDs of other PID namespaces into those of this one. Not thread-safe.
class PidNames {
  public:
    PidNames();
    // Remembers a process, so that it is known after its end too.
    void note(pid_t pid);
    // The process here that has `pid` in the namespace; 0: there is none, or it ended unseen. Looks
    // through /proc for a name that it was never asked for.
    pid_t here(uint32_t pid_namespace, pid_t pid);

  private:
    uint32_t own_namespace_;
    std::map<std::pair<uint32_t, pid_t>, pid_t> known_;
    std::set<std::pair<uint32_t, pid_t>> unknown_;
};

} // namespace speedbump::process
