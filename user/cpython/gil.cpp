// SPDX-License-Identifier: MIT
#include "cpython/gil.h"

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

// Whether a thread of an interpreter has that state.
bool has_thread(const process::Source& source, const Layout& layout, uint64_t interpreter,
                uint64_t state) {
    constexpr int kMaxThreads = 65536;
    auto thread = source.value<uint64_t>(interpreter + layout.interpreter_threads);
    for (int i = 0; i < kMaxThreads && thread && *thread != 0; ++i) {
        if (*thread == state) return true;
        thread = source.value<uint64_t>(*thread + layout.thread_next);
    }
    return false;
}

} // namespace

std::optional<uint64_t> gil_of(const process::Source& source, const Layout& layout,
                               uint64_t runtime, uint64_t state) {
    if (layout.minor <= 11) return runtime + layout.gil;
    return source.value<uint64_t>(state + layout.gil);
}

std::optional<GilPlace> main_gil(const process::Source& source, const Interpreter& interpreter) {
    const Result<Layout> layout = layout_of(source, interpreter);
    if (!layout || layout->free_threaded) return std::nullopt;
    const auto main = main_interpreter(source, *layout, interpreter.runtime_address);
    if (!main) return std::nullopt;
    const auto gil = gil_of(source, *layout, interpreter.runtime_address, *main);
    if (!gil) return std::nullopt;
    const GilPlace place{*gil + layout->gil_interval, *gil + layout->gil_locked};
    if (place.interval % sizeof(uint64_t) != 0) return std::nullopt;
    constexpr int kTries = 3; // between two reads another thread may take it, and one may end
    for (int i = 0; i < kTries; ++i) {
        const auto locked = source.value<int32_t>(place.locked);
        const auto holder = source.value<uint64_t>(*gil + layout->gil_holder);
        const auto interval = source.value<uint64_t>(place.interval);
        constexpr uint64_t kLongestUs = 100'000'000;
        if (!locked || !holder || !interval || *interval < 1 || *interval > kLongestUs)
            return std::nullopt;
        // While nobody has it, who had it last is still told of.
        if ((*locked == 0 || *locked == 1) && has_thread(source, *layout, *main, *holder))
            return place;
    }
    return std::nullopt;
}

} // namespace speedbump::cpython
