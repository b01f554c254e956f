// SPDX-License-Identifier: MIT
#pragma once

#include <linux/filter.h>
#include <linux/seccomp.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

// What the seccomp filters of a thread say of system calls: an interpreter of classic BPF as the
// kernel accepts it for them. Pure.
namespace speedbump::inject {

using Filter = std::vector<sock_filter>;

// The filter's answer (SECCOMP_RET_*). Nothing when the kernel would not accept the program; then
// nothing is known.
std::optional<uint32_t> run_filter(const Filter& filter, const seccomp_data& call);

// A system call that the code in a target makes.
struct NeededCall {
    const char* name;
    int number;
    uint64_t arguments[6] = {};
    // An errno does no harm: the caller does without.
    bool may_fail = false;
};

// All calls of the borrowed thread, of the thread that it makes and of the core's start, service
// and end.
const std::vector<NeededCall>& needed_calls();
// The same where a process has no /proc, and its thread goes to the core by a directory of its own.
const std::vector<NeededCall>& calls_without_proc();
// All those of an attach that maps memory (mapper.h); and those above, which it is like.
const std::vector<NeededCall>& mapper_calls();

// Nothing when the filters let all needed calls pass, else the first that they don't, with what
// would happen: "clone (its thread would be killed)".
std::optional<std::string> find_forbidden(const std::vector<Filter>& filters,
                                          const std::vector<NeededCall>& calls = needed_calls());

} // namespace speedbump::inject
