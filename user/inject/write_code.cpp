// SPDX-License-Identifier: MIT
#include "inject/write_code.h"

#include <sys/ptrace.h>
#include <unistd.h>

#include <cerrno>

#include "inject/hold.h"
#include "process/memory.h"

namespace speedbump::inject {

namespace {

// 0, or what the kernel said: EIO where it lets nobody write there, ESRCH where nothing is there
// any more.
int write_at(const Fd& memory, uint64_t address, const void* data, size_t size) {
    const ssize_t written = pwrite(memory.get(), data, size, static_cast<off_t>(address));
    if (written < 0) return errno;
    return static_cast<size_t>(written) == size ? 0 : ESRCH;
}

} // namespace

Result<void> write_code(pid_t pid, const Fd& memory, uint64_t address, const void* data,
                        size_t size) {
    int error = write_at(memory, address, data, size);
    if (error == EIO) {
        int seize_error = 0;
        // The end of that thread lets the process go, in whatever state it is.
        on_tracer_thread([&] {
            if (ptrace(PTRACE_SEIZE, pid, nullptr, nullptr) != 0)
                seize_error = errno;
            else
                error = write_at(memory, address, data, size);
        });
        if (seize_error != 0)
            return process::access_error(
                       pid, "trace it, as this kernel wants it before its code is written to",
                       seize_error)
                .with_hint("does another program trace it, a debugger or strace?");
    }
    if (error == 0) return {};
    Error failed = process::access_error(pid, "write its code", error);
    if (error == EIO) {
        failed.kind = ErrorKind::kUnsupported;
        failed.hint =
            "a kernel with proc_mem.force_override=never lets nobody write to memory that is "
            "not writable: Python up to 3.13 can't be attached to there, and native targets need "
            "--engine=bpf";
    }
    return failed;
}

} // namespace speedbump::inject
