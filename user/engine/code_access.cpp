// SPDX-License-Identifier: MIT
#include "engine/code_access.h"

#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdint>

#include "inject/write_code.h"
#include "process/memory.h"
#include "util/page.h"

namespace speedbump::engine {

namespace {

Result<void> write_to_child(pid_t child, const void* code) {
    const auto memory = process::open_memory(child);
    if (!memory) return memory.error();
    const char byte = 0;
    return inject::write_code(child, *memory, reinterpret_cast<uintptr_t>(code), &byte, 1);
}

} // namespace

Check check_code_access() {
    const std::string name = "code of processes";
    void* const code =
        mmap(nullptr, kPage, PROT_READ | PROT_EXEC, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    const pid_t child = code == MAP_FAILED ? -1 : fork();
    if (child < 0) return {name, Check::State::kUnknown, "there is no memory to try it on", ""};
    if (child == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        for (;;) pause();
    }
    const auto written = write_to_child(child, code);
    kill(child, SIGKILL);
    while (waitpid(child, nullptr, 0) < 0 && errno == EINTR) {
    }
    munmap(code, kPage);
    if (written)
        return {name, Check::State::kGood, "can be written to: Python is entered in any version",
                ""};
    if (written.error().kind != ErrorKind::kUnsupported)
        return {name, Check::State::kUnknown, written.error().message, written.error().hint};
    return {
        name, Check::State::kDegraded,
        "this kernel lets nobody write to it: Python up to 3.13 can't be attached to, and there "
        "is no in-process engine",
        "boot without proc_mem.force_override=never"};
}

} // namespace speedbump::engine
