// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "../cpu_time.h"

// A small deterministic fuzzer, for compilers without one: the same seed gives the same inputs.
// With -fsanitize=fuzzer (SPEEDBUMP_LIBFUZZER defined) only LLVMFuzzerTestOneInput is used.
namespace speedbump::fuzz {

// splitmix64
class Random {
  public:
    explicit Random(uint64_t seed) : state_(seed) {}
    // Two bytes of an input for each number as long as there are any, so that libFuzzer can choose.
    explicit Random(std::span<const uint8_t> choices) : state_(choices.size()), choices_(choices) {}
    uint64_t next() {
        if (choices_.size() >= 2) {
            const uint64_t chosen = choices_[0] | choices_[1] << 8;
            choices_ = choices_.subspan(2);
            return chosen;
        }
        uint64_t value = state_ += 0x9e3779b97f4a7c15;
        value = (value ^ value >> 30) * 0xbf58476d1ce4e5b9;
        value = (value ^ value >> 27) * 0x94d049bb133111eb;
        return value ^ value >> 31;
    }
    // Below `limit`, which is not 0.
    size_t below(size_t limit) { return static_cast<size_t>(next() % limit); }

  private:
    uint64_t state_;
    std::span<const uint8_t> choices_;
};

// Changes the input in one to eight places: bytes and bits, cuts and copies of ranges, words of the
// dictionary, parts of another seed.
inline void mutate(std::string& input, Random& random, std::span<const std::string> seeds,
                   std::span<const std::string_view> dictionary, size_t max_size) {
    for (size_t count = 1 + random.below(8); count > 0; --count) {
        const size_t at = random.below(input.size() + 1);
        const size_t length = random.below(std::min<size_t>(input.size() - at, 64) + 1);
        switch (random.below(7)) {
            case 0:
                if (at < input.size()) input[at] = static_cast<char>(random.next());
                break;
            case 1:
                if (at < input.size())
                    input[at] = static_cast<char>(input[at] ^ 1 << random.below(8));
                break;
            case 2:
                input.erase(at, length);
                break;
            case 3:
                input.insert(random.below(input.size() + 1), input.substr(at, length));
                break;
            case 4:
                if (!dictionary.empty())
                    input.insert(at, dictionary[random.below(dictionary.size())]);
                break;
            case 5: {
                const std::string& other = seeds[random.below(seeds.size())];
                const size_t from = random.below(other.size() + 1);
                input.replace(at, length, other, from, 1 + random.below(256));
                break;
            }
            case 6:
                input.insert(at, std::string(random.below(64), static_cast<char>(random.next())));
                break;
        }
    }
    if (input.size() > max_size) input.resize(max_size);
}

// Runs `test` on every seed and then on mutations of them, until `iterations` (argv[1]) are done or
// `seconds` (argv[2]) of CPU time are used; argv[3] is the seed. The exit status for main.
template <typename Test>
int run(int argc, char** argv, std::span<const std::string> seeds,
        std::span<const std::string_view> dictionary, size_t max_size, Test test) {
    const uint64_t iterations = argc > 1 ? std::strtoull(argv[1], nullptr, 10) : 200'000;
    const double seconds = argc > 2 ? std::strtod(argv[2], nullptr) : 10;
    Random random(argc > 3 ? std::strtoull(argv[3], nullptr, 10) : 1);
    const auto begin = CpuClock::now();
    const auto passed = [begin] {
        return std::chrono::duration<double>(CpuClock::now() - begin).count();
    };
    for (const std::string& seed : seeds) test(seed);
    uint64_t done = 0;
    std::string input;
    for (; done < iterations && passed() < seconds; ++done) {
        // mostly a fresh seed, now and then a further step away from it
        if (done == 0 || random.below(4) != 0) input = seeds[random.below(seeds.size())];
        mutate(input, random, seeds, dictionary, max_size);
        test(input);
    }
    std::printf("%llu inputs in %.1f s of CPU time\n", static_cast<unsigned long long>(done),
                passed());
    return 0;
}

} // namespace speedbump::fuzz
