// SPDX-License-Identifier: MIT
#include "engine/machine.h"

#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>

namespace speedbump::engine {
namespace {

// What a forked child answers; false where there is none to be had, or it was killed.
template <typename Question>
bool ask_child(Question question) {
    const pid_t child = fork();
    if (child < 0) return false;
    if (child == 0) {
        prctl(PR_SET_DUMPABLE, 0); // killed for its question, it leaves no core file
        _exit(question() ? 0 : 1);
    }
    int status = 0;
    while (waitpid(child, &status, 0) < 0)
        if (errno != EINTR) return false;
    return WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

} // namespace

bool has_become_call(const volatile unsigned char* code) {
    return code[0] == 0xe8;
}

// The kernel's trampoline is mapped VM_DONTCOPY (create_uprobe_trampoline), the page with the call
// is copied: on 6.18 the child calls what is not there.
bool child_reaches_call(const volatile unsigned char* code) {
    return ask_child([code] {
        int32_t distance = 0;
        for (int i = 0; i < 4; ++i) distance |= static_cast<int32_t>(code[1 + i]) << (8 * i);
        const uintptr_t target = reinterpret_cast<uintptr_t>(code) + 5 + distance;
        unsigned char present = 0;
        const bool mapped =
            mincore(reinterpret_cast<void*>(target & ~uintptr_t{4095}), 4096, &present) == 0;
        return code[0] != 0xe8 || mapped;
    });
}

// Those that do have the system call by which their trampoline tells of a hit. A seccomp filter
// can't hide it from us, since it passes all of them.
bool has_no_trampoline() {
    constexpr long kUprobe = 336; // an error, or SIGILL, for whoever is not the trampoline
    return ask_child([] { return syscall(kUprobe) == -1 && errno == ENOSYS; });
}

const char* nop_kind_name() {
    return "optimized nop";
}

void add_machine_checks(std::vector<Check>& checks, const Features& features) {
    const bool good = features.nop5_optimized;
    checks.push_back({"optimised nop probes", good ? Check::State::kGood : Check::State::kDegraded,
                      good ? "functions that begin with a 5-byte nop cost least"
                           : "functions that begin with a 5-byte nop are single-stepped",
                      good ? "" : "Linux 6.18 or newer on x86-64"});
}

} // namespace speedbump::engine
