// SPDX-License-Identifier: MIT
#pragma once

#include <sys/types.h>

#include <memory>
#include <vector>

#include "util/result.h"

namespace speedbump::sites {

// Puts the engine's own probes, with delay 0, into one process, and counts their hits.
class Prober {
  public:
    virtual ~Prober() = default;
    // `refused` gets an errno, or 0, for each offset.
    virtual Result<void> attach(int file, const std::vector<uint64_t>& offsets, pid_t process,
                                std::vector<int>& refused) = 0;
    // Of each offset since attach().
    virtual Result<std::vector<uint64_t>> hits() = 0;
    virtual void detach() = 0;
    virtual const char* name() const = 0;
    // Whether it refuses with EOPNOTSUPP what is not on a list of its own.
    virtual bool has_a_list() const = 0;
    virtual bool turns_nops_into_calls() const = 0;
    virtual size_t capacity() const = 0; // of probes at a time
};

// To be made before the processes that it probes are forked.
Result<std::unique_ptr<Prober>> make_bpf_prober();
Result<std::unique_ptr<Prober>> make_kmod_prober();

} // namespace speedbump::sites
