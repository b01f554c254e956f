// SPDX-License-Identifier: MIT
#pragma once

#include "experiment/document.h"
#include "experiment/runner.h"
#include "experiment/subject.h"
#include "util/result.h"

namespace speedbump::experiment {

// Chooses the full dose of each target, and where it is not asked for the length of slices, and
// measures all targets until a limit is reached: the document's slices. The subject is attached,
// warm and knows its targets.
Result<void> run_slices(Subject& subject, const Request& request, const Hooks& hooks,
                        Document& document);

} // namespace speedbump::experiment
