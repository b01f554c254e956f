// SPDX-License-Identifier: MIT
#include "inject/debugger_support.h"

#include <fmt/format.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <optional>

#include "cpython/offsets.h"
#include "inject/bootstrap.h"
#include "inject/target_files.h"
#include "util/channel.h"
#include "util/clock.h"
#include "util/heir.h"

namespace speedbump::inject {
namespace {

using cpython::kInterpretersHead;
using cpython::kThreadsMain;
using process::RemoteMemory;
using Support = cpython::DebuggerSupport;

constexpr uint64_t kPleaseStop = 1 << 5; // _PY_EVAL_PLEASE_STOP_BIT

// Where the request goes in the main thread's state.
struct Mailbox {
    uint64_t eval_breaker = 0;
    uint64_t pending_call = 0;
    uint64_t script_path = 0;
    uint64_t script_path_size = 0;
};

Result<Mailbox> find_mailbox(const RemoteMemory& memory, const process::Interpreter& interpreter) {
    auto unreadable = [&] {
        return make_error(ErrorKind::kUnsupported,
                          "its state is not laid out as " + interpreter.describe() + " has it");
    };
    uint64_t runtime = interpreter.runtime_address;
    auto support =
        memory.value<Support>(runtime + cpython::debugger_support_offset(interpreter.minor));
    auto head_offset = memory.value<uint64_t>(runtime + kInterpretersHead);
    auto main_offset = memory.value<uint64_t>(runtime + kThreadsMain);
    if (!support || !head_offset || !main_offset || support->script_path_size < 64 ||
        support->script_path_size > 65536)
        return unreadable();
    auto state = memory.value<uint64_t>(runtime + *head_offset);
    if (!state || *state == 0) return unreadable();
    auto enabled = memory.value<int32_t>(*state + support->remote_debugging_enabled);
    auto thread = memory.value<uint64_t>(*state + *main_offset);
    if (!enabled || !thread || *thread == 0) return unreadable();
    if (*enabled != 1)
        return make_error(ErrorKind::kPermission,
                          "its remote debugging is switched off (-X disable-remote-debug or "
                          "PYTHON_DISABLE_REMOTE_DEBUG)");
    uint64_t base = *thread + support->remote_debugger_support;
    return Mailbox{*thread + support->eval_breaker, base + support->pending_call,
                   base + support->script_path, support->script_path_size};
}

Result<void> write_memory(pid_t pid, uint64_t address, const void* data, size_t size) {
    iovec local{const_cast<void*>(data), size};
    iovec remote{reinterpret_cast<void*>(address), size};
    if (process_vm_writev(pid, &local, 1, &remote, 1, 0) == static_cast<ssize_t>(size)) return {};
    return process::access_error(pid, "write its memory", errno);
}

// Takes a request back, with system calls alone.
void withdraw(pid_t pid, int pid_fd, const Mailbox& mailbox) {
    if (syscall(SYS_pidfd_send_signal, pid_fd, 0, nullptr, 0) != 0) return; // the PID is another's
    int32_t none = 0;
    iovec local{&none, sizeof(none)};
    iovec remote{reinterpret_cast<void*>(mailbox.pending_call), sizeof(none)};
    syscall(SYS_process_vm_writev, pid, &local, 1, &remote, 1, 0);
    local.iov_len = remote.iov_len = 1; // no path
    remote.iov_base = reinterpret_cast<void*>(mailbox.script_path);
    syscall(SYS_process_vm_writev, pid, &local, 1, &remote, 1, 0);
}

// The request in the target's memory and its script; taken back at the latest when the object or
// this process is gone.
class Request {
  public:
    Request(pid_t pid, const Mailbox& mailbox, TargetScript script)
        : pid_(pid), mailbox_(mailbox), script_(std::move(script)) {}
    ~Request() {
        if (posted_) withdraw(pid_, pid_fd_.get(), mailbox_);
    }
    Request(const Request&) = delete;
    Request& operator=(const Request&) = delete;

    Result<void> post(std::string_view text) {
        const std::string& path = script_.path();
        if (path.size() >= mailbox_.script_path_size)
            return make_error(ErrorKind::kInvalid, "the script's path is too long");
        RemoteMemory memory(pid_);
        auto pending = memory.value<int32_t>(mailbox_.pending_call);
        if (!pending || *pending != 0)
            return make_error(ErrorKind::kIo, "another debugger's request waits there already");
        if (Result<void> started = start_heir(); !started) return started;
        if (Result<void> done = script_.write(text); !done) return done;
        posted_ = true;
        Result<void> written =
            write_memory(pid_, mailbox_.script_path, path.c_str(), path.size() + 1);
        if (!written) return written;
        const int32_t one = 1;
        written = write_memory(pid_, mailbox_.pending_call, &one, sizeof(one));
        if (!written) return written;
        auto breaker = memory.value<uint64_t>(mailbox_.eval_breaker);
        if (!breaker) return make_error(ErrorKind::kIo, "its state can't be read");
        *breaker |= kPleaseStop;
        return write_memory(pid_, mailbox_.eval_breaker, &*breaker, sizeof(*breaker));
    }

  private:
    Result<void> start_heir() {
        pid_fd_ = Fd(static_cast<int>(syscall(SYS_pidfd_open, pid_, 0)));
        if (!pid_fd_.valid()) return errno_error("pidfd_open", errno);
        auto heir = Heir::start("sb-heir", {pid_fd_.get(), script_.directory().get()}, [this] {
            syscall(SYS_unlinkat, script_.directory().get(), script_.name().c_str(), 0);
            withdraw(pid_, pid_fd_.get(), mailbox_);
        });
        if (!heir) return std::move(heir.error());
        heir_.emplace(std::move(*heir));
        return {};
    }

    pid_t pid_;
    Fd pid_fd_;
    Mailbox mailbox_;
    std::optional<Heir> heir_; // before the script: it is dismissed when that is gone
    TargetScript script_;
    bool posted_ = false;
};

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
        "    _thread.start_new_thread(exec, (code, names))\n"
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

bool has_debugger_support(const process::Interpreter& interpreter) {
    return interpreter.major == 3 && cpython::debugger_support_offset(interpreter.minor) != 0;
}

Result<Fd> enter_by_debugger_support(const DebuggerSupportRequest& request) {
    Clock::time_point deadline = Clock::now() + request.timeout;
    RemoteMemory memory(request.pid);
    Result<Mailbox> mailbox = find_mailbox(memory, request.interpreter);
    if (!mailbox) return std::move(mailbox.error());

    Result<std::string> token = make_token();
    if (!token) return std::move(token.error());
    const std::string socket_name = "speedbump-" + *token;
    Result<Fd> listener = listen_abstract(request.pid, socket_name);
    if (!listener) return std::move(listener.error());
    Result<TargetScript> script = TargetScript::find_place(request.pid);
    if (!script) return std::move(script.error());

    Request posted(request.pid, *mailbox, std::move(*script));
    if (Result<void> done = posted.post(script_text(socket_name, request.source)); !done)
        return std::move(done.error());
    Fd channel;
    while (!channel.valid()) {
        if (!wait_readable(listener->get(), deadline))
            return make_error(
                ErrorKind::kTimeout,
                fmt::format("its main thread ran no Python code for {} ms, so it never looked at "
                            "the request, which was taken back",
                            request.timeout.count()));
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
