// SPDX-License-Identifier: MIT
#include "experiment/machine.h"

#include <array>

#include "../bpf/progress.h"

namespace speedbump::experiment {

const char* const kSystemCallPrefix = "__arm64_sys_";
const uint8_t kIpWord = 32;

uint8_t word_of(uint8_t number) {
    return number < kIpWord ? number : SB_NO_REGISTER;
}

std::span<const uint8_t> argument_registers() {
    static constexpr std::array<uint8_t, 8> kArguments = {0, 1, 2, 3, 4, 5, 6, 7};
    return kArguments;
}

} // namespace speedbump::experiment
