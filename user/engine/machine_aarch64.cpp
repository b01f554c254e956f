// SPDX-License-Identifier: MIT
#include "engine/machine.h"

#include <unistd.h>

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
        checks.push_back({name, state, detail, ""});
    };
    using State = Check::State;
    add("aarch64", State::kUnknown,
        "tried on Debian's kernels 6.1, 6.12 and 7.2, in emulated machines");
    add("probe sites", State::kDegraded,
        "entries only: a function that begins with what is not on the list is skipped");
    if (sysconf(_SC_PAGESIZE) == 4096)
        add("Python functions", State::kGood,
            "of CPython 3.11 and 3.13 to 3.15; not of threads that use a matrix unit (SME) or a "
            "guarded control stack");
    else
        add("Python functions", State::kBad, "processes are entered with pages of 4 KB only");
    add("in-process engine", State::kDegraded,
        "x86-64 only: delays are done in BPF or by the module");
    add("timed functions", State::kDegraded,
        "latency: and device: not of functions of Go, nor where there may be guarded control "
        "stacks");
}

} // namespace speedbump::engine
