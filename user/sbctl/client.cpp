// SPDX-License-Identifier: MIT
#include "sbctl/client.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/ioctl.h>

#include <charconv>

#include "device_abi.h"
#include "sb_common.h"
#include "util/fd.h"

namespace speedbump::sbctl {

namespace {

const std::string kFolder = "/sys/kernel/speed_bump/";

// What an errno of a command means, in a sentence.
std::string sentence(int error_number) {
    switch (error_number) {
        case EINVAL:
            return "the command is malformed: a target is /PATH:SYMBOL without white space";
        case ENOENT:
            return "there is no such file, no such function in it, or no such target";
        case ENOEXEC:
            return "the file is not a program or library of this machine";
        case ENAMETOOLONG:
            return fmt::format("the path is longer than {} bytes, or the symbol longer than {}",
                               SB_PATH_MAX, SB_SYMBOL_MAX);
        case ERANGE:
            return fmt::format("the delay is over {} s", SB_MAX_DELAY_SECONDS);
        case EEXIST:
            return "the target is there already";
        case ENOSPC:
            return "the limit of targets is reached (the module's parameter max_targets)";
        case EACCES:
            return "the file can't be read";
        case EPERM:
            return "that needs CAP_SYS_ADMIN";
        case EOPNOTSUPP:
            return "the instruction there is not known to be safe to probe";
        case ESTALE:
            return "a file has been written to since its target was added: add it anew";
        default:
            return std::string("the module refused: ") + std::strerror(error_number);
    }
}

Result<Fd> open_path(const std::string& path, int flags) {
    Fd fd(::open(path.c_str(), flags | O_CLOEXEC));
    if (fd.valid()) return fd;
    if (errno == ENOENT)
        return Error{ErrorKind::kUnsupported, ENOENT, "the kernel module speed_bump is not loaded",
                     "modprobe speed_bump"};
    if (errno == EACCES || errno == EPERM)
        return Error{ErrorKind::kPermission, errno, "only root may change or read " + path, {}};
    return errno_error("open " + path, errno);
}

Result<Fd> open_file(const char* name, int flags) {
    return open_path(kFolder + name, flags);
}

Result<void> write_text(const Fd& fd, const std::string& text) {
    if (::write(fd.get(), text.data(), text.size()) >= 0) return {};
    const int error_number = errno;
    Error error = errno_error("write", error_number);
    error.message = sentence(error_number);
    return error;
}

Result<void> write_file(const char* name, const std::string& text) {
    auto fd = open_file(name, O_WRONLY);
    if (!fd) return std::move(fd).error();
    return write_text(*fd, text);
}

Result<std::string> read_file(const char* name) {
    auto fd = open_file(name, O_RDONLY);
    if (!fd) return std::move(fd).error();
    std::string text;
    char part[4096];
    for (;;) {
        const ssize_t got = ::read(fd->get(), part, sizeof(part));
        if (got < 0) return errno_error("read " + kFolder + name, errno);
        if (got == 0) return text;
        text.append(part, static_cast<size_t>(got));
    }
}

// A target that holds a blank would become several words of the command.
Result<std::string> command(char verb, std::string_view target, const std::string& options) {
    for (const char c : target) {
        if (static_cast<unsigned char>(c) <= ' ')
            return Error{ErrorKind::kInvalid, EINVAL, sentence(EINVAL), {}};
    }
    return fmt::format("{}{}{}\n", verb, target, options);
}

Result<void> run(const Result<std::string>& command) {
    return command ? write_file("targets", *command) : command.error();
}

std::string pid_option(std::optional<pid_t> pid) {
    return pid ? fmt::format(" pid={}", *pid) : std::string();
}

std::optional<uint64_t> parse_number(std::string_view text) {
    const bool is_hex = text.starts_with("0x");
    if (is_hex) text.remove_prefix(2);
    uint64_t value = 0;
    const auto [end, error] =
        std::from_chars(text.data(), text.data() + text.size(), value, is_hex ? 16 : 10);
    if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
    return value;
}

std::string_view take_until(std::string_view& text, char separator) {
    const size_t end = text.find(separator);
    const std::string_view part = text.substr(0, end);
    text.remove_prefix(end == std::string_view::npos ? text.size() : end + 1);
    return part;
}

void set_field(Target& target, std::string_view key, std::string_view text) {
    if (key == "owner") target.is_owned = true;
    const auto value = parse_number(text);
    if (!value) return;
    if (key == "delay_ns") target.delay = nanoseconds(*value);
    if (key == "hits") target.hits = *value;
    if (key == "pid") target.pid = static_cast<pid_t>(*value);
    if (key == "delays") target.delays = *value;
    if (key == "requested_ns") target.requested = nanoseconds(*value);
    if (key == "measured_ns") target.measured = nanoseconds(*value);
    if (key == "offset") target.offset = *value;
}

} // namespace

Result<Target> parse_line(std::string_view line) {
    Target target;
    target.name = take_until(line, ' ');
    if (!target.name.starts_with('/') || line.find("hits=") == std::string_view::npos)
        return make_error(ErrorKind::kInvalid, "not a line of targets_list: " + target.name);
    while (!line.empty()) {
        std::string_view value = take_until(line, ' ');
        const std::string_view key = take_until(value, '=');
        set_field(target, key, value);
    }
    return target;
}

Result<void> add(std::string_view target, std::optional<nanoseconds> delay,
                 std::optional<pid_t> pid) {
    std::string options = delay ? fmt::format(" {}", delay->count()) : std::string();
    return run(command('+', target, options + pid_option(pid)));
}

Result<void> remove(std::string_view target) {
    // "-*" is the command that removes all
    if (target == "*") return Error{ErrorKind::kInvalid, EINVAL, sentence(EINVAL), "sbctl clear"};
    return run(command('-', target, ""));
}

Result<void> update(std::string_view target, nanoseconds delay, std::optional<pid_t> pid) {
    return run(command('=', target, fmt::format(" {}{}", delay.count(), pid_option(pid))));
}

Result<void> clear() {
    return write_file("targets", "-*\n");
}

Result<void> set_enabled(bool enabled) {
    return write_file("enabled", enabled ? "1\n" : "0\n");
}

Result<void> set_default_delay(nanoseconds delay) {
    return write_file("default_delay_ns", fmt::format("{}\n", delay.count()));
}

Result<Owner> Owner::open() {
    auto device = open_path("/dev/speed_bump", O_WRONLY);
    if (!device) return std::move(device).error();
    return Owner(std::move(*device));
}

Result<void> Owner::hold() const {
    if (::ioctl(device_.get(), SB_DEVICE_HOLD) == 0) return {};
    return errno_error("switch the kernel module on", errno);
}

Result<void> Owner::add(std::string_view target, nanoseconds delay,
                        std::optional<pid_t> pid) const {
    const auto text = command('+', target, fmt::format(" {}{}", delay.count(), pid_option(pid)));
    return text ? write_text(device_, *text) : text.error();
}

Result<void> Owner::update(std::string_view target, nanoseconds delay) const {
    const auto text = command('=', target, fmt::format(" {}", delay.count()));
    return text ? write_text(device_, *text) : text.error();
}

Result<void> Owner::remove(std::string_view target) const {
    const auto text = command('-', target, "");
    return text ? write_text(device_, *text) : text.error();
}

Result<std::vector<Target>> list() {
    auto text = read_file("targets_list");
    if (!text) return std::move(text).error();
    std::vector<Target> targets;
    std::string_view rest = *text;
    while (!rest.empty()) {
        auto target = parse_line(take_until(rest, '\n'));
        if (!target) return std::move(target).error();
        targets.push_back(std::move(*target));
    }
    return targets;
}

Result<Status> status() {
    auto stats = read_file("stats");
    if (!stats) return std::move(stats).error();
    auto default_delay = read_file("default_delay_ns");
    if (!default_delay) return std::move(default_delay).error();
    Status status;
    std::string_view rest = *stats;
    while (!rest.empty()) {
        std::string_view line = take_until(rest, '\n');
        const std::string_view key = take_until(line, ':');
        const uint64_t value = parse_number(line.substr(line.starts_with(' ') ? 1 : 0)).value_or(0);
        if (key == "enabled") status.enabled = value != 0;
        if (key == "targets") status.targets = value;
        if (key == "max_targets") status.max_targets = value;
        if (key == "total_hits") status.hits = value;
        if (key == "lost_processes") status.lost_processes = value;
        if (key == "total_delay_ns") status.delay = nanoseconds(value);
    }
    std::string_view line = *default_delay;
    status.default_delay = nanoseconds(parse_number(take_until(line, '\n')).value_or(0));
    return status;
}

} // namespace speedbump::sbctl
