// SPDX-License-Identifier: MIT
#pragma once

#include <sys/types.h>

#include <chrono>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "cpython/interpreter.h"
#include "engine/engine.h"
#include "inject/injector.h"
#include "util/fd.h"
#include "util/result.h"

namespace speedbump::engine {

// What every interpreter of a session is told.
struct PythonSession {
    std::string identity;        // names the session; not empty
    std::string targets;         // the text of the targets file
    std::vector<uint32_t> lines; // indexes of the Python lines that apply
    int settings = -1; // the two memfds of the session's table (abi.h), the caller's; or none
    int counters = -1;
};

// The functions that exist in the interpreters of a process; `line` of each is 0. Gets into the
// process as attach() does, hooks nothing, and leaves. A process that has not told all by the
// time-out, or tells of more than 2^20 functions, is an error.
Result<std::vector<PythonMatch>> list_python_functions(
    pid_t pid, const std::vector<std::string>& directories, inject::InjectOptions options = {},
    std::chrono::milliseconds timeout = std::chrono::seconds(30));

// A process whose interpreter is hooked.
struct PythonAttachment {
    pid_t process = 0;
    cpython::Interpreter interpreter;
    inject::Timing timing;
    bool inherited = false;  // forked from an attached process, and hooked before
    bool from_start = false; // hooked before the first line of its program ran
    std::chrono::nanoseconds hook_overhead{0};
    std::vector<PythonMatch> matches;
    std::vector<std::string> warnings;
};

// What an attached process had to say, or what became of it.
struct PythonEvent {
    enum class Kind {
        kMatched, // more functions
        kGone,    // hooked no more: detached, exit, exec (then it may be attached anew)
        kOutcome, // of begin_attach()
    };
    Kind kind = Kind::kMatched;
    pid_t process = 0;
    std::vector<PythonMatch> matches;
    std::string reason; // kGone: "detach", "exit", "hang-up"
    std::optional<Result<PythonAttachment>> outcome{};
};

// Slows the Python functions of running processes. The delays themselves are the table's: arming,
// pausing and changing them needs no word to the processes. Not thread-safe.
class PythonEngine {
  public:
    // Directories as from core_directories().
    static Result<std::unique_ptr<PythonEngine>> create(PythonSession session,
                                                        std::vector<std::string> directories);
    // Detaches from all, waiting up to a second.
    ~PythonEngine();
    PythonEngine(const PythonEngine&) = delete;
    PythonEngine& operator=(const PythonEngine&) = delete;

    // Hooks the interpreter of a process; `roots` is its root mask. kNotFound: it is gone, or no
    // Python. An attached process is left as it is: kInvalid.
    Result<PythonAttachment> attach(pid_t pid, uint64_t roots = ~uint64_t{0},
                                    const inject::InjectOptions& options = {});
    // Several at the same time, so that one that holds its interpreter lock delays no other; the
    // results in the order of `pids`.
    std::vector<Result<PythonAttachment>> attach(std::span<const pid_t> pids,
                                                 uint64_t roots = ~uint64_t{0},
                                                 const inject::InjectOptions& options = {});
    // The same without waiting: poll() tells the outcome, as an event of the process. No process
    // may be begun again before.
    void begin_attach(pid_t pid, uint64_t roots, const inject::InjectOptions& options);

    // Whether a process has still to tell which functions it has. Those that were attached
    // together, or by begin_attach(), look at their functions once their hooks are in, which slow
    // them before; poll() has them begin, one after the other, so that each leaves out the modules
    // that others have told of; it is to be called again and again meanwhile.
    bool is_looking() const;

    // Has the functions of some lines told apart in all processes, attached now or later. kTimeout:
    // a process has not said in time that it does; the others do.
    Result<void> regroup(const Regrouping& regrouping, std::chrono::milliseconds timeout);
    // The number of the last regroup(), which those attached go by; 0: there was none.
    uint64_t grouping() const;

    // For poll or epoll: readable when poll() has something to report.
    int fd() const { return epoll_.get(); }
    // What has come in; never waits.
    std::vector<PythonEvent> poll();
    std::vector<pid_t> attached() const;

    // Takes the hooks out and waits for the word that they are. kTimeout: a call into C holds the
    // interpreter lock; delays have ended all the same, and the hooks go with the next chance.
    Result<void> detach(pid_t pid, std::chrono::milliseconds timeout);
    void detach_all(std::chrono::milliseconds timeout);

  private:
    struct Process {
        Fd channel;
        Fd pid_fd;
        uint64_t grouping = 0;            // the number of what it was told last, and has said to do
        std::string not_grouped;          // why it could not
        std::chrono::nanoseconds held{0}; // its interpreter lock, for it
        enum class Look { kDone, kWanted, kUnderWay } look = Look::kDone;
        std::chrono::steady_clock::time_point look_begun{};
    };
    struct Hooked; // an attachment with its channel
    struct Request {
        pid_t pid;
        uint64_t roots;
        inject::InjectOptions options;
        bool looks_later = true;
    };
    PythonEngine(PythonSession session, std::vector<std::string> directories);
    Result<Hooked> hook(const Request& request) const;
    Result<Hooked> try_hook(const Request& request) const;
    Result<PythonAttachment> adopt(Result<Hooked> hooked);
    Result<uint64_t> begin(const Request& request, int channel) const;
    void start_looks();
    int send_look(const Process& process); // 0, or an errno
    void take_looked(Process& process, const std::vector<uint64_t>& modules, bool more);
    int send_groups(const Process& process) const; // 0, or an errno
    Result<void> wait_grouped(pid_t pid, std::chrono::steady_clock::time_point deadline);
    bool handle(pid_t pid, const std::string& packet, std::vector<PythonEvent>& events);
    void wait_gone(std::vector<pid_t> pids, std::chrono::milliseconds timeout);
    void forget(pid_t pid);
    void start_workers();
    void take_outcomes(std::vector<PythonEvent>& events);
    Result<void> watch(int fd, pid_t pid);

    PythonSession session_;
    std::vector<std::string> directories_;
    Fd epoll_;
    Fd long_targets_; // memfd of the text when it is too long for a packet
    std::map<pid_t, Process> processes_;
    std::vector<PythonEvent> events_;  // that came while nobody polled
    std::set<uint64_t> known_modules_; // of which a process has told all functions
    Fd known_file_;                    // the text of so many of them
    size_t known_in_file_ = 0;

    // begin_attach(): one thread each, a few at a time.
    std::deque<Request> requests_;
    std::map<pid_t, std::thread> workers_;
    Fd worker_done_; // eventfd
    mutable std::mutex mutex_;
    std::vector<std::pair<pid_t, Result<Hooked>>> outcomes_; // under mutex_, as the following
    uint64_t grouping_ = 0;                                  // the number of the last regroup()
    std::shared_ptr<const Fd> groups_;                       // its text, sealed
};

} // namespace speedbump::engine
