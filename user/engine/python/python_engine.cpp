// SPDX-License-Identifier: MIT
#include "engine/python/python_engine.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <exception>
#include <nlohmann/json.hpp>
#include <system_error>

#include "engine/python/cores.h"
#include "engine/python/python_packets.h"
#include "engine/python/python_texts.h"
#include "process/namespaces.h"
#include "util/channel.h"
#include "util/clock.h"
#include "util/event_loop.h"

namespace speedbump::engine {
namespace {

using nlohmann::json;
using std::chrono::milliseconds;

// Of the protocol: pyext/src/serve.h.
constexpr std::string_view kDetach = R"({"op":"detach"})";
constexpr size_t kLongTargets = 32768; // JSON may double it
constexpr milliseconds kReadyTimeout{10000};
constexpr milliseconds kDestructorTimeout{1000};
constexpr milliseconds kLeaveTimeout{2000};
constexpr size_t kParallel = 16;
constexpr size_t kPacketsAtOnce = 64; // of one process
constexpr size_t kMaxFunctions = size_t{1} << 20;
constexpr size_t kMaxListBytes = size_t{256} << 20;
constexpr pid_t kNoProcess = 0;

} // namespace

struct PythonEngine::Hooked {
    PythonAttachment attachment;
    Fd channel;
    uint64_t grouping = 0;
    bool looks_later = false;
};

PythonEngine::PythonEngine(PythonSession session, std::vector<std::string> directories)
    : session_(std::move(session)), directories_(std::move(directories)) {}

Result<std::unique_ptr<PythonEngine>> PythonEngine::create(PythonSession session,
                                                           std::vector<std::string> directories) {
    std::unique_ptr<PythonEngine> engine(
        new PythonEngine(std::move(session), std::move(directories)));
    auto epoll = make_epoll();
    if (!epoll) return std::move(epoll).error();
    engine->epoll_ = std::move(*epoll);
    engine->worker_done_ = Fd(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
    if (!engine->worker_done_.valid()) return errno_error("eventfd", errno);
    if (auto watched = engine->watch(engine->worker_done_.get(), kNoProcess); !watched)
        return std::move(watched).error();
    const std::string& text = engine->session_.targets;
    if (text.size() > kLongTargets) {
        auto sealed = sealed_text("speedbump-targets", text);
        if (!sealed) return std::move(sealed).error();
        engine->long_targets_ = std::move(*sealed);
    }
    return engine;
}

PythonEngine::~PythonEngine() {
    requests_.clear();
    for (auto& [pid, worker] : workers_)
        if (worker.joinable()) worker.join();
    std::vector<PythonEvent> nobody_asks;
    take_outcomes(nobody_asks);
    detach_all(kDestructorTimeout);
}

// Has poll() look at a descriptor.
Result<void> PythonEngine::watch(int fd, pid_t pid) {
    return watch_descriptor(epoll_, fd, static_cast<uint64_t>(pid));
}

// The number of the grouping that it was told of.
Result<uint64_t> PythonEngine::begin(const Request& request, int channel) const {
    const pid_t pid = request.pid;
    json message = {{"op", "begin"},
                    {"session", session_.identity},
                    {"lines", session_.lines},
                    {"roots", request.roots},
                    {"pid_namespace", process::pid_namespace_of(pid)},
                    {"clock_offset_ns", process::monotonic_offset_of(pid)}};
    if (request.looks_later) message["look"] = "later";
    std::vector<int> descriptors;
    if (session_.settings >= 0) descriptors = {session_.settings, session_.counters};
    if (long_targets_.valid())
        descriptors.push_back(long_targets_.get());
    else
        message["targets"] = session_.targets;
    std::shared_ptr<const Fd> groups; // held until it is sent
    uint64_t grouping = 0;
    {
        const std::lock_guard lock(mutex_);
        groups = groups_;
        grouping = grouping_;
    }
    if (groups) {
        message["groups"] = grouping;
        descriptors.push_back(groups->get());
    }
    const std::string text = message.dump(-1, ' ', false, json::error_handler_t::replace);
    if (int error = send_packet(channel, text, descriptors)) return errno_error("begin", error);
    return grouping;
}

namespace {

// After its last packet: until the core has left its place to the next session, which it tells by
// closing the channel: it may wait for the interpreter's lock before. Not for ever, as a child that
// was just forked may hold the other end.
void wait_closed(int channel, Clock::time_point deadline) {
    while (wait_readable(channel, deadline) && receive(channel)) {
    }
}

// Gets the core for its interpreter into a process.
Result<inject::Injection> enter(pid_t pid, const std::vector<std::string>& directories,
                                inject::InjectOptions options) {
    if (options.core.empty()) {
        Result<std::vector<cpython::Interpreter>> found = cpython::find_interpreters(pid);
        if (!found) return std::move(found.error());
        // What can't be entered has no core either: inject() says so in better words.
        if (!found->empty() && found->front().is_supported()) {
            Result<std::string> core = find_core(found->front(), directories);
            if (!core) return std::move(core.error()).with_context(fmt::format("process {}", pid));
            options.core = std::move(*core);
        }
    }
    return inject::inject(pid, options);
}

} // namespace

Result<std::vector<PythonMatch>> list_python_functions(pid_t pid,
                                                       const std::vector<std::string>& directories,
                                                       inject::InjectOptions options,
                                                       milliseconds timeout) {
    const std::string name = fmt::format("process {}", pid);
    Result<inject::Injection> injection = enter(pid, directories, std::move(options));
    if (!injection) return std::move(injection.error());
    const int channel = injection->channel.get();
    if (int error = send_packet(channel, R"({"op":"list"})", {})) return errno_error(name, error);
    const Clock::time_point deadline = Clock::now() + timeout;
    std::vector<PythonMatch> functions;
    size_t bytes = 0;
    for (;;) {
        if (!wait_readable(channel, deadline))
            return make_error(
                ErrorKind::kTimeout,
                fmt::format("{}: no complete list of its Python functions within {} ms", name,
                            timeout.count()));
        const std::optional<std::string> packet = receive(channel);
        if (!packet) return make_error(ErrorKind::kIo, name + ": it ended while being listed");
        bytes += packet->size();
        PythonPacket message = read_packet(pid, *packet);
        if (message.op == "gone") {
            wait_closed(channel, Clock::now() + kLeaveTimeout);
            return functions;
        }
        if (message.op != "functions")
            return make_error(ErrorKind::kInvalid, name + ": " + message.reason);
        for (PythonMatch& function : message.matches) functions.push_back(std::move(function));
        if (functions.size() > kMaxFunctions || bytes > kMaxListBytes)
            return make_error(ErrorKind::kInvalid,
                              fmt::format("{}: its list of Python functions is longer than {} "
                                          "functions or {} MiB",
                                          name, kMaxFunctions, kMaxListBytes >> 20));
    }
}

Result<PythonEngine::Hooked> PythonEngine::hook(const Request& request) const {
    const pid_t pid = request.pid;
    Result<inject::Injection> injection = enter(pid, directories_, request.options);
    if (!injection) return std::move(injection.error());
    Hooked hooked;
    hooked.channel = std::move(injection->channel);
    PythonAttachment& attachment = hooked.attachment;
    attachment.process = pid;
    attachment.interpreter = injection->interpreter;
    attachment.timing = injection->timing;
    Result<uint64_t> begun = begin(request, hooked.channel.get());
    if (!begun) return std::move(begun.error()).with_context(fmt::format("process {}", pid));
    hooked.grouping = *begun;
    hooked.looks_later = request.looks_later;
    if (!wait_readable(hooked.channel.get(), Clock::now() + kReadyTimeout))
        return make_error(ErrorKind::kTimeout,
                          fmt::format("process {}: the core was not ready after {} ms", pid,
                                      kReadyTimeout.count()));
    std::optional<std::string> packet = receive(hooked.channel.get());
    if (!packet)
        return make_error(
            ErrorKind::kIo,
            fmt::format("process {}: it ended, or its core did, while being attached", pid));
    PythonPacket message = read_packet(pid, *packet);
    if (message.op != "ready")
        return make_error(ErrorKind::kInvalid, fmt::format("process {}: {}", pid, message.reason));
    attachment.inherited = message.inherited;
    attachment.from_start = message.from_start;
    attachment.hook_overhead = message.hook_overhead;
    attachment.matches = std::move(message.matches);
    attachment.warnings = std::move(message.warnings);
    if (message.warnings_left_out > 0)
        attachment.warnings.push_back(
            fmt::format("{} more warnings of it are not shown", message.warnings_left_out));
    return hooked;
}

// hook() on whatever thread: an exception (no memory, no thread, no descriptor) is its result.
Result<PythonEngine::Hooked> PythonEngine::try_hook(const Request& request) const {
    try {
        return hook(request);
    } catch (const std::exception& problem) {
        return make_error(ErrorKind::kIo,
                          fmt::format("process {}: {}", request.pid, problem.what()));
    }
}

namespace {

// A thread for `work`; at a limit of tasks it is done here and now, and there is none.
template <typename Work>
std::thread thread_for(const Work& work) {
    try {
        return std::thread(work);
    } catch (const std::system_error&) {
        work();
        return {};
    }
}

} // namespace

Result<PythonAttachment> PythonEngine::adopt(Result<Hooked> hooked) {
    if (!hooked) return std::move(hooked.error());
    pid_t pid = hooked->attachment.process;
    Process process;
    process.channel = std::move(hooked->channel);
    process.pid_fd = Fd(static_cast<int>(syscall(SYS_pidfd_open, pid, 0)));
    if (!process.pid_fd.valid()) return errno_error(fmt::format("process {}", pid), errno);
    for (int fd : {process.channel.get(), process.pid_fd.get()})
        if (auto watched = watch(fd, pid); !watched) return std::move(watched).error();
    process.grouping = hooked->grouping;
    // One that inherited its hooks has its parent's functions.
    if (hooked->looks_later && !hooked->attachment.inherited) process.look = Process::Look::kWanted;
    // It was on its way while the others were told.
    if (process.grouping != grouping_) send_groups(process);
    processes_[pid] = std::move(process);
    return std::move(hooked->attachment);
}

Result<PythonAttachment> PythonEngine::attach(pid_t pid, uint64_t roots,
                                              const inject::InjectOptions& options) {
    if (processes_.count(pid) != 0)
        return make_error(ErrorKind::kInvalid, fmt::format("process {} is attached already", pid));
    return adopt(try_hook({pid, roots, options, false}));
}

std::vector<Result<PythonAttachment>> PythonEngine::attach(std::span<const pid_t> pids,
                                                           uint64_t roots,
                                                           const inject::InjectOptions& options) {
    std::vector<std::optional<Result<Hooked>>> hooked(pids.size());
    std::atomic<size_t> next = 0;
    // What takes time is mostly waiting for a process, so there are more threads than CPUs.
    const auto take_turns = [&] {
        for (size_t i = next++; i < pids.size(); i = next++) {
            const pid_t pid = pids[i];
            if (processes_.count(pid) != 0)
                hooked[i] = make_error(ErrorKind::kInvalid,
                                       fmt::format("process {} is attached already", pid));
            else
                hooked[i] = try_hook({pid, roots, options, true});
        }
    };
    std::vector<std::thread> threads;
    for (size_t i = 0; i < std::min(kParallel, pids.size()); ++i)
        threads.push_back(thread_for(take_turns));
    for (std::thread& thread : threads)
        if (thread.joinable()) thread.join();
    std::vector<Result<PythonAttachment>> results;
    for (std::optional<Result<Hooked>>& one : hooked) results.push_back(adopt(std::move(*one)));
    start_looks();
    return results;
}

void PythonEngine::begin_attach(pid_t pid, uint64_t roots, const inject::InjectOptions& options) {
    requests_.push_back({pid, roots, options, true});
    start_workers();
}

void PythonEngine::start_workers() {
    for (; workers_.size() < kParallel && !requests_.empty(); requests_.pop_front()) {
        const Request request = requests_.front();
        workers_[request.pid] = thread_for([this, request] {
            Result<Hooked> hooked = try_hook(request);
            const std::lock_guard lock(mutex_);
            outcomes_.emplace_back(request.pid, std::move(hooked));
            eventfd_write(worker_done_.get(), 1);
        });
    }
}

void PythonEngine::take_outcomes(std::vector<PythonEvent>& events) {
    std::vector<std::pair<pid_t, Result<Hooked>>> outcomes;
    {
        eventfd_t count;
        const std::lock_guard lock(mutex_);
        eventfd_read(worker_done_.get(), &count);
        outcomes.swap(outcomes_);
    }
    for (auto& [pid, hooked] : outcomes) {
        if (auto worker = workers_.find(pid); worker != workers_.end()) {
            if (worker->second.joinable()) worker->second.join();
            workers_.erase(worker);
        }
        events.push_back({PythonEvent::Kind::kOutcome, pid, {}, {}, adopt(std::move(hooked))});
    }
    start_workers();
    start_looks();
}

void PythonEngine::forget(pid_t pid) {
    processes_.erase(pid);
}

// Reports one packet; false when it was the last one of the process.
bool PythonEngine::handle(pid_t pid, const std::string& packet, std::vector<PythonEvent>& events) {
    PythonPacket message = read_packet(pid, packet);
    if (message.op == "grouped" && message.number) {
        Process& process = processes_.at(pid);
        process.grouping = *message.number;
        process.not_grouped = std::move(message.reason);
        process.held = message.held;
    }
    if (message.op == "looked") take_looked(processes_.at(pid), message.modules, message.more);
    if (message.op == "matched")
        events.push_back({PythonEvent::Kind::kMatched, pid, std::move(message.matches), {}});
    if (message.op != "gone" && message.op != "error") return true;
    events.push_back({PythonEvent::Kind::kGone, pid, {}, std::move(message.reason)});
    return false;
}

std::vector<PythonEvent> PythonEngine::poll() {
    std::vector<PythonEvent> events = std::exchange(events_, {});
    epoll_event ready[64];
    int count = epoll_wait(epoll_.get(), ready, 64, 0);
    std::vector<pid_t> pids;
    for (int i = 0; i < count; ++i) pids.push_back(static_cast<pid_t>(ready[i].data.u64));
    std::sort(pids.begin(), pids.end());
    pids.erase(std::unique(pids.begin(), pids.end()), pids.end());
    for (pid_t pid : pids) {
        if (pid == kNoProcess) take_outcomes(events);
        auto process = processes_.find(pid);
        if (process == processes_.end()) continue;
        int channel = process->second.channel.get();
        bool there = true;
        // What a process sends without end waits, as others do for their turn.
        for (size_t packets = 0; there && packets < kPacketsAtOnce; ++packets) {
            std::optional<std::string> packet = receive(channel);
            if (!packet) break;
            there = handle(pid, *packet, events);
        }
        if (!there) {
            forget(pid);
            continue;
        }
        pollfd state[2] = {{channel, POLLIN, 0}, {process->second.pid_fd.get(), POLLIN, 0}};
        ::poll(state, 2, 0);
        if (state[0].revents & POLLIN && !(state[0].revents & POLLHUP)) continue;
        if (state[0].revents & (POLLHUP | POLLERR) || state[1].revents) {
            events.push_back(
                {PythonEvent::Kind::kGone, pid, {}, state[1].revents ? "exit" : "hang-up"});
            forget(pid);
        }
    }
    start_looks();
    return events;
}

std::vector<pid_t> PythonEngine::attached() const {
    std::vector<pid_t> pids;
    for (const auto& [pid, process] : processes_) pids.push_back(pid);
    return pids;
}

// Waits until all of `pids` have said that they are gone, or ended.
void PythonEngine::wait_gone(std::vector<pid_t> pids, milliseconds timeout) {
    Clock::time_point deadline = Clock::now() + timeout;
    for (pid_t pid : pids) {
        // What has come by the deadline counts, but one that sends without end is not heard out.
        for (size_t late = 0; late < kPacketsAtOnce;) {
            auto process = processes_.find(pid);
            if (process == processes_.end()) break;
            pollfd state[2] = {{process->second.channel.get(), POLLIN, 0},
                               {process->second.pid_fd.get(), POLLIN, 0}};
            auto left = std::chrono::ceil<milliseconds>(deadline - Clock::now()).count();
            if (left <= 0) ++late;
            int ready = ::poll(state, 2, static_cast<int>(std::max<int64_t>(left, 0)));
            if (ready < 0 && errno == EINTR) continue;
            if (ready <= 0) break;
            std::optional<std::string> packet = receive(process->second.channel.get());
            std::vector<PythonEvent> ignored;
            if (packet && handle(pid, *packet, ignored)) continue;
            if (packet) wait_closed(process->second.channel.get(), deadline);
            forget(pid);
        }
    }
}

Result<void> PythonEngine::detach(pid_t pid, milliseconds timeout) {
    auto process = processes_.find(pid);
    if (process == processes_.end())
        return make_error(ErrorKind::kNotFound, fmt::format("process {} is not attached", pid));
    // A failure means that it has hung up already, or does not listen: then closing the channel
    // tells it.
    if (send_packet(process->second.channel.get(), kDetach, {}) == 0) wait_gone({pid}, timeout);
    bool in_time = processes_.count(pid) == 0;
    forget(pid);
    if (in_time) return {};
    return make_error(ErrorKind::kTimeout,
                      fmt::format("process {}: its hooks are not out after {} ms: a call into C "
                                  "holds the interpreter lock; its delays have ended",
                                  pid, timeout.count()));
}

void PythonEngine::detach_all(milliseconds timeout) {
    std::vector<pid_t> asked;
    for (const auto& [pid, process] : processes_)
        if (send_packet(process.channel.get(), kDetach, {}) == 0) asked.push_back(pid);
    wait_gone(asked, timeout);
    processes_.clear();
}

} // namespace speedbump::engine
