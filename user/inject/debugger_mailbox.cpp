// SPDX-License-Identifier: MIT
#include "inject/debugger_mailbox.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <optional>

#include "cpython/offsets.h"
#include "process/memory.h"
#include "process/ownership.h"

namespace speedbump::inject {

namespace {

using cpython::kInterpretersHead;
using cpython::kThreadsMain;
using Support = cpython::DebuggerSupport;

constexpr uint8_t kPleaseStop = 1 << 5; // _PY_EVAL_PLEASE_STOP_BIT

bool read_at(const Fd& memory, uint64_t address, void* data, size_t size) {
    return ::pread(memory.get(), data, size, static_cast<off_t>(address)) ==
           static_cast<ssize_t>(size);
}

template <typename T>
std::optional<T> value_at(const Fd& memory, uint64_t address) {
    T value;
    if (!read_at(memory, address, &value, sizeof(value))) return std::nullopt;
    return value;
}

bool write_at(const Fd& memory, uint64_t address, const void* data, size_t size) {
    return ::pwrite(memory.get(), data, size, static_cast<off_t>(address)) ==
           static_cast<ssize_t>(size);
}

bool is_still_there(pid_t pid, const cpython::Interpreter& interpreter) {
    const auto found = cpython::find_interpreters(pid);
    return found && std::any_of(found->begin(), found->end(), [&](const auto& one) {
               return one.runtime_address == interpreter.runtime_address &&
                      one.describe() == interpreter.describe();
           });
}

} // namespace

bool has_debugger_mailbox(const cpython::Interpreter& interpreter) {
    return interpreter.major == 3 && cpython::debugger_support_offset(interpreter.minor) != 0;
}

Result<DebuggerMailbox> find_debugger_mailbox(pid_t pid, const cpython::Interpreter& interpreter) {
    auto opened = process::open_memory(pid);
    if (!opened) return std::move(opened).error();
    Fd memory = std::move(*opened);
    // Only now, so that this memory is that of what is looked at, or of nothing any more.
    if (auto ours = process::require_ours({&pid, 1}); !ours) return std::move(ours).error();
    if (!is_still_there(pid, interpreter))
        return make_error(ErrorKind::kIo, "it runs another program by now");
    auto unreadable = [&] {
        return make_error(ErrorKind::kUnsupported,
                          "its state is not laid out as " + interpreter.describe() + " has it");
    };
    uint64_t runtime = interpreter.runtime_address;
    auto support =
        value_at<Support>(memory, runtime + cpython::debugger_support_offset(interpreter.minor));
    auto head_offset = value_at<uint64_t>(memory, runtime + kInterpretersHead);
    auto main_offset = value_at<uint64_t>(memory, runtime + kThreadsMain);
    if (!support || !head_offset || !main_offset || support->script_path_size < 64 ||
        support->script_path_size > 65536)
        return unreadable();
    auto state = value_at<uint64_t>(memory, runtime + *head_offset);
    if (!state || *state == 0) return unreadable();
    auto enabled = value_at<int32_t>(memory, *state + support->remote_debugging_enabled);
    auto thread = value_at<uint64_t>(memory, *state + *main_offset);
    if (!enabled || !thread || *thread == 0) return unreadable();
    if (*enabled != 1)
        return make_error(ErrorKind::kPermission,
                          "its remote debugging is switched off (-X disable-remote-debug or "
                          "PYTHON_DISABLE_REMOTE_DEBUG)");
    uint64_t base = *thread + support->remote_debugger_support;
    return DebuggerMailbox{std::move(memory), *thread + support->eval_breaker,
                           base + support->pending_call, base + support->script_path,
                           support->script_path_size};
}

Result<void> post_request(const DebuggerMailbox& mailbox, const std::string& path) {
    const auto lost = [] { return make_error(ErrorKind::kIo, "its memory can't be reached"); };
    const Fd& memory = mailbox.memory;
    auto pending = value_at<int32_t>(memory, mailbox.pending_call);
    if (!pending) return lost();
    if (*pending != 0)
        return make_error(ErrorKind::kIo, "another debugger's request waits there already");
    const int32_t one = 1;
    if (!write_at(memory, mailbox.script_path, path.c_str(), path.size() + 1) ||
        !write_at(memory, mailbox.pending_call, &one, sizeof(one)))
        return lost();
    // Of its bytes the first alone, which has the events: the target counts in the others.
    auto breaker = value_at<uint8_t>(memory, mailbox.eval_breaker);
    if (!breaker) return lost();
    *breaker |= kPleaseStop;
    if (!write_at(memory, mailbox.eval_breaker, &*breaker, sizeof(*breaker))) return lost();
    return {};
}

Withdrawal withdraw_request(const DebuggerMailbox& mailbox, const std::string& path,
                            std::string& room) {
    // Whether one waits, and then the path: were it the other way round, the path could be this
    // request's and what waits another's.
    int32_t pending = 0;
    if (!read_at(mailbox.memory, mailbox.pending_call, &pending, sizeof(pending)))
        return Withdrawal::kFailed;
    if (pending == 0) return Withdrawal::kTakenUp;
    if (!read_at(mailbox.memory, mailbox.script_path, room.data(), path.size() + 1))
        return Withdrawal::kFailed;
    if (std::memcmp(room.data(), path.c_str(), path.size() + 1) != 0) return Withdrawal::kAnothers;
    // The path stays: it says nothing any more, and its bytes may be another's by now.
    const int32_t none = 0;
    if (!write_at(mailbox.memory, mailbox.pending_call, &none, sizeof(none)))
        return Withdrawal::kFailed;
    return Withdrawal::kTakenBack;
}

} // namespace speedbump::inject
