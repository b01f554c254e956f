// SPDX-License-Identifier: MIT
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>

#include "control/page_server.h"
#include "experiment/analysis.h"
#include "experiment/runner.h"
#include "util/clock.h"
#include "util/result.h"

namespace speedbump::cli {

// The report of an experiment as it grows, for browsers on this host (--live).
class LiveReport {
  public:
    // Prints the address. Without a port nothing is served, and all else does nothing.
    static Result<LiveReport> open(std::optional<uint16_t> port,
                                   const experiment::Request& request);
    void show(const experiment::Document& document, const experiment::Results& results);
    // Shows the last state, and waits a moment until an open page has fetched it, or until
    // `stop_asked`.
    void end(const experiment::Document& document, const std::function<bool()>& stop_asked);

  private:
    std::unique_ptr<control::PageServer> server_;
    Clock::time_point begun_ = Clock::now();
    double limit_s_ = 0;
};

} // namespace speedbump::cli
