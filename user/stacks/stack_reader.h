// SPDX-License-Identifier: MIT
#pragma once

#include <sys/types.h>

#include <chrono>
#include <cstdint>
#include <deque>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "abi.h"
#include "cpython/layout.h"
#include "process/remote_elf.h"
#include "process/source.h"
#include "stacks/code.h"
#include "stacks/stack.h"
#include "util/result.h"

namespace speedbump::stacks {

enum class WhichThreads {
    kAll,
    kMain,       // the main thread of the main interpreter
    kOnlyActive, // the thread that holds the GIL; without a GIL those that don't sleep
};

struct ReaderOptions {
    WhichThreads threads = WhichThreads::kAll;
    // How long one thread's stack is tried before it is given up: a stack that changes faster
    // than it can be read needs many tries.
    std::chrono::microseconds patience{10000};
};

// Reads the Python stacks of a running process. The process is not stopped, changed or written
// to. Each stack that it gives was a stack of that thread at one moment between the call and the
// return of sample(); docs/decisions/0006-reading-stacks.md says why. Stacks of different threads
// may be of different moments. For one thread at a time.
class StackReader {
  public:
    // kUnsupported when the process runs no Python that can be read (says which), kPermission,
    // kNotFound.
    static Result<StackReader> open(pid_t pid, const ReaderOptions& options);
    // The same where it is known which files the process maps, and its interpreter.
    static Result<StackReader> open(pid_t pid, const std::vector<process::RemoteModule>& modules,
                                    const cpython::Interpreter& interpreter,
                                    const ReaderOptions& options);
    // Over memory from anywhere; `pid` 0: no such process, nothing is known of its threads.
    static Result<StackReader> open(std::unique_ptr<Source> source,
                                    const cpython::Interpreter& interpreter, uint64_t code_type,
                                    pid_t pid, const ReaderOptions& options);
    StackReader(StackReader&&) noexcept;
    StackReader& operator=(StackReader&&) noexcept;
    ~StackReader();

    // Reads the stacks that were asked for. An error when the process is gone, runs another
    // program, or its threads can't be listed. A single thread's failure is its stack's fault.
    Result<void> sample();
    // Looks at the list of threads only; there are no stacks then.
    Result<void> list_threads();
    // What frames mean that a BPF program copied at one moment, innermost first (bpf/abi.h). The
    // fault is kNoCode when a code object is gone since then. `loop_pc`: the instruction at which
    // the thread was, when it was in the interpreter's loop, else 0: there it may just have been
    // linking a frame, so that the stack counts only once is_certain() says so.
    ThreadStack interpret(pid_t tid, std::span<const sb_python_frame> frames, uint64_t loop_pc);
    bool is_certain(const std::vector<Frame>& frames);
    // What a BPF program must know to copy frames: where their fields lie, and the threads with
    // their states, as they were when they were last listed.
    sb_python_layout bpf_layout() const;
    std::vector<std::pair<pid_t, sb_thread_state>> thread_states() const;
    // Of the last sample.
    const std::vector<const ThreadStack*>& stacks() const;
    // All functions seen so far, by id.
    const std::deque<Function>& functions() const;
    const cpython::Interpreter& interpreter() const;

  private:
    class Impl;
    explicit StackReader(std::unique_ptr<Impl> impl);
    std::unique_ptr<Impl> impl_;
};

} // namespace speedbump::stacks
