// SPDX-License-Identifier: MIT
#include "engine/machine.h"

namespace speedbump::engine {

bool has_become_call(const volatile unsigned char*) {
    return false;
}

bool child_reaches_call(const volatile unsigned char*) {
    return true;
}

bool has_no_trampoline() {
    return true;
}

const char* why_no_module() {
    return "it has no list of instructions of aarch64 yet";
}

const char* nop_kind_name() {
    return "nop";
}

void add_machine_checks(std::vector<Check>& checks, const Features&) {
    const auto add = [&checks](const char* name, Check::State state, const char* detail) {
        checks.push_back({name, state, detail, ""});
    };
    using State = Check::State;
    add("aarch64", State::kUnknown, "built for it, but never tried on an arm64 kernel");
    add("probe sites", State::kDegraded,
        "entries only: a function that begins with what is not on the list is skipped");
    add("Python functions", State::kBad, "processes are not entered on aarch64 yet");
    add("sites of the module", State::kBad, "it has no list of instructions of aarch64 yet");
    add("native stacks", State::kBad, "not read on aarch64 yet");
    add("timed functions", State::kBad, "their ways out, and devices', are not known on aarch64");
}

} // namespace speedbump::engine
