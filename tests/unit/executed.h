// SPDX-License-Identifier: MIT
#pragma once

#include <gtest/gtest.h>
#include <sys/ptrace.h>
#include <sys/user.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <unordered_map>
#include <vector>

#include "process/maps.h"

namespace speedbump {

// What a program has executed, from its first instruction to its last.
struct Executed {
    std::unordered_map<uint64_t, uint64_t> counts; // how often each address
    std::vector<process::Mapping> mappings;        // at the end
    uint64_t steps = 0;

    uint64_t times(uint64_t address) const {
        const auto found = counts.find(address);
        return found == counts.end() ? 0 : found->second;
    }
};

// Runs a program of one thread instruction by instruction.
inline Executed execute_by_steps(const std::vector<std::string>& arguments) {
    Executed executed;
    std::fflush(stdout);
    const pid_t child = ::fork();
    if (child == 0) {
        std::vector<char*> raw;
        for (const std::string& one : arguments) raw.push_back(const_cast<char*>(one.c_str()));
        raw.push_back(nullptr);
        if (std::freopen("/dev/null", "w", stdout) == nullptr) ::_exit(1);
        ::setenv("LC_ALL", "C", 1);
        ::ptrace(PTRACE_TRACEME, 0, nullptr, nullptr);
        ::execv(raw[0], raw.data());
        ::_exit(127);
    }
    int status = 0;
    EXPECT_EQ(::waitpid(child, &status, 0), child);
    EXPECT_TRUE(WIFSTOPPED(status)) << "not started";
    while (WIFSTOPPED(status)) {
        const auto ip = static_cast<unsigned long>(
            ::ptrace(PTRACE_PEEKUSER, child, offsetof(user_regs_struct, rip), nullptr));
        ++executed.counts[ip];
        // Libraries come and stay; the last full look has them all, the first what is static.
        if (executed.steps++ % 20000 == 0)
            if (auto now = process::read_maps(child);
                now && now->size() >= executed.mappings.size())
                executed.mappings = std::move(*now);
        const int signal = WSTOPSIG(status) == SIGTRAP ? 0 : WSTOPSIG(status);
        if (::ptrace(PTRACE_SINGLESTEP, child, nullptr, signal) != 0) break;
        if (::waitpid(child, &status, 0) != child) break;
    }
    EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << status;
    return executed;
}

} // namespace speedbump
