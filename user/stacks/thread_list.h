// SPDX-License-Identifier: MIT
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "abi.h"
#include "cpython/interpreter.h"
#include "cpython/layout.h"
#include "stacks/call_paths.h"
#include "stacks/code.h"
#include "stacks/frame_regions.h"
#include "stacks/gathering.h"
#include "stacks/sleep_watch.h"
#include "stacks/stack.h"
#include "util/result.h"

namespace speedbump::stacks {

// A frame of the last stack that was read, outermost first.
struct Resolved {
    uint64_t code = 0;
    Code* object = nullptr;
    uint64_t ip = 0;
    int32_t bytecode_copy = 0;
    int line = 0;
    uint32_t path = CallPaths::kRoot;
};

// A Python thread, and what is known of its stack from the samples before.
struct Thread {
    Thread(uint64_t where, pid_t process, pid_t thread_id)
        : address(where), watch(process, thread_id) {
        stack.tid = thread_id;
    }
    bool is_named() const { return stack.tid != 0; }

    uint64_t address; // of its PyThreadState
    SleepWatch watch;
    ThreadStack stack;
    uint32_t read_at = 0;        // the watch's number under which `stack` was read
    uint64_t cframe = 0;         // 3.11, 3.12
    FrameRegions regions;        // where its frames lie
    std::vector<Code*> doubtful; // whose identity is read along
    std::vector<Resolved> resolved;
};

struct InterpreterState {
    uint64_t address = 0;
    uint64_t gil = 0;
    size_t first_thread = 0; // in the list of all
    // What is read of it and its lock: one piece when they lie near each other.
    uint64_t low = 0;
    uint64_t size = 0;
    bool has_lock_in_it = false;
};

// The interpreters of a process and their threads, as the target itself lists them, and whether
// that list still holds.
class ThreadList {
  public:
    // The source must outlive it. `pid` 0: no such process, nothing is known of its threads.
    ThreadList(const Source& source, const Layout& layout, const cpython::Interpreter& interpreter,
               pid_t pid);

    // Reads the list anew; what is known of threads that are still there stays.
    Result<void> read();
    // Asks for what tells that the list still is the same, and who holds a GIL. The link of the
    // thread `read_anyway` (or nullptr) is read with its state.
    void add_chain(std::vector<Piece>& wanted, const Thread* read_anyway) const;
    // Whether these bytes of add_chain()'s pieces say so; notes who holds a GIL.
    bool chain_holds(const char* bytes, const Thread* read_anyway, uint64_t its_next);
    bool holds(Gathering& gathering);
    // Asks threads for their ids that had none of the process' own: one that has just begun, and
    // all but one of a child between its fork and the interpreter's care for it, have none or their
    // parent's.
    void name_threads();

    const std::vector<std::unique_ptr<Thread>>& threads() const { return threads_; }
    const std::vector<InterpreterState>& interpreters() const { return interpreters_; }
    // Of those with an id.
    std::vector<std::pair<pid_t, sb_thread_state>> states() const;
    // Why the process can't be read: it has ended, runs another program, or else `what`.
    Error failure(const std::string& what) const;

  private:
    class Ids;
    pid_t tid_of(uint64_t thread, Ids& ids) const;
    InterpreterState describe_state(uint64_t address) const;

    const Source& source_;
    Layout layout_;
    cpython::Interpreter interpreter_;
    pid_t pid_;
    uint32_t interpreter_low_;
    uint32_t interpreter_size_;
    uint32_t gil_low_;
    uint32_t gil_size_;
    std::vector<InterpreterState> interpreters_;
    std::vector<std::unique_ptr<Thread>> threads_; // in the order of the target's lists
    bool are_all_named_ = true;
    std::vector<uint64_t> heads_;
    std::vector<uint64_t> holders_;
};

} // namespace speedbump::stacks
