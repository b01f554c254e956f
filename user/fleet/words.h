// SPDX-License-Identifier: MIT
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "util/result.h"

namespace speedbump::fleet {

// The words of a command as a POSIX shell splits them: blanks, '...', "..." and \. Nothing is
// expanded: $, `, *, ?, ~ and # stand for themselves; what would make the shell do more than start
// one program (; & | < > and newlines outside of quotes) is refused. kUsage.
Result<std::vector<std::string>> split_words(std::string_view text);

} // namespace speedbump::fleet
