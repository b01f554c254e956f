// SPDX-License-Identifier: MIT
#pragma once

#include <sys/types.h>

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "util/fd.h"
#include "util/result.h"

// Talks to the delay kernel module through its files in sysfs (docs/sysfs-interface.md).
namespace speedbump::sbctl {

using std::chrono::nanoseconds;

// A line of targets_list.
struct Target {
    std::string name; // PATH:SYMBOL
    nanoseconds delay{0};
    uint64_t hits = 0;
    std::optional<pid_t> pid;
    uint64_t delays = 0;
    nanoseconds requested{0};
    nanoseconds measured{0};
    uint64_t offset = 0;
    bool is_owned = false; // added through /dev/speed_bump, and gone with its owner
};

// The module's state: stats and default_delay_ns.
struct Status {
    bool enabled = false;
    uint64_t targets = 0;
    uint64_t max_targets = 0;
    uint64_t hits = 0;
    nanoseconds delay{0}; // measured, since the module was loaded
    nanoseconds default_delay{0};
    uint64_t lost_processes = 0; // that a filter could not follow, since the module was loaded
};

// Each returns the module's errno in the Error, and a sentence that says why; kUnsupported when the
// module is not loaded.
Result<void> add(std::string_view target, std::optional<nanoseconds> delay,
                 std::optional<pid_t> pid);
Result<void> remove(std::string_view target);
Result<void> update(std::string_view target, nanoseconds delay, std::optional<pid_t> pid);
Result<void> clear();
Result<void> set_enabled(bool enabled);
Result<void> set_default_delay(nanoseconds delay);
Result<std::vector<Target>> list();
Result<Status> status();

// Targets that live as long as this does: they are added through /dev/speed_bump, and the kernel
// removes them when it is closed, also by SIGKILL. Errors as above.
class Owner {
  public:
    static Result<Owner> open();
    // Switches the module on until this is closed. EBUSY: it is off and holds targets of others.
    Result<void> hold() const;
    Result<void> add(std::string_view target, nanoseconds delay, std::optional<pid_t> pid) const;
    Result<void> update(std::string_view target, nanoseconds delay) const;
    Result<void> remove(std::string_view target) const;

  private:
    explicit Owner(Fd device) : device_(std::move(device)) {}
    Fd device_;
};

// One line of targets_list; kInvalid when it is none. Fields that are not known are passed over.
Result<Target> parse_line(std::string_view line);

} // namespace speedbump::sbctl
