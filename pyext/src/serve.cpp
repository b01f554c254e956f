// SPDX-License-Identifier: MIT
#include "serve.h"

#include <poll.h>
#include <signal.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <memory>
#include <mutex>
#include <nlohmann/json.hpp>
#include <optional>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "calibrate.h"
#include "clock.h"
#include "cpython_state.h"
#include "gil.h"
#include "groups.h"
#include "interpreters.h"
#include "python_util.h"
#include "targets/parser.h"
#include "util/fd.h"

namespace speedbump::python {
namespace {

using nlohmann::json;

constexpr size_t kFunctionsPerPacket = 64;
constexpr size_t kMaxDescriptors = 4; // settings, counters, a long targets file, groups
constexpr size_t kModulesPerPacket = 2048;
constexpr int kBeginTimeoutMs = 10000;
constexpr int kBetweenLooksMs = SB_MONITORING ? -1 : 1000; // whether the hook is where it was
constexpr const char* kTaken = "another session has this process already";

struct Channel {
    Fd socket;
    Fd wake; // eventfd: something to send, or the interpreter ends
    std::mutex mutex;
    std::condition_variable left;
    std::deque<FoundFunction> found;
    bool exiting = false;
    bool done = false;
    bool is_in_use = false; // a thread that is stopped may be in on_found()
};

// The channel being served; null in a forked child, whose copies of its locks may be taken.
std::atomic<Channel*> g_channel{nullptr};

void wake(const Channel& channel) {
    const uint64_t one = 1;
    // It can only fail when it is awake already.
    [[maybe_unused]] const ssize_t written = ::write(channel.wake.get(), &one, sizeof one);
}

bool send_packet(const Channel& channel, const json& message) {
    const std::string text = message.dump(-1, ' ', false, json::error_handler_t::replace);
    ssize_t sent;
    do {
        sent = ::send(channel.socket.get(), text.data(), text.size(), MSG_NOSIGNAL);
    } while (sent < 0 && errno == EINTR);
    return sent == static_cast<ssize_t>(text.size());
}

void refuse(const Channel& channel, const std::string& reason) {
    send_packet(channel, {{"op", "refused"}, {"reason", reason}});
}

// Reads what the loader still sends before closing the socket: closed with something unread, the
// answer would be lost to the loader. On a thread that never needs the GIL, which this one might
// not get back.
void read_to_the_end(Fd socket) {
    try {
        std::thread([socket = std::move(socket)] {
            pollfd event{socket.get(), POLLIN, 0};
            char byte;
            while (::poll(&event, 1, kBeginTimeoutMs) > 0 &&
                   ::recv(socket.get(), &byte, sizeof byte, 0) > 0) {
            }
        }).detach();
    } catch (const std::system_error&) {
        // No thread to be had: the loader sees the socket close.
    }
}

struct Packet {
    std::string text; // empty: end of file or an error
    std::vector<Fd> descriptors;
    bool is_cut = false; // none was free for some of the descriptors, which are all left out
};

Packet receive_packet(const Channel& channel) {
    Packet packet;
    packet.text.resize(kMaxPacket);
    iovec part{packet.text.data(), packet.text.size()};
    alignas(cmsghdr) char control[CMSG_SPACE(kMaxDescriptors * sizeof(int))];
    msghdr message{};
    message.msg_iov = &part;
    message.msg_iovlen = 1;
    message.msg_control = control;
    message.msg_controllen = sizeof control;
    ssize_t size;
    do {
        size = ::recvmsg(channel.socket.get(), &message, MSG_CMSG_CLOEXEC);
    } while (size < 0 && errno == EINTR);
    for (cmsghdr* header = CMSG_FIRSTHDR(&message); header != nullptr;
         header = CMSG_NXTHDR(&message, header)) {
        if (header->cmsg_level != SOL_SOCKET || header->cmsg_type != SCM_RIGHTS) continue;
        const size_t count = (header->cmsg_len - CMSG_LEN(0)) / sizeof(int);
        for (size_t i = 0; i < count; ++i) {
            int fd = -1;
            std::memcpy(&fd, CMSG_DATA(header) + i * sizeof fd, sizeof fd);
            packet.descriptors.emplace_back(fd);
        }
    }
    const bool whole = size > 0 && (message.msg_flags & MSG_TRUNC) == 0;
    packet.is_cut = (message.msg_flags & MSG_CTRUNC) != 0;
    if (packet.is_cut) packet.descriptors.clear(); // a look is at all then, groups are answered
    packet.text.resize(whole ? static_cast<size_t>(size) : 0);
    return packet;
}

struct Begin {
    SessionSpec spec;
    std::vector<std::string> warnings;
    bool looks_later = false;
};

Result<Begin> read_begin(Packet& packet) {
    const json message = json::parse(packet.text, nullptr, false);
    if (!message.is_object() || message.value("op", "") != "begin") {
        return make_error(ErrorKind::kInvalid, "the first packet is not 'begin'");
    }
    Begin begin;
    begin.spec.identity = message.value("session", "");
    if (begin.spec.identity.empty()) {
        return make_error(ErrorKind::kInvalid, "the session has no name");
    }
    if (packet.descriptors.size() < 2) {
        return make_error(ErrorKind::kInvalid, "the begin came without a table");
    }
    std::string text;
    const bool is_long = !message.contains("targets");
    const size_t groups_at = is_long ? 3 : 2; // among the descriptors
    if (!is_long) {
        text = message.at("targets").get<std::string>();
    } else if (packet.descriptors.size() > 2) {
        Result<std::string> read = read_text(packet.descriptors[2].get());
        if (!read) return read.error();
        text = std::move(*read);
    }
    targets::ParseOutcome outcome = targets::parse_targets(text, "targets");
    if (!outcome.errors.empty()) {
        return make_error(ErrorKind::kTargetsFile,
                          targets::format_diagnostics("targets", outcome.errors));
    }
    begin.spec.file = std::move(outcome.file);
    begin.spec.applies = message.value("lines", std::vector<uint32_t>());
    begin.looks_later = message.value("look", "") == "later";
    begin.spec.roots = message.value("roots", ~uint64_t{0});
    begin.spec.place.pid_namespace = message.value("pid_namespace", uint32_t{0});
    begin.spec.place.clock_offset_ns = message.value("clock_offset_ns", int64_t{0});
    Result<Table> table = Table::map(packet.descriptors[0].get(), packet.descriptors[1].get());
    if (!table) return table.error();
    begin.spec.table = std::move(*table);
    if (packet.descriptors.size() > groups_at) {
        Result<Grouping> grouping =
            read_grouping(packet.descriptors[groups_at].get(), message.at("groups").get<uint32_t>(),
                          begin.spec.table.target_count());
        if (!grouping) return grouping.error();
        begin.spec.grouping = std::move(*grouping);
    }
    return begin;
}

// A long file takes ms.
Result<Begin> read_without_gil(Packet& packet) {
    const WithoutGil without;
    return read_begin(packet);
}

json describe(const FoundFunction& function) {
    return {{"line", function.line},
            {"module", function.module},
            {"name", function.name},
            {"file", function.file}};
}

// Takes up to a packet full of found functions.
json take_found(Channel& channel) {
    json list = json::array();
    const std::lock_guard lock(channel.mutex);
    while (!channel.found.empty() && list.size() < kFunctionsPerPacket) {
        list.push_back(describe(channel.found.front()));
        channel.found.pop_front();
    }
    return list;
}

// A function is found once per code object: interpreters and reloads give several. Called with the
// GIL held, at a function's first call.
void on_found(FoundFunction function) {
    Channel* channel = g_channel.load(std::memory_order_acquire);
    if (channel == nullptr) return;
    bool is_first = false; // who takes them takes all
    {
        const std::lock_guard lock(channel->mutex);
        is_first = channel->found.empty();
        channel->found.push_back(std::move(function));
    }
    if (is_first) wake(*channel);
}

// Whether the loader has gone, or the interpreter ends.
bool is_abandoned(Channel& channel) {
    pollfd event{channel.socket.get(), 0, 0};
    if (::poll(&event, 1, 0) > 0) return true;
    const std::lock_guard lock(channel.mutex);
    return channel.exiting;
}

// What became of those interpreters that were not entered.
std::string left_alone_text(size_t count) {
    if (sb_layout_is_known() == 0)
        return "the subinterpreters are left alone: this release of Python lays them out otherwise "
               "than the one that the core was built with";
    return std::to_string(count) + (count == 1 ? " subinterpreter is" : " subinterpreters are") +
           " left alone: only those can be entered safely that share the main one's GIL, have no "
           "audit hooks, and neither begin nor end just now";
}

std::vector<std::string> hook_everywhere(Channel& channel, bool looks_later) {
    std::vector<std::string> warnings;
    const Interpreter* last = nullptr;
    const size_t left_alone = for_each_interpreter([&](bool keeps_gil) {
        if (is_abandoned(channel)) return true;
        Interpreter* interpreter = this_interpreter();
        Look look;
        look.goes_on = [&channel] { return !is_abandoned(channel); };
        look.keeps_gil = keeps_gil;
        const bool again =
            interpreter != nullptr && std::exchange(last, interpreter) == interpreter;
        if (interpreter == nullptr ||
            (!again && !(name_existing(*interpreter, look) && hook(*interpreter))) ||
            (!looks_later && !look_at_existing(*interpreter, look))) {
            warnings.push_back("an interpreter could not be hooked: " + take_error_text());
            return true;
        }
        return !look.is_unfinished;
    });
    if (left_alone > 0) warnings.push_back(left_alone_text(left_alone));
    return warnings;
}

// Whether the loader has something to say, or the interpreter ends.
bool is_called(Channel& channel) {
    pollfd event{channel.socket.get(), POLLIN, 0};
    if (::poll(&event, 1, 0) > 0) return true;
    const std::lock_guard lock(channel.mutex);
    return channel.exiting;
}

// Looks at the functions of all interpreters; false when it was stopped.
bool look_everywhere(Channel& channel, Look& look) {
    look.goes_on = [&channel] { return !is_called(channel); };
    look.modules.clear();
    look.is_stopped = false;
    for_each_interpreter([&look](bool keeps_gil) {
        look.keeps_gil = keeps_gil;
        look.is_unfinished = false;
        if (keeps_gil && !look.is_stopped) look.is_stopped = !look.goes_on();
        if (look.is_stopped) return true;
        Interpreter* interpreter = this_interpreter();
        // What can't be looked at is found at its first call.
        if (interpreter == nullptr || !look_at_existing(*interpreter, look)) PyErr_Clear();
        return !look.is_unfinished;
    });
    return !look.is_stopped;
}

// Called by the interpreter before it ends: a thread without the GIL could not take it any more.
PyObject* at_exit(PyObject*, PyObject*) {
    Channel* channel = g_channel.load(std::memory_order_acquire);
    if (channel != nullptr) {
        {
            // With the GIL still held: without it the channel of a session that ends just now would
            // be gone before it is known that somebody waits for it.
            const std::lock_guard lock(channel->mutex);
            channel->exiting = true;
        }
        const WithoutGil without;
        wake(*channel);
        std::unique_lock lock(channel->mutex);
        channel->left.wait_for(lock, std::chrono::seconds(5), [channel] { return channel->done; });
    }
    Py_RETURN_NONE;
}

PyMethodDef kAtExit = {"speed_bump_at_exit", at_exit, METH_NOARGS, nullptr};

// Registers or unregisters the function; an interpreter without atexit is left as it is.
void call_atexit(const char* method, PyObject* function) {
    const Ref module(stay([] { return PyImport_ImportModule("atexit"); }));
    const Ref result(module ? PyObject_CallMethod(module.get(), method, "O", function) : nullptr);
    PyErr_Clear();
}

// Has the functions of some lines told apart anew; `grouping` is the one before then. What is to be
// answered; GIL held.
json tell_apart(Grouping& grouping) {
    const uint64_t begun_ns = now_ns();
    json answer = {{"op", "grouped"}, {"number", grouping.number}};
    regroup(grouping);
    std::string failure;
    for_each_interpreter([&failure](bool) {
        Interpreter* interpreter = this_interpreter();
        if (interpreter == nullptr || !look_anew(*interpreter)) failure = take_error_text();
        return true;
    });
    if (!failure.empty()) answer["reason"] = failure;
    answer["held_ns"] = now_ns() - begun_ns;
    return answer;
}

// Of a "groups" packet. GIL not held.
Result<Grouping> read_groups(const json& message, const Packet& packet) {
    if (packet.descriptors.empty())
        return make_error(ErrorKind::kInvalid, "the groups came without a file");
    return read_grouping(packet.descriptors.front().get(), message.at("number").get<uint32_t>(),
                         session_table().target_count());
}

// Of a "look" packet. GIL not held.
Result<Look> read_look(const Packet& packet) {
    Look look;
    if (packet.descriptors.empty()) return look;
    Result<std::string> text = read_text(packet.descriptors.front().get());
    if (!text) return text.error();
    for (const json& key : json::parse(*text)) look.known.insert(key.get<uint64_t>());
    return look;
}

// What ended the wait for the loader: the session, how functions are to be told apart now, or that
// those which exist are to be looked at. Nothing of it: the loader has said nothing, or the hook is
// to be put back.
struct Word {
    const char* end = nullptr;
    std::optional<Grouping> grouping{};
    std::optional<Look> look{};
};

// Passes on what was found; false when the loader is gone. GIL not held.
bool send_found(Channel& channel) {
    for (json list = take_found(channel); !list.empty(); list = take_found(channel))
        if (!send_packet(channel, {{"op", "matched"}, {"matched", list}})) return false;
    return true;
}

// Waits for word of the loader, unless it only is to be seen whether there is one, passing on what
// is found. GIL not held.
Word wait_for_word(Channel& channel, bool waits) {
    const auto looks_at =
        std::chrono::steady_clock::now() + std::chrono::milliseconds(kBetweenLooksMs);
    for (;;) {
        pollfd events[] = {{channel.socket.get(), POLLIN, 0}, {channel.wake.get(), POLLIN, 0}};
        const int ready = ::poll(events, 2, waits ? kBetweenLooksMs : 0);
        if (ready < 0 && errno != EINTR) return {"detach"};
        if (ready == 0 && !waits) return {};
        // Also where functions are found all the time.
        if (waits && (ready == 0 || std::chrono::steady_clock::now() >= looks_at) &&
            is_pushed_out())
            return {};
        if (ready <= 0) continue;
        if (events[1].revents != 0) {
            uint64_t count = 0;
            [[maybe_unused]] const ssize_t got = ::read(channel.wake.get(), &count, sizeof count);
            {
                const std::lock_guard lock(channel.mutex);
                if (channel.exiting) return {"exit"};
            }
            if (!send_found(channel)) return {"detach"};
        }
        if (events[0].revents != 0) {
            const Packet packet = receive_packet(channel);
            if (packet.text.empty()) return {"detach"};
            const json message = json::parse(packet.text, nullptr, false);
            const std::string op = message.is_object() ? message.value("op", "") : "";
            if (op == "detach") return {"detach"};
            if (op == "look") {
                Result<Look> look = read_look(packet);
                return {nullptr, {}, look ? std::move(*look) : Look()};
            }
            if (op != "groups") continue;
            Result<Grouping> grouping = read_groups(message, packet);
            if (grouping) return {nullptr, std::move(*grouping)};
            if (!send_packet(channel, {{"op", "grouped"},
                                       {"number", message.at("number")},
                                       {"reason", grouping.error().message}}))
                return {"detach"};
        }
    }
}

// Says which modules a look has seen, after what it has found. GIL not held.
bool send_looked(Channel& channel, const Look& look) {
    if (!send_found(channel)) return false;
    size_t first = 0;
    for (bool is_last = false; !is_last;) {
        const size_t end = std::min(first + kModulesPerPacket, look.modules.size());
        json keys = json::array();
        for (; first < end; ++first) keys.push_back(look.modules[first]);
        is_last = end == look.modules.size();
        if (!send_packet(channel, {{"op", "looked"}, {"modules", keys}, {"more", !is_last}}))
            return false;
    }
    return true;
}

void put_back_here() {
    if (Interpreter* interpreter = this_interpreter())
        put_back(*interpreter);
    else
        PyErr_Clear();
}

// Sends the first packet, and does what the loader says until the end of the session, of which it
// gives the reason; delays have ended then. A look at the functions that exist gives way to what
// the loader says meanwhile. GIL held.
const char* obey(Channel& channel, json answer) {
    Word word;
    std::optional<Look> look;
    bool has_looked = false;
    for (;;) {
        {
            const WithoutGil without;
            word = Word(); // the groups of before are not freed with the GIL held
            bool is_there = answer.is_null() || send_packet(channel, answer);
            if (is_there && has_looked) is_there = send_looked(channel, *look);
            if (std::exchange(has_looked, false)) look.reset();
            word = is_there ? wait_for_word(channel, !look) : Word{"detach"};
            if (word.end != nullptr) stop_delays();
            if (word.look) look = std::move(word.look);
        }
        if (word.end != nullptr) return word.end;
        answer = word.grouping ? tell_apart(*word.grouping) : json();
        if (is_pushed_out()) put_back_here();
        if (look && !word.grouping) has_looked = look_everywhere(channel, *look);
    }
}

// Whether nothing of the program has run yet: the interpreter imports its module site, or waits in
// the loader's own module (user/inject/start_module.cpp), which this lets go on.
bool release_start() {
    PyObject* modules = PyImport_GetModuleDict();
    PyObject* cores = PyDict_GetItemString(modules, "_speedbump_cores");
    if (cores != nullptr) PyObject_SetAttrString(cores, "hooked", Py_True);
    bool early = PyDict_GetItemString(modules, "_speedbump_start") != nullptr;
    if (PyObject* site = PyDict_GetItemString(modules, "site"); site != nullptr && !early) {
        const Ref spec(PyObject_GetAttrString(site, "__spec__"));
        const Ref busy(spec ? PyObject_GetAttrString(spec.get(), "_initializing") : nullptr);
        early = busy && PyObject_IsTrue(busy.get()) == 1;
    }
    PyErr_Clear();
    return early;
}

// Ends the session: the hooks are out then.
void leave(Channel& channel) {
    stop_delays();
    unhook_everywhere();
    channel.is_in_use = !end_session();
}

// Takes part in the session that the begin packet describes, until its end.
void take_part(Channel& channel, Packet first) {
    Result<Begin> begin = read_without_gil(first);
    first.descriptors.clear();
    if (!begin) return refuse(channel, begin.error().message);
    if (is_left_over()) leave(channel); // nobody serves it: we have the channel
    const bool is_same = has_session() && session_identity() == begin->spec.identity;
    if (has_session() && !is_same) return refuse(channel, kTaken);
    Interpreter* interpreter = this_interpreter();
    if (interpreter == nullptr) return refuse(channel, take_error_text());
    // Else it was forked after its parent's session had begun and before that was hooked.
    const bool inherited = is_same && interpreter->is_hooked();
    std::vector<std::string> warnings;
    if (is_same) {
        set_place(begin->spec.place);
        if (begin->spec.grouping.number != session_grouping()) tell_apart(begin->spec.grouping);
    } else {
        if (!calibrate_hook(*interpreter)) {
            return refuse(channel, "calibration failed: " + take_error_text());
        }
        warnings = not_interpreted(begin->spec.file);
        begin->spec.found = on_found;
        if (Result<void> begun = begin_session(std::move(begin->spec)); !begun) {
            return refuse(channel, begun.error().message);
        }
    }
    if (!inherited)
        for (std::string& warning : hook_everywhere(channel, begin->looks_later))
            warnings.push_back(std::move(warning));
    const bool from_start = release_start();
    const std::string version(Py_GetVersion(), std::strcspn(Py_GetVersion(), " "));
    const char* reason = obey(channel, {{"op", "ready"},
                                        {"version", version},
                                        {"pid", ::getpid()},
                                        {"inherited", inherited},
                                        {"from_start", from_start},
                                        {"overhead_ns", g_live.overhead_ns},
                                        {"matched", take_found(channel)},
                                        {"warnings", warnings}});
    leave(channel);
    send_packet(channel, {{"op", "gone"}, {"reason", reason}});
}

// Sends all functions of all interpreters.
void send_list(Channel& channel) {
    std::vector<FoundFunction> list;
    for_each_interpreter([&list](bool keeps_gil) {
        Interpreter* interpreter = this_interpreter();
        if (interpreter == nullptr || !list_functions(*interpreter, keeps_gil, list)) PyErr_Clear();
        return true;
    });
    const WithoutGil without;
    for (size_t first = 0; first < list.size(); first += kFunctionsPerPacket) {
        json part = json::array();
        const size_t end = std::min(first + kFunctionsPerPacket, list.size());
        for (size_t i = first; i < end; ++i) part.push_back(describe(list[i]));
        if (!send_packet(channel, {{"op", "functions"}, {"functions", part}})) return;
    }
    send_packet(channel, {{"op", "gone"}, {"reason", "listed"}});
}

bool is_list(const Packet& packet) {
    const json message = json::parse(packet.text, nullptr, false);
    return message.is_object() && message.value("op", "") == "list";
}

// Waits for the begin packet, without the GIL; an empty one when none comes.
Packet wait_for_begin(Channel& channel) {
    const WithoutGil without;
    pollfd events[] = {{channel.socket.get(), POLLIN, 0}, {channel.wake.get(), POLLIN, 0}};
    const int ready = ::poll(events, 2, kBeginTimeoutMs);
    if (ready <= 0 || events[0].revents == 0) return {};
    Packet packet = receive_packet(channel);
    return packet.is_cut ? Packet() : std::move(packet); // the loader tries again
}

void run_session(Channel& channel) {
    Channel* none = nullptr;
    if (!g_channel.compare_exchange_strong(none, &channel)) {
        refuse(channel, kTaken);
        read_to_the_end(std::move(channel.socket));
        return;
    }
    const Ref atexit_function(PyCFunction_New(&kAtExit, nullptr));
    call_atexit("register", atexit_function.get());
    try {
        Packet first = wait_for_begin(channel);
        if (is_list(first))
            send_list(channel);
        else if (!first.text.empty())
            take_part(channel, std::move(first));
    } catch (const std::exception&) {
        // Out of memory, or a packet of the wrong shape: the loader sees the socket close.
        if (has_session() && !session_identity().empty()) leave(channel);
    }
    call_atexit("unregister", atexit_function.get());
    g_channel.store(nullptr);
}

} // namespace

void serve(int channel_fd, int core_fd) noexcept {
    sigset_t all;
    sigset_t before;
    ::sigfillset(&all);
    ::pthread_sigmask(SIG_SETMASK, &all, &before);
    auto channel = std::make_unique<Channel>();
    channel->socket = Fd(channel_fd);
    channel->wake = Fd(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
    sb_begin_gil();
    if (core_fd >= 0) {
        ::close(core_fd);
        constexpr std::string_view kLoaded = R"({"op":"loaded"})"; // the first: it does not wait
        ::send(channel->socket.get(), kLoaded.data(), kLoaded.size(), MSG_NOSIGNAL);
    }
    run_session(*channel);
    channel->socket.reset();
    std::unique_lock lock(channel->mutex);
    channel->done = true;
    channel->left.notify_all();
    [[maybe_unused]] const bool is_held = channel->exiting || channel->is_in_use;
    lock.unlock();
    // The thread in at_exit() still holds it, and the process ends, or one that is stopped in a
    // hook does. Without a GIL nobody can say whether any does: the few bytes of each session stay.
#ifdef Py_GIL_DISABLED
    channel.release();
#else
    if (is_held) channel.release();
#endif
    PyErr_Clear();
    sb_end_gil();
    ::pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

void forget_channel() {
    Channel* channel = g_channel.exchange(nullptr);
    if (channel == nullptr) return;
    ::close(channel->socket.get());
    ::close(channel->wake.get());
}

} // namespace speedbump::python
