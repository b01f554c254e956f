// SPDX-License-Identifier: MIT
// Hostile seccomp filters: whatever the bytes, the run ends, reads nothing outside of the filter
// and the call, and gives the same answer twice.
#include <array>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "inject/seccomp_filter.h"
#include "mutator.h"

namespace {

using namespace speedbump;

void require(bool condition, const char* what) {
    if (condition) return;
    std::fprintf(stderr, "broken: %s\n", what);
    std::abort();
}

void test(std::string_view text) {
    inject::Filter filter(text.size() / sizeof(sock_filter));
    if (!filter.empty())
        std::memcpy(filter.data(), text.data(), filter.size() * sizeof(sock_filter));
    seccomp_data call{};
    call.nr = static_cast<int>(text.size());
    call.args[0] = ~uint64_t{0};
    const std::optional<uint32_t> answer = inject::run_filter(filter, call);
    require(answer == inject::run_filter(filter, call), "the same answer twice");
    const std::optional<std::string> forbidden = inject::find_forbidden({filter});
    require(answer.has_value() || forbidden.has_value() || filter.size() > 1,
            "what is not understood is refused");
}

std::string bytes(std::initializer_list<sock_filter> steps) {
    return {reinterpret_cast<const char*>(std::data(steps)), steps.size() * sizeof(sock_filter)};
}

const std::array<std::string, 3> kSeeds = {
    bytes({{BPF_LD | BPF_W | BPF_ABS, 0, 0, 0},
           {BPF_JMP | BPF_JEQ | BPF_K, 0, 1, 59},
           {BPF_RET | BPF_K, 0, 0, SECCOMP_RET_KILL_PROCESS},
           {BPF_RET | BPF_K, 0, 0, SECCOMP_RET_ALLOW}}),
    bytes({{BPF_LD | BPF_IMM, 0, 0, 7},
           {BPF_ST, 0, 0, 3},
           {BPF_LDX | BPF_MEM, 0, 0, 3},
           {BPF_ALU | BPF_DIV | BPF_X, 0, 0, 0},
           {BPF_MISC | BPF_TAX, 0, 0, 0},
           {BPF_JMP | BPF_JA, 0, 0, 1},
           {BPF_STX, 0, 0, 15},
           {BPF_RET | BPF_A, 0, 0, 0}}),
    bytes({{BPF_LD | BPF_W | BPF_LEN, 0, 0, 0},
           {BPF_ALU | BPF_LSH | BPF_K, 0, 0, 31},
           {BPF_ALU | BPF_NEG, 0, 0, 0},
           {BPF_RET | BPF_K, 0, 0, SECCOMP_RET_ERRNO | 1}}),
};

constexpr std::array<std::string_view, 4> kDictionary = {"\x15", "\x06", "\xff\xff\xff\xff",
                                                         "\x20"};

} // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size);
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
    test({reinterpret_cast<const char*>(data), size});
    return 0;
}

#ifndef SPEEDBUMP_LIBFUZZER
int main(int argc, char** argv) {
    return fuzz::run(argc, argv, kSeeds, kDictionary, 40'000, test);
}
#endif
