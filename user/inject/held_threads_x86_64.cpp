// SPDX-License-Identifier: MIT
#include "inject/held_threads_x86_64.h"

#include <sys/ptrace.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <iterator>

namespace speedbump::inject {
namespace {

constexpr uint64_t kMaxStackScan = 16 << 20;
constexpr size_t kMaxStacks = 16; // of one thread: who has more is up to something
// cs, gs, fs and ss as the kernel stores them in a 64-bit signal frame, and where in words from its
// beginning, the restorer's address, on they, the program counter and the stack pointer lie.
constexpr uint64_t kFrameSelectors = 0x002b000000000033ULL;
constexpr size_t kSelectorsIndex = 24;
constexpr size_t kCounterIndex = 22;
constexpr size_t kPointerIndex = 21;

} // namespace

bool Stacks::visit(uint64_t stack_pointer, const Visit& visit_words) const {
    std::vector<uint64_t> starts = {stack_pointer};
    std::map<uint64_t, uint64_t> seen; // by the end of a mapping: from where on
    for (size_t parts = 0; !starts.empty();) {
        const uint64_t start = starts.back() & ~uint64_t{7};
        starts.pop_back();
        uint64_t end = space_.stack_end(start);
        // An alternate stack may lie above the one that was interrupted, in the same mapping.
        if (const auto [known, is_new] = seen.try_emplace(end, start); !is_new) {
            if (start >= known->second) continue;
            end = std::exchange(known->second, start);
        }
        if (++parts > kMaxStacks) return false;
        std::vector<uint64_t> words(std::min(end - start, kMaxStackScan) / 8);
        words.resize(memory_.read_some(start, words.data(), words.size() * 8) / 8);
        if (!visit_words(start, words)) return false;
        for (size_t i = kSelectorsIndex; i < words.size(); ++i)
            if (words[i] == kFrameSelectors)
                starts.push_back(words[i - kSelectorsIndex + kPointerIndex]);
    }
    return true;
}

Mover::Mover(pid_t pid, std::span<CodeChange* const> changes, int memory_file)
    : stacks_(pid), memory_file_(memory_file) {
    for (const CodeChange* change : changes)
        if (change->length != 0) by_address_[change->address] = change;
}

bool Mover::look_at(HeldThread& thread) {
    if (by_address_.empty()) return true;
    const Place place = place_of(thread.regs.rip);
    if (place.is_inside && place.moved == 0) return false;
    if (place.is_inside) threads_.emplace_back(&thread, place.moved);
    return stacks_.visit(thread.regs.rsp, [this](uint64_t start, const auto& words) {
        return look_at_frames(start, words);
    });
}

bool Mover::move() const {
    for (const auto& [address, counter] : frames_)
        if (pwrite(memory_file_, &counter, sizeof counter, static_cast<off_t>(address)) !=
            static_cast<ssize_t>(sizeof counter))
            return false;
    for (const auto& [thread, counter] : threads_) {
        thread->regs.rip = counter;
        if (ptrace(PTRACE_SETREGS, thread->tid, nullptr, &thread->regs) != 0 && errno != ESRCH)
            return false;
    }
    return true;
}

Mover::Place Mover::place_of(uint64_t counter) const {
    auto next = by_address_.lower_bound(counter);
    if (next == by_address_.begin()) return {};
    const CodeChange& change = *std::prev(next)->second;
    const uint64_t offset = counter - change.address; // not 0
    if (offset >= std::min<size_t>(change.length, kLongestChanged)) return {};
    return {true, change.moved[offset]};
}

bool Mover::look_at_frames(uint64_t start, const std::vector<uint64_t>& words) {
    for (size_t i = kSelectorsIndex; i < words.size(); ++i) {
        if (words[i] != kFrameSelectors) continue;
        const size_t index = i - kSelectorsIndex + kCounterIndex;
        const Place place = place_of(words[index]);
        if (!place.is_inside) continue;
        if (place.moved == 0) return false;
        frames_.emplace_back(start + index * 8, place.moved);
    }
    return true;
}

bool is_quiet(const Stacks& stacks, const Quiet& range, const HeldThread& thread) {
    const auto is_inside = [&](uint64_t word) { return word >= range.begin && word < range.end; };
    return !is_inside(thread.regs.rip) &&
           stacks.visit(thread.regs.rsp, [&](uint64_t, const auto& words) {
               return std::none_of(words.begin(), words.end(), is_inside);
           });
}

} // namespace speedbump::inject
