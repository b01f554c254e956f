// SPDX-License-Identifier: MIT
#pragma once

#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstdint>
#include <cstring>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "abi.h"
#include "inject/process_state.h"
#include "util/fd.h"

namespace speedbump::test {

// Of paths with ':' between them, as CMake has them in TEST_PYTHONS.
inline std::vector<std::string> paths_of(const char* joined) {
    std::vector<std::string> paths;
    std::istringstream text(joined);
    for (std::string path; std::getline(text, path, ':');) paths.push_back(path);
    return paths;
}

// A program of targets.py (or another with the same arguments) that runs as long as the object.
class TargetProcess {
  public:
    // `command` and then the path of the file of beats. Waits for the first beat.
    explicit TargetProcess(std::vector<std::string> command, std::vector<std::string> more = {}) {
        char path[] = "/tmp/speedbump-beats-XXXXXX";
        Fd file(mkstemp(path));
        path_ = path;
        if (ftruncate(file.get(), 8) != 0 || fchmod(file.get(), 0666) != 0) return;
        beats_ =
            static_cast<volatile uint64_t*>(mmap(nullptr, 8, PROT_READ, MAP_SHARED, file.get(), 0));
        command.push_back(path_);
        command.insert(command.end(), more.begin(), more.end());
        std::vector<char*> arguments;
        for (std::string& argument : command) arguments.push_back(argument.data());
        arguments.push_back(nullptr);
        pid_ = fork();
        if (pid_ == 0) {
            prctl(PR_SET_PDEATHSIG, SIGKILL);
            execvp(arguments[0], arguments.data());
            _exit(127);
        }
        beats_in(std::chrono::seconds(10), 1);
    }
    ~TargetProcess() {
        if (pid_ > 0 && !reaped_) {
            kill(pid_, SIGKILL);
            waitpid(pid_, nullptr, 0);
        }
        unlink(path_.c_str());
        munmap(const_cast<uint64_t*>(beats_), 8);
    }
    TargetProcess(const TargetProcess&) = delete;
    TargetProcess& operator=(const TargetProcess&) = delete;

    pid_t pid() const { return pid_; }
    uint64_t beats() const { return *beats_; }
    // Whether it goes on: at least `count` more beats within the time.
    bool beats_in(std::chrono::milliseconds time, uint64_t count = 2) {
        uint64_t goal = beats() + count;
        auto deadline = std::chrono::steady_clock::now() + time;
        while (std::chrono::steady_clock::now() < deadline) {
            if (beats() >= goal) return true;
            if (!alive()) return false;
            std::this_thread::sleep_for(std::chrono::milliseconds(1));
        }
        return false;
    }
    bool alive() {
        if (reaped_) return false;
        if (waitpid(pid_, &status_, WNOHANG) == pid_) reaped_ = true;
        return !reaped_;
    }
    int status() const { return status_; }

  private:
    pid_t pid_ = -1;
    bool reaped_ = false;
    int status_ = 0;
    std::string path_;
    volatile uint64_t* beats_ = nullptr;
};

// The two memfds of a session's table (abi.h) of `targets` lines, armed, with a delay each and no
// owner to watch.
struct TableFiles {
    Fd settings;
    Fd counters;
};

inline TableFiles make_table(uint32_t targets, uint64_t delay_ns) {
    constexpr uint32_t kSlots = 64;
    TableFiles files;
    const auto make = [](const char* name, uint64_t bytes) {
        Fd fd(memfd_create(name, MFD_CLOEXEC | MFD_ALLOW_SEALING));
        return ftruncate(fd.get(), static_cast<off_t>(bytes)) == 0 ? std::move(fd) : Fd();
    };
    files.settings = make("test-settings", sb_settings_bytes(targets, 0));
    files.counters = make("test-counters", sb_counters_bytes(targets, 0, kSlots));
    sb_settings settings{};
    settings.magic = SB_TABLE_MAGIC;
    settings.version = SB_TABLE_VERSION;
    settings.armed = SB_ARMED(0);
    settings.target_count = targets;
    settings.slot_count = kSlots;
    std::vector<sb_target> entries(targets);
    for (sb_target& entry : entries) {
        entry.delay_ns = delay_ns;
        entry.every = 1;
        entry.root_mask = ~uint64_t{0};
        entry.enabled = 1;
    }
    const auto bytes = static_cast<ssize_t>(entries.size() * sizeof(sb_target));
    if (pwrite(files.settings.get(), &settings, sizeof settings, 0) != sizeof settings ||
        pwrite(files.settings.get(), entries.data(), static_cast<size_t>(bytes), sizeof settings) !=
            bytes ||
        fcntl(files.settings.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_FUTURE_WRITE) != 0 ||
        fcntl(files.counters.get(), F_ADD_SEALS, F_SEAL_SHRINK) != 0)
        return {};
    return files;
}

// A process that traces another, so that there is no way in but the debugger's.
class Tracer {
  public:
    explicit Tracer(pid_t target) : pid_(fork()) {
        if (pid_ == 0) {
            prctl(PR_SET_PDEATHSIG, SIGKILL);
            ptrace(PTRACE_SEIZE, target, nullptr, nullptr);
            for (;;) pause();
        }
        for (auto status = inject::read_status(target, target); status && status->tracer != pid_;
             status = inject::read_status(target, target))
            std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    ~Tracer() {
        kill(pid_, SIGKILL);
        waitpid(pid_, nullptr, 0);
    }
    Tracer(const Tracer&) = delete;
    Tracer& operator=(const Tracer&) = delete;

  private:
    pid_t pid_;
};

} // namespace speedbump::test
