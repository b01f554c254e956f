// SPDX-License-Identifier: MIT
#pragma once

#include <string>
#include <vector>

#include "util/fd.h"
#include "util/heir.h"
#include "util/result.h"

namespace speedbump::control {

// Forks: before this program opens what must close with it. The guard will remove `names` in
// `directory`, and the directory `path` once it is empty, however this program ends.
Result<Heir> start_control_guard(const Fd& directory, const std::string& path,
                                 const std::vector<std::string>& names);

// What the guard does, for an owner that ends in order.
void remove_control_files(const Fd& directory, const std::string& path,
                          const std::vector<std::string>& names);

} // namespace speedbump::control
