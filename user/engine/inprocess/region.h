// SPDX-License-Identifier: MIT
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

#include "util/result.h"

namespace speedbump::engine::inprocess {

// One mapping of a process, as /proc/PID/maps has it.
struct Span {
    uint64_t start = 0;
    uint64_t end = 0;
    uint64_t offset = 0;
    uint64_t device = 0;
    uint64_t inode = 0;
    bool executable = false;
    bool writable = false;
    bool shared = false;
    bool is_heap = false;
};
std::vector<Span> read_spans(pid_t pid);
std::vector<Span> parse_spans(std::string_view text);

// Where `size` bytes are free within the reach of a jump from anything in `low` to `high`, and of
// what is as near to that: nothing when there is no such place. Not where the heap grows to first.
std::optional<uint64_t> free_place(const std::vector<Span>& spans, uint64_t low, uint64_t high,
                                   uint64_t size);

} // namespace speedbump::engine::inprocess
