// SPDX-License-Identifier: MIT
#include "inject/injector.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstring>
#include <functional>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include "cpython/gil.h"
#include "inject/bootstrap.h"
#include "inject/debugger_mailbox.h"
#include "inject/debugger_support.h"
#include "inject/fire.h"
#include "inject/machine.h"
#include "inject/payload.h"
#include "inject/process_state.h"
#include "inject/target_files.h"
#include "inject/target_lock.h"
#include "inject/thread_start.h"
#include "process/threads.h"
#include "util/channel.h"
#include "util/clock.h"

namespace speedbump::inject {
namespace {

using cpython::Interpreter;
using process::RemoteMemory;
using process::RemoteModule;

// A process as young as this has an interpreter that is starting rather than one that ends.
constexpr milliseconds kStartingAge{10000};

// A GIL that was asked for this long (see ask_no_more()) is had as soon as it can be.
constexpr milliseconds kAsking{100};

Result<void> wait_for_age(pid_t pid, milliseconds minimum) {
    for (;;) {
        std::optional<milliseconds> age = read_age(pid);
        if (!age) return errno_error(fmt::format("process {}", pid), ESRCH);
        if (*age >= minimum) return {};
        std::this_thread::sleep_for(minimum - *age);
    }
}

Result<Fd> open_core(const std::string& path, std::string& build) {
    Fd file(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
    if (!file.valid()) return errno_error("open " + path, errno);
    struct stat info {};
    if (fstat(file.get(), &info) != 0) return errno_error("stat " + path, errno);
    build = fmt::format("{}:{}:{}:{}.{}", info.st_dev, info.st_ino, info.st_size,
                        info.st_mtim.tv_sec, info.st_mtim.tv_nsec);
    return file;
}

Result<Interpreter> choose_interpreter(pid_t pid, const std::vector<Interpreter>& found) {
    if (found.empty())
        return make_error(ErrorKind::kNotFound,
                          fmt::format("process {} has no Python interpreter", pid));
    const Interpreter& chosen = found.front();
    if (chosen.musl)
        return make_error(ErrorKind::kUnsupported,
                          fmt::format("process {}: {} runs on musl, for which there are no cores",
                                      pid, chosen.describe()));
    if (!chosen.is_supported())
        return make_error(ErrorKind::kUnsupported,
                          fmt::format("process {}: {} is too old: 3.10 is the first that can be "
                                      "slowed",
                                      pid, chosen.describe()));
    return chosen;
}

// The module that holds the chosen interpreter.
const RemoteModule* module_of(const std::vector<RemoteModule>& modules,
                              const Interpreter& interpreter) {
    for (const RemoteModule& module : modules)
        if (module.find("_PyRuntime") == interpreter.runtime_address) return &module;
    return nullptr;
}

// The function that says whether Python code can run. From 3.15 on Py_IsInitialized() says no while
// site is imported; but a main thread that sleeps is there already, since nothing before sleeps.
const char* is_ready_function(pid_t pid, const Interpreter& interpreter) {
    const std::optional<BlockedCall> call = read_blocked_call(pid, pid);
    const bool sleeps = call && call->number == SYS_clock_nanosleep;
    return interpreter.minor >= 15 && sleeps ? "PyEval_ThreadsInitialized" : "Py_IsInitialized";
}

// What ForkGuard is for was mended in 3.12.
bool hangs_in_child(const Interpreter& interpreter) {
    return interpreter.minor < 12;
}

Result<void> fill_guard(Go& go, pid_t pid, const RemoteModule& module,
                        const std::vector<RemoteModule>& modules, bool for_states) {
    go.register_atfork = find_in_libc(modules, "__register_atfork").value_or(0);
    go.cxa_finalize = find_in_libc(modules, "__cxa_finalize").value_or(0);
    if (go.cxa_finalize == 0) go.register_atfork = 0;
    if (!for_states) return {};
    go.thread_state_new = module.find("PyThreadState_New").value_or(0);
    go.interpreter_main = module.find("PyInterpreterState_Main").value_or(0);
    for (auto [address, name] :
         {std::pair{go.thread_state_new, "PyThreadState_New"},
          std::pair{go.interpreter_main, "PyInterpreterState_Main"},
          std::pair{go.register_atfork, "__register_atfork and __cxa_finalize"}})
        if (address == 0)
            return make_error(ErrorKind::kUnsupported,
                              fmt::format("process {} does not export {}", pid, name));
    return {};
}

Result<void> fill_go(Go& go, pid_t pid, const RemoteModule& module, const Interpreter& interpreter,
                     const std::string& source) {
    for (auto [slot, name] :
         {std::pair{&go.is_ready, is_ready_function(pid, interpreter)},
          std::pair{&go.gil_ensure, "PyGILState_Ensure"},
          std::pair{&go.gil_release, "PyGILState_Release"}, std::pair{&go.dict_new, "PyDict_New"},
          std::pair{&go.dict_set_item_string, "PyDict_SetItemString"},
          std::pair{&go.dict_get_item_string, "PyDict_GetItemString"},
          std::pair{&go.is_true, "PyObject_IsTrue"},
          std::pair{&go.call_method, "PyObject_CallMethod"},
          std::pair{&go.long_from_long, "PyLong_FromLong"},
          std::pair{&go.run_string, "PyRun_StringFlags"}, std::pair{&go.dec_ref, "Py_DecRef"},
          std::pair{&go.err_clear, "PyErr_Clear"}}) {
        std::optional<uint64_t> address = module.find(name);
        if (!address)
            return make_error(
                ErrorKind::kUnsupported,
                fmt::format("process {}: {} does not export {}", pid, module.path(), name));
        *slot = *address;
    }
    if (source.size() >= sizeof(go.source))
        return make_error(ErrorKind::kInvalid, "the core's path is too long");
    std::memcpy(go.channel_name, "channel", sizeof("channel"));
    std::memcpy(go.core_name, "core", sizeof("core"));
    std::memcpy(go.module_name, "module", sizeof("module"));
    std::memcpy(go.serve_name, "serve", sizeof("serve"));
    std::memcpy(go.serve_format, "ii", sizeof("ii"));
    std::memcpy(go.source, source.c_str(), source.size() + 1);
    return {};
}

// Sends the go with both descriptors, and the directory to go to, if any.
Result<void> hand_over(int socket, const Go& go, int channel, int core, const Fd& directory) {
    std::vector<int> descriptors = {channel, core};
    if (directory.valid()) descriptors.push_back(directory.get());
    const size_t size = offsetof(Go, source) + std::strlen(go.source) + 1;
    const int error = send_packet(socket, {reinterpret_cast<const char*>(&go), size}, descriptors);
    if (error != 0) return errno_error("hand over the core", error);
    return {};
}

// Waits until the thread of that region has taken note of the go: what it could not take of it, the
// channel with it, is closed a moment before.
void wait_for_note(pid_t pid, uint64_t region) {
    constexpr milliseconds kNoteTimeout{200};
    const RemoteMemory memory(pid);
    const Clock::time_point deadline = Clock::now() + kNoteTimeout;
    while (memory.value<uint32_t>(region + kDataOffset + offsetof(Region, state)) ==
               kRegionWaiting &&
           Clock::now() < deadline)
        std::this_thread::sleep_for(milliseconds(1));
}

// Has the program's switch interval put back for a thread that still waits for the GIL: a call into
// C may hold it for long. The thread does so itself, too, when it has the GIL.
void ask_no_more(pid_t pid, uint64_t region, const Go& go) {
    const RemoteMemory memory(pid);
    const auto guard = memory.value<ForkGuard>(region + kDataOffset + offsetof(Region, guard));
    if (go.gil_interval == 0 || !guard || guard->gil_interval != go.gil_interval) return;
    uint64_t before = guard->interval_us;
    if (before == 0 || memory.value<uint64_t>(go.gil_interval) != kAskingUs) return;
    const iovec own{&before, sizeof before};
    const iovec its{reinterpret_cast<void*>(go.gil_interval), sizeof before};
    process_vm_writev(pid, &own, 1, &its, 1, 0);
}

// Of an interpreter whose lock was not had in time.
// `before`: what its threads had had of the CPUs when it was waited for.
Error no_lock(pid_t pid, const Interpreter& interpreter, milliseconds timeout,
              const process::ThreadTimes& before) {
    const auto now = process::read_all_thread_times(pid);
    const auto ran = now.ran - before.ran, waited = now.waited - before.waited;
    const auto ms = [](nanoseconds time) { return std::chrono::round<milliseconds>(time).count(); };
    const std::string text = fmt::format("process {}: {} let no other thread run for {} ms: ", pid,
                                         interpreter.describe(), timeout.count());
    constexpr int kStarved = 10;
    if (waited > timeout / 2 && waited > kStarved * ran)
        return make_error(ErrorKind::kTimeout,
                          fmt::format("{}its threads had a CPU for {} ms and waited for one for {} "
                                      "ms",
                                      text, ms(ran), ms(waited)))
            .with_hint(
                "nothing was left behind that would run later; its cgroup has used up its "
                "quota of CPU time, or others go before it");
    return make_error(ErrorKind::kTimeout, text + "a call into C holds the interpreter lock")
        .with_hint("nothing was left behind that would run later; try again when the call is over");
}

// Waits for the core's answer on the channel, from the thread of that region, which asks for the
// GIL no longer than kAsking at a time.
Result<void> wait_for_answer(pid_t pid, int channel, int pid_fd, uint64_t region, const Go& go,
                             milliseconds timeout, const Interpreter& interpreter,
                             bool& not_running) {
    std::optional<process::ThreadTimes> before; // once it takes longer: there may be many threads
    const Clock::time_point deadline = Clock::now() + timeout;
    for (;;) {
        const auto left =
            std::min(kAsking, std::chrono::ceil<milliseconds>(deadline - Clock::now())).count();
        pollfd fds[2] = {{channel, POLLIN, 0}, {pid_fd, POLLIN, 0}};
        int ready = poll(fds, 2, static_cast<int>(std::max<int64_t>(left, 0)));
        if (ready < 0 && errno == EINTR) continue;
        if (ready < 0) return errno_error("poll", errno);
        if (fds[0].revents & POLLIN) {
            char buffer[8192];
            ssize_t got = recv(channel, buffer, sizeof(buffer), MSG_DONTWAIT);
            if (got > 0)
                return read_bootstrap_answer(std::string_view(buffer, static_cast<size_t>(got)));
        }
        if (fds[1].revents) return errno_error(fmt::format("process {}", pid), ESRCH);
        if (fds[0].revents & (POLLHUP | POLLERR)) {
            wait_for_note(pid, region);
            if (std::optional<Error> failure = read_failure(pid, region))
                return std::move(*failure);
            not_running = true;
            return make_error(ErrorKind::kIo, fmt::format("process {}: {} is starting or ending",
                                                          pid, interpreter.describe()));
        }
        if (ready == 0) ask_no_more(pid, region, go);
        if (!before) before = process::read_all_thread_times(pid);
        if (left <= 0) return no_lock(pid, interpreter, timeout, *before);
    }
}

Result<void> wait_for_core(pid_t pid, int channel, int pid_fd, uint64_t region, const Go& go,
                           milliseconds timeout, const Interpreter& interpreter,
                           bool& not_running) {
    Result<void> answer =
        wait_for_answer(pid, channel, pid_fd, region, go, timeout, interpreter, not_running);
    if (!answer) ask_no_more(pid, region, go);
    return answer;
}

// Of a process that another one traces: the way that its interpreter has for debuggers, or why
// there is none. `reason`: the obstacle.
Result<Fd> enter_past_tracer(const DebuggerSupportRequest& request, Error reason) {
    const bool traced = reason.kind == ErrorKind::kPermission;
    if (!traced || !has_debugger_mailbox(request.interpreter)) return reason;
    const std::optional<ThreadStatus> status = read_status(request.pid, request.pid);
    if (!status || status->seccomp != 0) {
        reason.message += "; and it has a seccomp filter, which cannot be read then";
        return reason;
    }
    Result<Fd> channel = enter_by_debugger_support(request);
    if (channel) return channel;
    reason.message += "; and " + channel.error().message;
    return reason;
}

// What the new thread is told.
Result<std::unique_ptr<Go>> make_go(pid_t pid, const std::vector<RemoteModule>& modules,
                                    const Interpreter& interpreter, const std::string& source) {
    auto go = std::make_unique<Go>();
    const RemoteModule* module = module_of(modules, interpreter);
    if (!module) return errno_error(fmt::format("process {}", pid), ESRCH);
    if (Result<void> filled = fill_go(*go, pid, *module, interpreter, source); !filled)
        return std::move(filled.error());
    if (Result<void> filled = fill_guard(*go, pid, *module, modules, hangs_in_child(interpreter));
        !filled)
        return std::move(filled.error());
    if (const auto gil = cpython::main_gil(process::ProcessSource(pid), interpreter)) {
        go->gil_interval = gil->interval;
        go->gil_locked = gil->locked;
    }
    return go;
}

// One attempt. `not_running`: it failed because the interpreter is starting or ending.
Result<Injection> inject_once(pid_t pid, const InjectOptions& options, Clock::time_point begin,
                              Clock::time_point deadline, bool& not_running) {
    not_running = false;
    Fd pid_fd(static_cast<int>(syscall(SYS_pidfd_open, pid, 0)));
    if (!pid_fd.valid()) return errno_error(fmt::format("process {}", pid), errno);
    Result<Fd> lock = lock_target(pid, pid_fd, deadline);
    if (!lock) return std::move(lock.error());
    if (Result<void> aged = wait_for_age(pid, options.minimum_age); !aged)
        return std::move(aged.error());
    if (Result<void> own = wait_for_own_memory(pid, deadline); !own) return std::move(own.error());

    Result<std::vector<RemoteModule>> modules = process::load_modules(pid);
    if (!modules) return std::move(modules.error());
    Result<Interpreter> interpreter =
        choose_interpreter(pid, cpython::interpreters_of(RemoteMemory(pid), *modules));
    if (!interpreter) {
        std::optional<Error> reason = obstacle(pid);
        return reason ? std::move(*reason) : std::move(interpreter.error());
    }
    if (!interpreter->initialized) {
        not_running = true;
        return make_error(ErrorKind::kTimeout, fmt::format("process {}: {} is not initialised", pid,
                                                           interpreter->describe()));
    }
    std::string build;
    Result<Fd> core = open_core(options.core, build);
    if (!core) return std::move(core.error());
    Result<CorePlace> place = place_core(pid, options.core, *core);
    if (!place) return std::move(place.error());
    const std::string source = load_source(place->path, build);

    Injection injection;
    injection.interpreter = *interpreter;
    if (std::optional<Error> reason = obstacle(pid)) {
        Result<Fd> channel = enter_past_tracer(
            {pid, *interpreter, core->get(), source, options.interpreter_timeout}, *reason);
        if (!channel) return std::move(channel.error());
        injection.channel = std::move(*channel);
        injection.by_debugger_support = true;
        injection.timing.to_code = Clock::now() - begin;
        return injection;
    }

    auto go = make_go(pid, *modules, *interpreter, source);
    if (!go) return std::move(go.error());
    int ends[2];
    if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) != 0)
        return errno_error("socketpair", errno);
    injection.channel = Fd(ends[0]);
    Fd core_end(ends[1]);

