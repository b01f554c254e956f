// SPDX-License-Identifier: MIT
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <string>
#include <unordered_set>
#include <vector>

#include "compat.h"
#include "groups.h"
#include "table.h"
#include "targets/target.h"
#include "util/result.h"

// The session of this process: which functions are slowed and by what table. There is one of it,
// whether a program installed it or a loader attached, and all interpreters of the process share
// it. Functions that take an Interpreter are called with its GIL held.
namespace speedbump::python {

// A function that a line matched.
struct FoundFunction {
    uint32_t line = 0; // index into the lines of the targets file
    std::string module;
    std::string name;
    std::string file;
};

// What this core keeps per interpreter, from its first hook to its end.
struct Interpreter {
    PyInterpreterState* state = nullptr;
    Py_ssize_t decision_index = -1; // of the code extra that holds the decision
    Py_ssize_t name_index = -1;     // of the code extra that holds the qualified name (3.10)
    sb_slot* slot = nullptr;        // with a GIL: the writer of all its threads
    bool runs_beside = false;       // its threads run beside those of other interpreters, or others
    std::atomic<int> tool_id{-1};   // of sys.monitoring, else 0; -1: not hooked
    PyObject* monitoring = nullptr; // owned, as the following
    PyObject* callback = nullptr;
    PyObject* disable = nullptr;
    bool chained = false; // PEP 523: our function is set, or called by one that is

