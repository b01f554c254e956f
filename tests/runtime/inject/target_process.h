// SPDX-License-Identifier: MIT
#pragma once

#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstdint>
#include <cstring>
#include <string>
#include <thread>
#include <vector>

#include "abi.h"
#include "util/fd.h"

namespace speedbump::test {

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

// A session table (abi.h) of `targets` lines, armed, with a delay each and no owner to watch.
inline Fd make_table(uint32_t targets, uint64_t delay_ns) {
    auto align = [](uint64_t value) { return (value + 63) & ~uint64_t{63}; };
    sb_table_header header{};
    header.magic = SB_TABLE_MAGIC;
    header.version = SB_TABLE_VERSION;
    header.armed = 1;
    header.target_count = targets;
    header.slot_count = 64;
    header.slot_bytes = static_cast<uint32_t>(align(sizeof(sb_slot) + targets * sizeof(sb_counts)));
    header.targets_offset = align(sizeof(header));
    header.turns_offset = align(header.targets_offset + targets * sizeof(sb_target));
    header.slots_offset = align(header.turns_offset + targets * sizeof(sb_turn));
    header.bytes = header.slots_offset + uint64_t{header.slot_count} * header.slot_bytes;
    Fd table(memfd_create("speedbump-table", MFD_CLOEXEC));
    if (ftruncate(table.get(), static_cast<off_t>(header.bytes)) != 0) return Fd();
    if (pwrite(table.get(), &header, sizeof(header), 0) != sizeof(header)) return Fd();
    for (uint32_t i = 0; i < targets; ++i) {
        sb_target target{};
        target.delay_ns = delay_ns;
        target.every = 1;
        target.root_mask = ~uint64_t{0};
        target.enabled = 1;
        if (pwrite(table.get(), &target, sizeof(target),
                   static_cast<off_t>(header.targets_offset + i * sizeof(target))) !=
            sizeof(target))
            return Fd();
    }
    return table;
}

} // namespace speedbump::test
