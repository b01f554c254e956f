// SPDX-License-Identifier: MIT
#pragma once

#include <chrono>
#include <functional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "elf/symbols.h"
#include "util/result.h"

namespace speedbump::elf {

// A function whose code the compiler put into others: no probe sees those calls.
struct InlinedFunction {
    std::string name;              // demangled, without signature
    std::set<std::string> callers; // the functions that hold its code
    size_t places = 0;             // how often
};

// The inlined functions of an ELF file that `is_wanted` (given the names that DWARF has: linkage
// name, demangled with and without signature, plain name), by name. Read with elfutils' libdw from
// the file's own debug information or its separate debug file, for at most `limit`; empty where
// there is none. kInvalid when it is damaged, kTimeout.
Result<std::vector<InlinedFunction>> find_inlined(
    int fd, const std::string& path, const DebugSearch& search,
    const std::function<bool(const std::vector<std::string_view>&)>& is_wanted,
    std::chrono::milliseconds limit);

} // namespace speedbump::elf
