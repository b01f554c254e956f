// SPDX-License-Identifier: MIT
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "../bpf/progress.h"
#include "elf/probe_site.h"
#include "experiment/device_spec.h"
#include "experiment/progress_spec.h"
#include "process/resolver.h"
#include "util/result.h"

namespace speedbump::experiment {

// Finds where in the files of processes a progress point is probed. Reads each file once. Not
// thread-safe.
class ProgressSites {
  public:
    struct Site {
        process::FileKey file;
        uint64_t offset = 0;
        uint64_t semaphore = 0;     // engine::UprobePlace
        sb_progress_site meaning{}; // but for `progress`
    };
    struct Found {
        std::set<process::FileKey> files; // that the process maps and that have sites
        std::vector<Site> sites;          // that were not found before
    };
    virtual ~ProgressSites() = default;

    // Looks at what the process has mapped now; nothing where it has ended.
    virtual Result<Found> look_at(pid_t pid) = 0;
    // Of a file with sites, open as long as the object lives.
    virtual int descriptor(const process::FileKey& file) const = 0;
    // What was found and can't be probed, of what is counted without it.
    virtual std::optional<Error> refusal() const { return std::nullopt; }
    // What is probed, for messages.
    virtual std::string name() const = 0;
};

// Of a kNative or kLatency point: the functions that its line names, and where those that are timed
// end.
Result<std::unique_ptr<ProgressSites>> function_sites(const ProgressSpec& spec,
                                                      const elf::SiteOptions& options);
// Of a kDevice point: where its functions begin, and where those that wait end. That one of them
// can't be watched is an error.
Result<std::unique_ptr<ProgressSites>> device_sites(const DeviceSpec& spec,
                                                    const elf::SiteOptions& options);
// Of a kUsdt point. That a mark can't be probed at one of its places in a file is an error.
std::unique_ptr<ProgressSites> mark_sites(const ProgressSpec& spec,
                                          const elf::SiteOptions& options);

} // namespace speedbump::experiment
