// SPDX-License-Identifier: MIT
#pragma once

#include <cerrno>
#include <cstring>
#include <optional>
#include <string>
#include <utility>
#include <variant>

namespace speedbump {

// What went wrong, as far as the caller must tell the cases apart. main maps it to an exit status
// (user/cli/exit_status.h).
enum class ErrorKind {
    kUsage,          // a wrong option or argument
    kTargetsFile,    // the targets file has an error
    kNothingMatched, // no target matched anything
    kPermission,     // EPERM/EACCES: a capability or right is missing
    kUnsupported,    // the host can't: kernel feature, architecture, interpreter version
    kNotFound,       // no such process, file, symbol, session
    kInvalid,        // malformed input that is no targets file: an ELF file, a report
    kIo,             // a system call failed for another reason
    kTimeout,
};

// An error with everything a user needs: what happened (message, outermost context first), the
// errno of the system call where there was one (never dropped), and what to do about it.
struct Error {
    ErrorKind kind = ErrorKind::kIo;
    int error_number = 0;
    std::string message;
    std::string hint;

    // Prepends a layer: "attach to 12: open /proc/12/maps: No such file or directory".
    Error&& with_context(const std::string& what) && {
        message = what + ": " + message;
        return std::move(*this);
    }
    Error&& with_hint(std::string text) && {
        hint = std::move(text);
        return std::move(*this);
    }
};

// An Error of `kind` without an errno.
inline Error make_error(ErrorKind kind, std::string message) {
    return Error{kind, 0, std::move(message), {}};
}

// What an errno says. The kernel lets one of its own out that libc has no words for: ENOTSUPP, for
// a probe on an instruction that it can't execute elsewhere, or a BPF feature that it lacks.
inline std::string error_text(int error_number) {
    constexpr int kKernelNotSupported = 524; // include/linux/errno.h
    if (error_number == kKernelNotSupported) return "the kernel does not support this (ENOTSUPP)";
    return std::strerror(error_number);
}

// An Error for a failed system call: `what` says which, `error_number` is its errno (positive).
// EPERM and EACCES become kPermission, ENOENT and ESRCH kNotFound, all others kIo.
inline Error errno_error(const std::string& what, int error_number) {
    ErrorKind kind = ErrorKind::kIo;
    if (error_number == EPERM || error_number == EACCES) kind = ErrorKind::kPermission;
    if (error_number == ENOENT || error_number == ESRCH) kind = ErrorKind::kNotFound;
    return Error{kind, error_number, what + ": " + error_text(error_number), {}};
}

// A value or an Error: the subset of std::expected (C++23) that is used here, so that it can
// become one.
template <typename T>
class [[nodiscard]] Result {
  public:
    Result(T value) : state_(std::in_place_index<0>, std::move(value)) {}     // NOLINT: implicit
    Result(Error error) : state_(std::in_place_index<1>, std::move(error)) {} // NOLINT: implicit

    bool has_value() const { return state_.index() == 0; }
    explicit operator bool() const { return has_value(); }
    T& value() & { return std::get<0>(state_); }
    const T& value() const& { return std::get<0>(state_); }
    T&& value() && { return std::get<0>(std::move(state_)); }
    T& operator*() & { return std::get<0>(state_); }
    const T& operator*() const& { return std::get<0>(state_); }
    T&& operator*() && { return std::get<0>(std::move(state_)); }
    T* operator->() { return &std::get<0>(state_); }
    const T* operator->() const { return &std::get<0>(state_); }
    Error& error() & { return std::get<1>(state_); }
    const Error& error() const& { return std::get<1>(state_); }
    Error&& error() && { return std::get<1>(std::move(state_)); }

  private:
    std::variant<T, Error> state_;
};

template <>
class [[nodiscard]] Result<void> {
  public:
    Result() = default;
    Result(Error error) : error_(std::move(error)) {} // NOLINT: implicit

    bool has_value() const { return !error_.has_value(); }
    explicit operator bool() const { return has_value(); }
    Error& error() & { return *error_; }
    const Error& error() const& { return *error_; }
    Error&& error() && { return std::move(*error_); }

  private:
    std::optional<Error> error_;
};

} // namespace speedbump
