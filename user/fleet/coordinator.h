// SPDX-License-Identifier: MIT
#pragma once

#include "experiment/document.h"
#include "experiment/runner.h"
#include "fleet/gather.h"
#include "util/result.h"

namespace speedbump::fleet {

// Runs the experiment to its end. An error means that nothing was measured, and names the host
// where it is one's; what ended it later is in the document (stopped, complete). Hosts that end
// before it are in the document, too.
Result<experiment::Document> run_fleet(const FleetRequest& request, const experiment::Hooks& hooks);

} // namespace speedbump::fleet
