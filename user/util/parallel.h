// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <future>
#include <thread>
#include <type_traits>
#include <vector>

namespace speedbump {

// Calls work(begin, end) for each part of [0, size), `grain` long (the last one may be shorter), on
// as many threads as there are CPUs (at most 4: more would only wait for memory), and returns what
// each part gave, in order. Where no thread can be made the caller's does the work. What `work`
// throws is thrown to the caller when all threads have ended.
template <typename Work>
auto in_parts(size_t size, size_t grain, const Work& work) {
    using Answer = std::invoke_result_t<Work, size_t, size_t>;
    static_assert(!std::is_same_v<Answer, bool>, "neighbours in a vector<bool> share a byte");
    const size_t count = (size + grain - 1) / grain;
    const size_t threads = std::min<size_t>(count, std::thread::hardware_concurrency());
    std::vector<Answer> answers(count);
    std::atomic<size_t> next = 0;
    const auto take_parts = [&] {
        for (size_t i = next++; i < count; i = next++)
            answers[i] = work(i * grain, std::min(size, (i + 1) * grain));
    };
    // A future's destructor waits for its thread, also when something is thrown here.
    std::vector<std::future<void>> others;
    for (size_t i = 1; i < std::min<size_t>(threads, 4); ++i)
        others.push_back(std::async(std::launch::async | std::launch::deferred, take_parts));
    take_parts();
    for (auto& other : others) other.get();
    return answers;
}

} // namespace speedbump
