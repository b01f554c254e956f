// SPDX-License-Identifier: MIT
#pragma once

#include <elf.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/ptrace.h>
#include <sys/uio.h>
#include <sys/user.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

namespace speedbump {

// A child process whose registers tests set, and let run from there. It has the memory that this
// process had mapped when it was made; what is shared both go on seeing.
class TracedChild {
  public:
    TracedChild() : pid_(::fork()) {
        if (pid_ == 0) {
            ::ptrace(PTRACE_TRACEME, 0, nullptr, nullptr);
            ::raise(SIGSTOP);
            ::_exit(0);
        }
        int status = 0;
        if (::waitpid(pid_, &status, 0) != pid_ || !WIFSTOPPED(status))
            ADD_FAILURE() << "the child did not start";
        xstate_.resize(1 << 16);
        iovec area = vectors();
        ::ptrace(PTRACE_GETREGSET, pid_, NT_X86_XSTATE, &area);
        xstate_.resize(area.iov_len);
        ::ptrace(PTRACE_GETREGS, pid_, nullptr, &registers);
        registers.orig_rax = static_cast<unsigned long>(-1); // it is in no system call
    }
    TracedChild(const TracedChild&) = delete;
    TracedChild& operator=(const TracedChild&) = delete;
    ~TracedChild() {
        ::kill(pid_, SIGKILL);
        ::waitpid(pid_, nullptr, 0);
    }

    user_regs_struct registers{};
    // As XSAVE writes them; their bits of components that are in use included.
    std::vector<unsigned char>& xstate() { return xstate_; }

    // Sets all registers and executes one instruction, or all up to a trap; returns the signal that
    // ended it, with registers as they are then.
    int step() { return go(PTRACE_SINGLESTEP); }
    int run() { return go(PTRACE_CONT); }
    // The address that the last signal told, of SIGSEGV.
    uint64_t fault() const { return fault_; }

  private:
    iovec vectors() { return {xstate_.data(), xstate_.size()}; }
    int go(__ptrace_request request) {
        iovec area = vectors();
        int status = 0;
        if (::ptrace(PTRACE_SETREGS, pid_, nullptr, &registers) != 0 ||
            ::ptrace(PTRACE_SETREGSET, pid_, NT_X86_XSTATE, &area) != 0 ||
            ::ptrace(request, pid_, nullptr, nullptr) != 0 || ::waitpid(pid_, &status, 0) != pid_ ||
            !WIFSTOPPED(status)) {
            ADD_FAILURE() << "the child is lost: " << std::strerror(errno);
            return -1;
        }
        siginfo_t info{};
        ::ptrace(PTRACE_GETSIGINFO, pid_, nullptr, &info);
        fault_ = WSTOPSIG(status) == SIGSEGV ? reinterpret_cast<uint64_t>(info.si_addr) : 0;
        ::ptrace(PTRACE_GETREGS, pid_, nullptr, &registers);
        ::ptrace(PTRACE_GETREGSET, pid_, NT_X86_XSTATE, &area);
        return WSTOPSIG(status);
    }

    pid_t pid_;
    std::vector<unsigned char> xstate_;
    uint64_t fault_ = 0;
};

} // namespace speedbump
