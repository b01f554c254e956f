// SPDX-License-Identifier: MIT
#pragma once

#include "fleet/protocol.h"
#include "util/fd.h"
#include "util/result.h"

namespace speedbump::fleet {

// What runs on each host: attaches and plays what it is told to over `in`, and reports over `out`,
// until `in` ends, or nobody was heard for a minute. Delays end with it, and a second after the
// coordinator was heard last. `hello` is its first report. Errors have been reported, too.
Result<void> run_agent(const Hello& hello, const Fd& in, const Fd& out);

} // namespace speedbump::fleet
