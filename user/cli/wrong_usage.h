// SPDX-License-Identifier: MIT
#pragma once

#include <CLI/CLI.hpp>
#include <string>
#include <vector>

#include "util/result.h"

namespace speedbump::cli {

// What the option parser found wrong with `words` (without the program's name), as an error of
// kUsage whose hint names what was probably meant, or where to read on.
Error wrong_usage(const CLI::App& app, const CLI::ParseError& error,
                  const std::vector<std::string>& words);

} // namespace speedbump::cli
