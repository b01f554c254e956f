// SPDX-License-Identifier: MIT
#include "session/late_files.h"

namespace speedbump::session {

std::vector<std::string> LateFiles::take_untold() {
    std::vector<std::string> names;
    if (!has_births_) return names;
    for (const auto& [key, name] : files_)
        if (known_.insert(key).second) names.push_back(name);
    told_.insert(told_.end(), names.begin(), names.end());
    return names;
}

} // namespace speedbump::session
