// SPDX-License-Identifier: MIT
#include "inject/debugger_support.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <thread>

#include "inject/bootstrap.h"
#include "util/channel.h"

namespace speedbump::inject {
namespace {

using process::RemoteMemory;
using Clock = std::chrono::steady_clock;

// Of struct _Py_DebugOffsets: stable within a minor version.
constexpr uint64_t kInterpretersHead = 40; // runtime_state.interpreters_head
constexpr uint64_t kThreadsMain = 80;      // interpreter_state.threads_main
constexpr uint64_t kPleaseStop = 1 << 5;   // _PY_EVAL_PLEASE_STOP_BIT

uint64_t support_offset(int minor) {
    switch (minor) {
        case 14:
            return 712;
        case 15:
            return 840;
        default:
            return 0;
    }
}

// _Py_DebugOffsets.debugger_support
struct Support {
    uint64_t eval_breaker;
    uint64_t remote_debugger_support;
    uint64_t remote_debugging_enabled;
    uint64_t pending_call;
    uint64_t script_path;
    uint64_t script_path_size;
};

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
    auto support = memory.value<Support>(runtime + support_offset(interpreter.minor));
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

// A file that is gone with the object.
struct ScratchFile {
    std::string path;
    ~ScratchFile() {
        if (!path.empty()) ::unlink(path.c_str());
    }
};

// The request in the target's memory; taken back on destruction unless it was carried out.
class Request {
  public:
    Request(pid_t pid, const Mailbox& mailbox) : pid_(pid), mailbox_(mailbox) {}
    ~Request() {
        const int32_t none = 0;
        const char no_path = '\0';
        if (posted_ && !write_memory(pid_, mailbox_.pending_call, &none, sizeof(none))) return;
        if (posted_ && !write_memory(pid_, mailbox_.script_path, &no_path, 1)) return;
    }
    Request(const Request&) = delete;
    Request& operator=(const Request&) = delete;

    Result<void> post(const std::string& script) {
        if (script.size() >= mailbox_.script_path_size)
            return make_error(ErrorKind::kInvalid, "the script's path is too long");
        RemoteMemory memory(pid_);
        auto pending = memory.value<int32_t>(mailbox_.pending_call);
        if (!pending || *pending != 0)
            return make_error(ErrorKind::kIo, "another debugger's request waits there already");
        Result<void> written =
            write_memory(pid_, mailbox_.script_path, script.c_str(), script.size() + 1);
        if (!written) return written;
        posted_ = true;
        const int32_t one = 1;
        written = write_memory(pid_, mailbox_.pending_call, &one, sizeof(one));
        if (!written) return written;
        auto breaker = memory.value<uint64_t>(mailbox_.eval_breaker);
        if (!breaker) return make_error(ErrorKind::kIo, "its state can't be read");
        *breaker |= kPleaseStop;
        return write_memory(pid_, mailbox_.eval_breaker, &*breaker, sizeof(*breaker));
    }

  private:
    pid_t pid_;
    Mailbox mailbox_;
    bool posted_ = false;
};

std::string script_text(const std::string& socket_path, const std::string& source) {
    // What can't connect any more has been given up: it says nothing and does nothing. The core is
    // served on a thread of its own: this one is the program's main thread.
    std::string text =
        "def _speedbump_enter():\n"
        "    import _socket, _thread, array\n"
        "    try:\n"
        "        s = _socket.socket(_socket.AF_UNIX, _socket.SOCK_SEQPACKET)\n"
        "        s.connect('" +
        socket_path +
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

} // namespace

bool has_debugger_support(const process::Interpreter& interpreter) {
    return interpreter.major == 3 && support_offset(interpreter.minor) != 0;
}

Result<Fd> enter_by_debugger_support(const DebuggerSupportRequest& request) {
    Clock::time_point deadline = Clock::now() + request.timeout;
    RemoteMemory memory(request.pid);
    Result<Mailbox> mailbox = find_mailbox(memory, request.interpreter);
    if (!mailbox) return std::move(mailbox.error());

    uint64_t token[2] = {};
    if (getrandom(token, sizeof(token), 0) != sizeof(token)) return errno_error("getrandom", errno);
    std::string inside = fmt::format("/tmp/.speedbump-{:016x}{:016x}", token[0], token[1]);
    std::string outside = fmt::format("/proc/{}/root{}", request.pid, inside);

    Fd listener(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    if (!listener.valid() || outside.size() >= sizeof(address.sun_path))
        return errno_error("socket", errno);
    std::memcpy(address.sun_path, outside.c_str(), outside.size() + 1);
    if (bind(listener.get(), reinterpret_cast<sockaddr*>(&address), sizeof(address)) != 0)
        return errno_error("bind " + outside, errno);
    ScratchFile socket_file{outside};
    // The name can't be guessed, and whoever connects gets nothing but the core.
    if (chmod(outside.c_str(), 0666) != 0 || listen(listener.get(), 1) != 0)
        return errno_error("listen on " + outside, errno);

    ScratchFile script{outside + ".py"};
    std::string text = script_text(inside, request.source);
    Fd file(::open(script.path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0444));
    if (!file.valid() ||
        ::write(file.get(), text.data(), text.size()) != static_cast<ssize_t>(text.size()))
        return errno_error("write " + script.path, errno);

    Request posted(request.pid, *mailbox);
    if (Result<void> done = posted.post(inside + ".py"); !done) return std::move(done.error());
    if (!wait_readable(listener.get(), deadline))
        return make_error(ErrorKind::kTimeout,
                          fmt::format("its main thread ran no Python code for {} ms, so it never "
                                      "looked at the request, which was taken back",
                                      request.timeout.count()));
    Fd channel(::accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC));
    if (!channel.valid()) return errno_error("accept", errno);
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
