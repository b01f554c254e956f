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

const char* nop_kind_name() {
    return "nop";
}

void add_machine_checks(std::vector<Check>& checks, const Features&) {
    const auto add = [&checks](const char* name, Check::State state, const char* detail) {
        checks.push_back({name, state, detail, "x86-64"});
    };
    add("aarch64", Check::State::kUnknown,
        "built for it, but not tried on an arm64 kernel yet: no delay has been measured");
    add("probe sites of aarch64", Check::State::kDegraded,
        "the entry only: functions that begin with what is not on its list are skipped");
    add("attaching to Python", Check::State::kBad,
        "not done on aarch64 but for Python 3.14 and later, which load the core themselves");
    add("native stacks", Check::State::kBad, "not done on aarch64: discover has Python's alone");
    add("latency and device progress", Check::State::kBad,
        "not done on aarch64: the ways out of functions are not known");
}

} // namespace speedbump::engine
