// SPDX-License-Identifier: MIT
#pragma once

#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

namespace speedbump::test {

// A process of this program's file that waits to be killed.
class WaitingProcess {
  public:
    WaitingProcess() : pid_(fork()) {
        while (pid_ == 0) pause();
    }
    WaitingProcess(const WaitingProcess&) = delete;
    WaitingProcess& operator=(const WaitingProcess&) = delete;
    ~WaitingProcess() {
        kill(pid_, SIGKILL);
        waitpid(pid_, nullptr, 0);
    }
    pid_t pid() const { return pid_; }

  private:
    pid_t pid_;
};

} // namespace speedbump::test
