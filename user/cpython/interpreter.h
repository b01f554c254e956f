// SPDX-License-Identifier: MIT
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <string>
#include <vector>

#include "process/remote_elf.h"
#include "util/result.h"

namespace speedbump::cpython {

// A CPython interpreter in a process, as seen from outside.
struct Interpreter {
    int major = 0;  // 0: older than 3.7, where nothing tells the version
    int minor = 0;  // of a 3.7, 3.8 or 3.9, which nothing tells apart either: 9
    int micro = -1; // -1: not told by this version (before 3.11)
    bool free_threaded = false;
    bool debug = false;         // --with-pydebug: another ABI
    bool in_executable = false; // static: the interpreter is part of the main executable
    bool initialized = false;   // an interpreter state exists
    bool musl = false;
    std::string path;             // of the file that holds it, as the process's maps name it
    uint64_t runtime_address = 0; // of _PyRuntime

    // Whether cores are built for it: CPython 3.10 and later on glibc.
    bool is_supported() const { return major == 3 && minor >= 10 && !musl; }
    // "3.12", "3.14t", "3.13d": what cores are called by.
    std::string tag() const;
    // "Python 3.12.1 (/usr/bin/python3.12)", for messages.
    std::string describe() const;
};

// The interpreters among the modules of a process; copies that were never initialised come last.
std::vector<Interpreter> interpreters_of(const process::RemoteMemory& memory,
                                         const std::vector<process::RemoteModule>& modules);

// The interpreters of a process. Empty: it is no Python. Reads memory only, stops nothing.
Result<std::vector<Interpreter>> find_interpreters(pid_t pid);

} // namespace speedbump::cpython
