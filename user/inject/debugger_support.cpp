// SPDX-License-Identifier: MIT
#include "inject/debugger_support.h"

#include <fmt/format.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <optional>

#include "inject/bootstrap.h"
#include "inject/debugger_mailbox.h"
#include "inject/target_files.h"
#include "util/channel.h"
#include "util/clock.h"
#include "util/heir.h"

namespace speedbump::inject {
namespace {

// The request in the target's memory and its script; taken back at the latest when the object or
// this process is gone.
class Request {
  public:
    Request(DebuggerMailbox mailbox, TargetScript script)
        : mailbox_(std::move(mailbox)),
          script_(std::move(script)),
          room_(script_.path().size() + 1, '\0') {}
    ~Request() { take_back(); }
    Request(const Request&) = delete;
    Request& operator=(const Request&) = delete;

    Result<void> post(std::string_view text) {
        if (script_.path().size() >= mailbox_.script_path_size)
            return make_error(ErrorKind::kInvalid, "the script's path is too long");
        if (Result<void> started = start_heir(); !started) return started;
        if (Result<void> done = script_.write(text); !done) return done;
        return post_request(mailbox_, script_.path());
    }

    Withdrawal take_back() { return withdraw_request(mailbox_, script_.path(), room_); }

  private:
    Result<void> start_heir() {
        const int directory = script_.directory().get();
        auto heir = Heir::start("sb-heir", {mailbox_.memory.get(), directory}, [this, directory] {
            syscall(SYS_unlinkat, directory, script_.name().c_str(), 0);
            take_back();
        });
        if (!heir) return std::move(heir.error());
        heir_.emplace(std::move(*heir));
        return {};
    }

    DebuggerMailbox mailbox_;
    std::optional<Heir> heir_; // before the script: it is dismissed when that is gone
    TargetScript script_;
    std::string room_; // withdraw_request()
};

std::string why_unanswered(Withdrawal withdrawal, std::chrono::milliseconds timeout) {
    switch (withdrawal) {
        case Withdrawal::kAnothers:
            return fmt::format(
                "its main thread ran no Python code for {} ms, and another debugger put its own "
                "request in the place of this one, where it was left",
                timeout.count());
        case Withdrawal::kTakenUp:
            return fmt::format(
                "the request was taken up, or another debugger took it away: nothing came of it "
                "within {} ms",
                timeout.count());
        case Withdrawal::kFailed:
            return "its memory can't be reached any more";
        case Withdrawal::kTakenBack:
            break;
    }
    return fmt::format(
        "its main thread ran no Python code for {} ms, so it never looked at the request, which "
        "was taken back",
        timeout.count());
}

std::string script_text(const std::string& socket_name, const std::string& source) {
    // What can't connect any more has been given up: it says nothing and does nothing. The core is
    // served on a thread of its own: this one is the program's main thread.
    std::string text =
        "def _speedbump_enter():\n"
        "    import _socket, _thread, array\n"
        "    try:\n"
        "        s = _socket.socket(_socket.AF_UNIX, _socket.SOCK_SEQPACKET)\n"
        "        s.connect('\\0" +
        socket_name +
        "')\n"
        "        data, control, flags, name = s.recvmsg(16, 64)\n"
        "    except OSError:\n"
        "        return\n"
        "    fds = array.array('i', control[0][2])\n"
        "    code = compile(_speedbump_source, '<speedbump>', 'exec')\n"
        "    names = {'channel': s.detach(), 'core': fds[0]}\n"
        "    def serve():\n"
        "        exec(code, names)\n"
        "        if not names['module']: return\n"
        "        try:\n"
        "            names['module'].serve(names['channel'], names['core'])\n"
        "        except BaseException as error:\n"
        "            names['_speedbump_fail'](names['channel'], names['core'], error)\n"
        "    _thread.start_new_thread(serve, ())\n"
        "_speedbump_source = bytes.fromhex('";
    constexpr char kHex[] = "0123456789abcdef";
    for (char c : source) {
        auto byte = static_cast<unsigned char>(c);
        text += kHex[byte >> 4];
        text += kHex[byte & 15];
    }
    return text +
           "').decode()\ntry:\n    _speedbump_enter()\nfinally:\n"
           "    del _speedbump_enter, _speedbump_source\n";
}

// The name of the socket is secret, but shown to all in /proc/net/unix.
bool is_from(const Fd& connection, pid_t pid) {
    ucred peer{};
    socklen_t size = sizeof(peer);
    return getsockopt(connection.get(), SOL_SOCKET, SO_PEERCRED, &peer, &size) == 0 &&
           peer.pid == pid;
}

} // namespace

Result<Fd> enter_by_debugger_support(const DebuggerSupportRequest& request) {
    Result<DebuggerMailbox> mailbox = find_debugger_mailbox(request.pid, request.interpreter);
    if (!mailbox) return std::move(mailbox.error());

    Result<std::string> token = make_token();
    if (!token) return std::move(token.error());
    const std::string socket_name = "speedbump-" + *token;
    Result<Fd> listener = listen_abstract(request.pid, socket_name);
    if (!listener) return std::move(listener.error());
    Result<TargetScript> script = TargetScript::find_place(request.pid);
    if (!script) return std::move(script.error());

    Request posted(std::move(*mailbox), std::move(*script));
    if (Result<void> done = posted.post(script_text(socket_name, request.source)); !done)
        return std::move(done.error());
    const Clock::time_point deadline = Clock::now() + request.timeout; // it stands from now on
    Fd channel;
    while (!channel.valid()) {
        if (!wait_readable(listener->get(), deadline))
            return make_error(ErrorKind::kTimeout,
                              why_unanswered(posted.take_back(), request.timeout));
        channel = Fd(::accept4(listener->get(), nullptr, nullptr, SOCK_CLOEXEC));
        if (!channel.valid()) return errno_error("accept", errno);
        if (!is_from(channel, request.pid)) channel.reset();
    }
    if (int error = send_packet(channel.get(), "1", {&request.core, 1}))
        return errno_error("hand over the core", error);
    if (!wait_readable(channel.get(), deadline))
        return make_error(ErrorKind::kTimeout, "the core did not load in time");
    char buffer[8192];
    ssize_t got = recv(channel.get(), buffer, sizeof(buffer), 0);
    if (got <= 0) return errno_error("load the core", got < 0 ? errno : ECONNRESET);
    Result<void> answer = read_bootstrap_answer(std::string_view(buffer, static_cast<size_t>(got)));
    if (!answer) return std::move(answer.error());
    return channel;
}

} // namespace speedbump::inject