    bool is_hooked() const { return tool_id.load() >= 0; }
};

// The state of the running interpreter, made when it is first asked for; null with a Python error
// set when that fails.
Interpreter* this_interpreter();

// Where a process is, as only the loader can tell. Of a program's own session: nowhere in
// particular.
struct Place {
    uint32_t pid_namespace = 0;  // its number
    int64_t clock_offset_ns = 0; // of CLOCK_MONOTONIC here, to that of the table's windows
};

// One session's targets and what it calls for each function it finds.
struct SessionSpec {
    targets::TargetsFile file;     // the lines by table index; decides
    std::vector<uint32_t> applies; // indexes of the target lines that can match here
    Table table;                   // of at least file.lines.size() targets
    uint64_t roots = ~uint64_t{0}; // the roots this process belongs to
    Place place;
    Grouping grouping;
    std::string identity;                     // of a loader's session; empty: the program's own
    bool is_trial = false;                    // of calibrate_hook(): no forked child keeps it
    std::function<void(FoundFunction)> found; // called with the GIL held; may be empty
};

// The session's life. begin() replaces nothing: it is kInvalid while there is one.
Result<void> begin_session(SessionSpec spec);
// Delays in flight end at once; the hooks must have been removed from all interpreters before the
// table goes: end_session() after unhook() everywhere. It returns whether all threads have left the
// hooks; if not, the table stays mapped.
void stop_delays();
bool end_session();
// The process is a child of the one that the session began in, and may be elsewhere.
void set_place(const Place& place);
bool has_session();
std::string session_identity();
// Whether there is one that a loader began, and that is over: a child of a process that was in it
// keeps it, where nobody ends it.
bool is_left_over();
const Table& session_table();
// Changes one line in place and makes every function be looked at again.
void set_line(uint32_t index, const targets::TargetLine& line, bool applies);
// Makes every function be looked at again.
void forget_decisions();
// The same, and the functions of some lines are told apart from now on, by `grouping`, which is
// then the one before: to free that may take ms. Hooks that switch functions off have to be told to
// look_anew().
void regroup(Grouping& grouping);
// The number of the grouping that is in place.
uint32_t session_grouping();
// The modules, as they are written, of those lines that have not named a function so far.
std::vector<targets::Pattern> modules_without_functions();

// Puts the hook into the running interpreter; false with a Python error set when it can't. `spin`
// is what a hook does not know yet: its own cost, see calibrate.h.
bool hook(Interpreter& interpreter);
// After regroup(): has a hook that is in see all functions again. False with a Python error set.
bool look_anew(Interpreter& interpreter);
// Whether somebody else has taken it out of the main interpreter, as who puts back what there was
// before ours does (PEP 523). No GIL needed.
bool is_pushed_out();
// Puts it in again, where that is so.
void put_back(Interpreter& interpreter);
// Takes it out again; never fails, a Python error that is set stays set.
void unhook(Interpreter& interpreter);
// Whether any interpreter of the process has the hook.
bool any_hooked();
// Drops what the hook holds when the interpreter is torn down and runs no code any more.
void abandon(Interpreter& interpreter);

// What a look at the functions that exist leaves out, and what it saw.
struct Look {
    // Modules that are known already, as keys of their names and files.
    std::unordered_set<uint64_t> known;
    std::vector<uint64_t> modules; // keys of those that were not, and are now
    // Asked each time that the GIL was given up, without it: whether to go on.
    std::function<bool()> goes_on = [] { return true; };
    bool is_stopped = false; // it did not; nothing is in `modules` then
    // The GIL must not be given up. A look that takes too long leaves the rest to the next one.
    bool keeps_gil = false;
    bool is_unfinished = false; // it has left some; nothing is in `modules` then
};

// Looks at the functions that exist, so that the found ones are known before their first call. The
// program has the GIL at least half of the time, and waits for it no longer than some 1 ms. Only
// for a line that names no function of a module that is there, and where there is no GIL, it waits
// for a walk of all objects; other functions that no name leads to (functions.h) are found at their
// first call. False with a Python error set.
bool look_at_existing(Interpreter& interpreter, Look& look);
// Where code does not know its name (3.10): before the hook is in, which would need a walk of all
// objects for the first function without one. False with a Python error set.
bool name_existing(Interpreter& interpreter, Look& look);

// All functions that exist, those nested in others too; each code object once. `line` is 0. Needs
// no session. The GIL is given up now and then, unless it has to be kept. False with a Python error
// set.
bool list_functions(Interpreter& interpreter, bool keeps_gil, std::vector<FoundFunction>& list);

// The decision for a code object, made at its first call: kept in the code object as the
// generation it was made in (upper half) and 1 + the line's index, 0 for no line.
using Decision = uint64_t;
inline uint32_t generation_of(Decision decision) {
    return static_cast<uint32_t>(decision >> 32);
}
inline uint32_t place_of(Decision decision) {
    return static_cast<uint32_t>(decision);
}
// Never raises, never loses an error that is set.
Decision decide(Interpreter& interpreter, PyCodeObject* code, PyObject* globals) noexcept;

// What the hooks read at every call.
struct Live {
    uint32_t pid = 0;             // of this process: a hook makes no system call for it
    const Table* table = nullptr; // of which the following are parts; there as long as it is mapped
    const sb_settings* settings = nullptr;
    const sb_target* targets = nullptr;
    sb_counters* counters = nullptr;
    sb_turn* turns = nullptr;
    const sb_schedule* schedule = nullptr; // null: none
    uint32_t columns = 0;
    uint64_t slices_offset = 0;     // of the counts by slice in a slot
    sb_slot* shared_slot = nullptr; // of those who found none; written with atomics
    uint64_t overhead_ns = 0;       // a delayed call costs this beyond its spin
    uint64_t roots = 0;
    Place place;
    std::atomic<uint32_t> writers{0}; // changes when slots must be claimed anew
    std::atomic<uint32_t> running{0}; // 0: no delay starts, the one in flight ends
    // What the settings have in `armed` when the grouping in place here is the one that counts.
    std::atomic<uint32_t> armed_as{SB_ARMED(0)};
    // The decision "no line" of the present generation; older generations don't count.
    std::atomic<Decision> no_match{Decision{1} << 32};
};
extern Live g_live;

inline bool is_current(Decision decision) {
    return generation_of(decision) ==
           generation_of(g_live.no_match.load(std::memory_order_relaxed));
}

// While it lives the calling thread is in a hook, and finds the table where it was, provided that
// g_live.running is not 0 then. Needed where the GIL, which the end of a session holds, is not
// held.
class InHook {
  public:
    explicit InHook(bool runs_beside) : threads_(runs_beside ? &enter() : nullptr) {}
    ~InHook() {
        if (threads_ != nullptr) threads_->fetch_sub(1, std::memory_order_release);
    }
    InHook(const InHook&) = delete;
    InHook& operator=(const InHook&) = delete;

  private:
    static std::atomic<uint32_t>& enter();

    std::atomic<uint32_t>* threads_;
};

// One matching call: counts it and delays it as the table says, for the target of the decision,
// which names one. False when the session is over and the hook should go. Never raises.
bool on_match(Interpreter& interpreter, Decision decision) noexcept;

// Runs on every fork in the child: new counters, no channel. Registered once by the module.
void register_fork_handlers(void (*in_child)());

} // namespace speedbump::python
