// SPDX-License-Identifier: MIT
#pragma once

#include <string>
#include <string_view>

#include "util/result.h"

namespace speedbump::inject {

// The Python that loads the core, for compilation in a private dict that has the ints `channel`
// (the core's end of the channel) and `core` (the core's file, open). It runs in any CPython from
// 3.10 on, imports nothing from disk and prints nothing. `module` in that dict is the core then,
// whose serve(channel, core) takes both descriptors and says {"op":"loaded"}; or None: it has said
// {"op":"error","message":TEXT} on the channel, and closed both. `core_path` is a path by which
// the target itself reaches the core, or empty: then it is loaded through the descriptor. `build`
// tells one core from another: a core of the same build that is there already is used.
std::string load_source(std::string_view core_path, std::string_view build);

// What the first message on a channel says: nothing for "loaded", else the error it carries.
Result<void> read_bootstrap_answer(std::string_view message);

} // namespace speedbump::inject
