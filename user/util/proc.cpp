// SPDX-License-Identifier: MIT
#include "util/proc.h"

#include <dirent.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstdlib>
#include <memory>
#include <system_error>

#include "util/fd.h"

namespace speedbump {

std::string read_proc(const std::string& path) {
    const Fd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
    std::string text;
    if (!fd.valid()) return text;
    char buffer[4096];
    for (;;) {
        const ssize_t got = ::read(fd.get(), buffer, sizeof(buffer));
        if (got < 0 && errno == EINTR) continue;
        if (got <= 0) return text;
        text.append(buffer, static_cast<size_t>(got));
    }
}

std::string_view status_field(std::string_view status, std::string_view name) {
    for (size_t at = 0; at < status.size();) {
        const size_t end = std::min(status.find('\n', at), status.size());
        std::string_view line = status.substr(at, end - at);
        at = end + 1;
        if (!line.starts_with(name) || !line.substr(name.size()).starts_with(':')) continue;
        line.remove_prefix(name.size() + 1);
        return line.substr(std::min(line.find_first_not_of(" \t"), line.size()));
    }
    return {};
}

std::string status_field(pid_t pid, std::string_view name) {
    return std::string(status_field(read_proc(fmt::format("/proc/{}/status", pid)), name));
}

// Not by std::filesystem: its iterator may throw between two entries.
std::vector<pid_t> list_pids() {
    std::vector<pid_t> pids;
    const std::unique_ptr<DIR, int (*)(DIR*)> directory(::opendir("/proc"), ::closedir);
    if (!directory) return pids;
    while (const dirent* entry = ::readdir(directory.get())) {
        const std::string_view name = entry->d_name;
        pid_t pid = 0;
        const auto read = std::from_chars(name.data(), name.data() + name.size(), pid);
        if (read.ec == std::errc() && read.ptr == name.data() + name.size()) pids.push_back(pid);
    }
    return pids;
}

bool has_lost_main_thread(pid_t pid) {
    const std::string status = read_proc(fmt::format("/proc/{}/status", pid));
    return status_field(status, "State").starts_with('Z') &&
           std::atoi(std::string(status_field(status, "Threads")).c_str()) > 1;
}

bool is_ending(pid_t pid) {
    constexpr size_t kFlags = 9;
    constexpr uint64_t kExiting = 4; // PF_EXITING, which is set before the memory goes
    const auto stat = read_stat(fmt::format("/proc/{}/stat", pid));
    if (!stat) return ::kill(pid, 0) != 0 && errno == ESRCH; // which takes no descriptor
    return (stat->field(kFlags) & kExiting) != 0 && !has_lost_main_thread(pid);
}

pid_t parent_of(pid_t pid) {
    return std::atoi(status_field(pid, "PPid").c_str());
}

pid_t innermost_id(std::string_view status) {
    const std::string_view ids = status_field(status, "NSpid"); // of each namespace, ours first
    return std::atoi(std::string(ids.substr(ids.find_last_of(" \t") + 1)).c_str());
}

uint64_t ProcStat::field(size_t number) const {
    constexpr size_t kFirst = 4;
    return number >= kFirst && number - kFirst < numbers.size() ? numbers[number - kFirst] : 0;
}

std::optional<ProcStat> parse_stat(std::string_view text) {
    const size_t name = text.find('('), end = text.rfind(')');
    if (name == std::string_view::npos || end == std::string_view::npos || end < name ||
        end + 3 >= text.size() || text[end + 1] != ' ' || text[end + 3] != ' ')
        return std::nullopt;
    ProcStat stat;
    stat.name = text.substr(name + 1, end - name - 1);
    stat.state = text[end + 2];
    const char* at = text.data() + end + 4;
    const char* const last = text.data() + text.size();
    for (;;) {
        while (at < last && *at == ' ') ++at;
        uint64_t value = 0;
        const bool is_negative = at < last && *at == '-';
        const auto read = std::from_chars(at + (is_negative ? 1 : 0), last, value);
        if (read.ec != std::errc()) return stat;
        stat.numbers.push_back(is_negative ? 0 - value : value);
        at = read.ptr;
    }
}

std::optional<ProcStat> read_stat(const std::string& path) {
    return parse_stat(read_proc(path));
}

} // namespace speedbump
