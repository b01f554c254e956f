// SPDX-License-Identifier: MIT
#include "cpython/gil.h"

#include "cpython/layout.h"

namespace speedbump::cpython {
namespace {

// New interpreters come first in the list.
std::optional<uint64_t> main_interpreter(const process::Source& source, const Layout& layout,
                                         uint64_t runtime) {
    constexpr int kMaxInterpreters = 4096;
    auto state = source.value<uint64_t>(runtime + layout.runtime_head);
    for (int i = 0; i < kMaxInterpreters && state && *state != 0; ++i) {
        const auto next = source.value<uint64_t>(*state + layout.interpreter_next);
        if (next && *next == 0) {
            const auto id = source.value<int64_t>(*state + layout.interpreter_id);
            return id && *id == 0 ? state : std::nullopt;
        }
        state = next;
    }
    return std::nullopt;
}

} // namespace

std::optional<GilPlace> main_gil(const process::Source& source, const Interpreter& interpreter) {
    const Result<Layout> layout = layout_of(source, interpreter);
    if (!layout || layout->free_threaded) return std::nullopt;
    uint64_t gil = interpreter.runtime_address + layout->gil;
    if (layout->minor >= 12) {
        const auto main = main_interpreter(source, *layout, interpreter.runtime_address);
        const auto told = main ? source.value<uint64_t>(*main + layout->gil) : std::nullopt;
        if (!told) return std::nullopt;
        gil = *told;
    }
    const GilPlace place{gil + layout->gil_interval, gil + layout->gil_locked};
    const auto interval = source.value<uint64_t>(place.interval);
    const auto locked = source.value<int32_t>(place.locked);
    constexpr uint64_t kLongestUs = 100'000'000;
    const bool is_one = interval && *interval >= 1 && *interval <= kLongestUs && locked &&
                        (*locked == 0 || *locked == 1) && place.interval % sizeof(uint64_t) == 0;
    return is_one ? std::optional(place) : std::nullopt;
}

} // namespace speedbump::cpython
