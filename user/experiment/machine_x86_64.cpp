// SPDX-License-Identifier: MIT
#include "experiment/machine.h"

#include <array>

#include "../bpf/progress.h"

namespace speedbump::experiment {

const char* const kSystemCallPrefix = "__x64_sys_";
const uint8_t kIpWord = 16;

uint8_t word_of(uint8_t number) {
    constexpr uint8_t kWords[] = {10, 11, 12, 5, 19, 4, 13, 14, 9, 8, 7, 6, 3, 2, 1, 0};
    return number < sizeof(kWords) ? kWords[number] : SB_NO_REGISTER;
}

std::span<const uint8_t> argument_registers() {
    static constexpr std::array<uint8_t, 6> kArguments = {7, 6, 2, 1, 8, 9};
    return kArguments;
}

} // namespace speedbump::experiment
