// SPDX-License-Identifier: MIT
#pragma once

#include "experiment/document.h"
#include "experiment/runner.h"
#include "experiment/subject.h"
#include "util/result.h"

namespace speedbump::experiment {

// How many columns of a schedule the session must be attached with. kUsage where what is asked for
// can't be told by slices.
Result<uint32_t> columns_for_slices(const Request& request);

// Chooses the full dose of each target, and measures all of them until a limit is reached: the
// document's slices. The subject is attached, warm and knows its targets.
Result<void> run_slices(Subject& subject, const Request& request, const Hooks& hooks,
                        Document& document);

} // namespace speedbump::experiment
