// SPDX-License-Identifier: MIT
#include "inject/address_space.h"

#include <fmt/format.h>
#include <sys/resource.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <random>
#include <string>
#include <string_view>

#include "inject/machine.h"
#include "util/page.h"
#include "util/proc.h"

namespace speedbump::inject {
namespace {

// The kernel's stack_guard_gap: a stack grows no nearer to what lies below it.
constexpr uint64_t kGuardGap = 256 * 4096;

} // namespace

AddressSpace::AddressSpace(pid_t pid) {
    rlimit limit{};
    if (::prlimit(pid, RLIMIT_STACK, nullptr, &limit) == 0) stack_limit_ = limit.rlim_cur;
    const std::string text = read_proc(fmt::format("/proc/{}/maps", pid));
    for (size_t at = 0; at < text.size();) {
        const size_t end = std::min(text.find('\n', at), text.size());
        const std::string line = text.substr(at, end - at);
        unsigned long first = 0;
        unsigned long last = 0;
        char rights[5] = {};
        if (std::sscanf(line.c_str(), "%lx-%lx %4s", &first, &last, rights) == 3)
            ranges_.push_back({first, last, rights[1] == 'w', line.ends_with(" [stack]")});
        at = end + 1;
    }
}

uint64_t AddressSpace::choose_hole(uint64_t size) const {
    uint64_t best_start = 0;
    uint64_t best_size = 0;
    uint64_t previous = 0x10000;
    for (const Range& range : ranges_) {
        if (range.start >= kUserEnd) break;
        if (range.start > previous && range.start - previous > best_size) {
            best_start = previous;
            best_size = range.start - previous;
        }
        previous = std::max(previous, range.end);
    }
    if (best_size < 16 * size) return 0;
    static thread_local std::mt19937_64 random{std::random_device{}()};
    const uint64_t offset = best_size / 4 + random() % (best_size / 2);
    return (best_start + offset) & ~uint64_t{0xfff};
}

std::vector<AddressSpace::Range>::const_iterator AddressSpace::find(uint64_t address) const {
    return std::find_if(ranges_.begin(), ranges_.end(), [&](const Range& range) {
        return address >= range.start && address < range.end;
    });
}

uint64_t AddressSpace::stack_end(uint64_t stack_pointer) const {
    const auto range = find(stack_pointer);
    if (range != ranges_.end()) return range->end;
    return stack_pointer + (256 << 10); // mapped since: the rest of a new thread's stack
}

std::optional<uint64_t> AddressSpace::stack_floor(const process::RemoteMemory& memory,
                                                  uint64_t stack_pointer,
                                                  uint64_t thread_block) const {
    const auto range = find(stack_pointer);
    if (range == ranges_.end() || !range->writable) return std::nullopt;
    if (range->main_stack) {
        const uint64_t below = range == ranges_.begin() ? 0 : (range - 1)->end;
        const uint64_t limit = range->end > stack_limit_ ? range->end - stack_limit_ : 0;
        return std::min(range->start, std::max(below + kGuardGap, limit));
    }
    if (thread_block < range->start || thread_block >= range->end) return std::nullopt;
    // struct pthread, which lies at the end of the stack, has its start, its size and that of its
    // guard side by side, at an offset that differs by version. One mapping may hold several
    // stacks.
    constexpr uint64_t kLongestStack = uint64_t{1} << 36;
    std::array<uint64_t, 512> words = {};
    const size_t count = memory.read_some(thread_block, words.data(), sizeof(words)) / 8;
    for (size_t i = 0; i + 2 < count; ++i) {
        const uint64_t start = words[i];
        const uint64_t size = words[i + 1];
        if (size > kLongestStack || start >= stack_pointer || stack_pointer >= start + size)
            continue;
        if (thread_block < start || thread_block >= start + size) continue;
        // From glibc 2.42 and Linux 6.13 on the guard lies in the mapping (MADV_GUARD_INSTALL). In
        // other libraries something else follows, and the guard is a mapping of its own.
        const uint64_t guard = words[i + 2];
        const bool is_guard = guard % kPage == 0 && guard < size;
        return std::max(start + (is_guard ? guard : 0), range->start);
    }
    return std::nullopt;
}

} // namespace speedbump::inject
