// SPDX-License-Identifier: MIT
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "targets/matcher.h"
#include "util/result.h"

// How a loader has the functions of some lines told apart while they are hooked.
namespace speedbump::python {

struct Grouping {
    uint32_t number = 0;           // of the loader; 0: none, each line is one target
    std::vector<bool> taken_apart; // by line of the targets file; shorter: false
    targets::PythonLines lines;    // which decide for the functions of those lines
    std::vector<uint32_t> targets; // the table's entry of each of these

    // The table's entry of a function that this line of the file selects; nothing when it is in no
    // group.
    std::optional<uint32_t> target_of(uint32_t line, std::string_view module, std::string_view file,
                                      std::string_view name) const;
};

// Reads what a "groups" packet is about (serve.h). kInvalid where it names a target beyond
// `target_count`. Needs no GIL; raises std::bad_alloc and nlohmann's exceptions.
Result<Grouping> read_grouping(int fd, uint32_t number, uint32_t target_count);

// The whole of a file that the loader has sealed, of at most kMaxFileBytes.
Result<std::string> read_text(int fd);

} // namespace speedbump::python