    Result<std::unique_ptr<Fire>> fire = Fire::prepare(
        pid, *modules,
        {thread_offset(), place->directory.valid() ? &calls_without_proc() : &needed_calls()});
    if (!fire) return std::move(fire.error());
    Result<FireReport> report = (*fire)->fire(deadline);
    if (!report) return std::move(report.error());
    injection.timing.stopped = report->stopped;
    injection.timing.stops = report->looks;
    Result<Region> region = wait_for_thread(pid, **fire, *report, pid_fd.get());
    if (!region) {
        wait_until_clean(pid, **fire, report->region, false);
        return std::move(region.error());
    }
    injection.timing.to_thread = Clock::now() - begin;

    Result<void> done = start_thread(pid, pid_fd, region->our_fd, [&](int bootstrap) {
        return hand_over(bootstrap, **go, core_end.get(), core->get(), place->directory);
    });
    core_end.reset();
    if (done)
        done = wait_for_core(pid, injection.channel.get(), pid_fd.get(), report->region, **go,
                             options.interpreter_timeout, *interpreter, not_running);
    injection.timing.to_code = Clock::now() - begin;
    if (!done) injection.channel.reset(); // cancels: the thread looks at it under the GIL
    wait_until_clean(pid, **fire, report->region, done.has_value());
    (*fire)->heed_late_signal(region->restarts != 0);
    if (!done) return std::move(done.error());
    return injection;
}

} // namespace

Result<Injection> inject(pid_t pid, const InjectOptions& options) {
    if (auto can = can_borrow(pid); !can) return std::move(can).error();
    Clock::time_point begin = Clock::now();
    Clock::time_point deadline = begin + options.safe_point_timeout;
    for (;;) {
        bool not_running = false;
        Result<Injection> injection = inject_once(pid, options, begin, deadline, not_running);
        if (injection || !not_running || Clock::now() > deadline) return injection;
        std::optional<milliseconds> age = read_age(pid);
        if (!age || *age > kStartingAge) return injection;
        std::this_thread::sleep_for(milliseconds(5));
    }
}

} // namespace speedbump::inject
