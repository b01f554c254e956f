// SPDX-License-Identifier: MIT
#include "engine/inprocess/region.h"

#include <fmt/format.h>
#include <sys/sysmacros.h>

#include <algorithm>
#include <cstdio>
#include <string>

#include "util/page.h"
#include "util/proc.h"

namespace speedbump::engine::inprocess {
namespace {

// Of the 2 GiB that a distance has, for what the moved instructions refer to.
constexpr uint64_t kReach = uint64_t{1} << 30;
constexpr uint64_t kLowest = 0x10000; // the least that a process may map (vm.mmap_min_addr)
constexpr uint64_t kGap = 16 * kPage;
constexpr uint64_t kHeapRoom = uint64_t{512} << 20;
constexpr uint64_t kUserEnd = 0x7ffffffff000;

} // namespace

std::vector<Span> parse_spans(std::string_view text) {
    std::vector<Span> spans;
    for (size_t at = 0; at < text.size();) {
        const size_t end = std::min(text.find('\n', at), text.size());
        const std::string line(text.substr(at, end - at));
        at = end + 1;
        unsigned long first = 0, last = 0, offset = 0, inode = 0;
        unsigned major = 0, minor = 0;
        char rights[5] = {};
        if (std::sscanf(line.c_str(), "%lx-%lx %4s %lx %x:%x %lu", &first, &last, rights, &offset,
                        &major, &minor, &inode) != 7)
            continue;
        spans.push_back({first, last, offset, makedev(major, minor), inode, rights[2] == 'x',
                         rights[1] == 'w', rights[3] == 's', line.ends_with(" [heap]")});
    }
    return spans;
}

std::vector<Span> read_spans(pid_t pid) {
    return parse_spans(read_proc(fmt::format("/proc/{}/maps", pid)));
}

std::optional<uint64_t> free_place(const std::vector<Span>& spans, uint64_t low, uint64_t high,
                                   uint64_t size) {
    const uint64_t least = high > kReach ? std::max(high - kReach, kLowest) : kLowest;
    const uint64_t most = std::min(low + kReach, kUserEnd);
    std::optional<uint64_t> best;
    uint64_t best_distance = UINT64_MAX;
    const auto consider = [&](uint64_t begin, uint64_t end, bool after_heap) {
        begin = std::max(begin + (after_heap ? kHeapRoom : kGap), least);
        begin = (begin + kPage - 1) & ~(kPage - 1);
        end = std::min(end > kGap ? end - kGap : 0, most);
        if (end < begin || end - begin < size) return;
        // The end that is nearer.
        const uint64_t place = (end <= low ? end - size : begin) & ~(kPage - 1);
        if (place < begin) return; // less than a page too little
        // What grows, the heap and stacks, grows in what is above.
        const uint64_t distance = place < low ? low - place : place - low + kReach;
        if (distance >= best_distance) return;
        best = place;
        best_distance = distance;
    };
    uint64_t previous = 0;
    bool after_heap = false;
    for (const Span& span : spans) {
        if (span.start > previous) consider(previous, std::min(span.start, kUserEnd), after_heap);
        previous = std::max(previous, span.end);
        after_heap = span.is_heap;
    }
    if (previous < kUserEnd) consider(previous, kUserEnd, after_heap);
    return best;
}

} // namespace speedbump::engine::inprocess
