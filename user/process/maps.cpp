// SPDX-License-Identifier: MIT
#include "process/maps.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include <charconv>
#include <climits>

#include "util/file.h"

namespace speedbump::process {
namespace {

// Reads a number up to `end_char`, which is skipped; false when it is not there.
bool take_number(std::string_view& text, int base, char end_char, uint64_t& value) {
    auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value, base);
    size_t length = static_cast<size_t>(end - text.data());
    if (error != std::errc() || length >= text.size() || text[length] != end_char) return false;
    text.remove_prefix(length + 1);
    return true;
}

// "5581e0000000-5581e0021000 r-xp 00002000 fd:01 1234   /usr/bin/cat"
bool parse_line(std::string_view line, Mapping& mapping) {
    uint64_t major = 0, minor = 0;
    if (!take_number(line, 16, '-', mapping.start) || !take_number(line, 16, ' ', mapping.end))
        return false;
    if (line.size() < 5 || line[4] != ' ') return false;
    mapping.writable = line[1] == 'w';
    mapping.executable = line[2] == 'x';
    line.remove_prefix(5);
    if (!take_number(line, 16, ' ', mapping.file_offset) || !take_number(line, 16, ':', major) ||
        !take_number(line, 16, ' ', minor) || !take_number(line, 10, ' ', mapping.inode))
        return false;
    mapping.device = makedev(static_cast<unsigned>(major), static_cast<unsigned>(minor));
    size_t path_at = line.find_first_not_of(' ');
    if (mapping.inode == 0 || path_at == std::string_view::npos || line[path_at] != '/')
        return false;
    line.remove_prefix(path_at);
    if (line.ends_with(kDeleted)) {
        mapping.deleted = true;
        line.remove_suffix(kDeleted.size());
    }
    // The kernel escapes nothing but the line feed (fs/proc/task_mmu.c), not even the backslash.
    for (size_t at = 0; at < line.size();) {
        if (line.substr(at).starts_with("\\012")) {
            mapping.path += '\n';
            at += 4;
        } else {
            mapping.path += line[at++];
        }
    }
    return true;
}

Result<std::string> read_file(const std::string& path) {
    Fd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
    if (!fd.valid()) return errno_error(fmt::format("open {}", path), errno);
    std::string text;
    size_t used = 0;
    for (;;) {
        if (text.size() - used < (1u << 16))
            text.resize(std::max(text.size() * 2, size_t{1} << 18));
        ssize_t got = ::read(fd.get(), text.data() + used, text.size() - used);
        if (got < 0 && errno == EINTR) continue;
        if (got < 0) return errno_error(fmt::format("read {}", path), errno);
        if (got == 0) break;
        used += static_cast<size_t>(got);
    }
    text.resize(used);
    return text;
}

// Whether the kernel shows the file behind `fd` in a maps file as it shows the mapping. Overlay
// file systems and btrfs report another device to stat than to maps, so it is asked by mapping it.
Result<bool> is_mapped_file(const Fd& fd, const Mapping& mapping) {
    struct stat status {};
    if (::fstat(fd.get(), &status) != 0 || !S_ISREG(status.st_mode)) return false;
    if (status.st_dev == mapping.device && status.st_ino == mapping.inode) return true;
    size_t page = static_cast<size_t>(::sysconf(_SC_PAGESIZE));
    void* at = ::mmap(nullptr, page, PROT_READ, MAP_PRIVATE, fd.get(), 0);
    if (at == MAP_FAILED) return errno_error("map " + mapping.path, errno);
    auto own = read_maps(::getpid());
    ::munmap(at, page);
    if (!own) return std::move(own).error();
    uint64_t address = reinterpret_cast<uintptr_t>(at);
    for (const Mapping& one : *own) {
        if (address >= one.start && address < one.end)
            return one.device == mapping.device && one.inode == mapping.inode;
    }
    return false;
}

} // namespace

std::vector<Mapping> parse_maps(std::string_view text) {
    std::vector<Mapping> mappings;
    while (!text.empty()) {
        size_t end = text.find('\n');
        Mapping mapping;
        if (parse_line(text.substr(0, end), mapping)) mappings.push_back(std::move(mapping));
        text.remove_prefix(end == std::string_view::npos ? text.size() : end + 1);
    }
    return mappings;
}

Result<std::vector<Mapping>> read_maps(pid_t pid) {
    auto text = read_file(fmt::format("/proc/{}/maps", pid));
    if (!text) {
        Error error = std::move(text.error());
        if (error.kind == ErrorKind::kPermission)
            error.hint = "reading another user's process needs CAP_SYS_PTRACE";
        return error;
    }
    return parse_maps(*text);
}

std::string root_of(pid_t pid) {
    std::string root(PATH_MAX, '\0');
    const ssize_t length =
        ::readlink(fmt::format("/proc/{}/root", pid).c_str(), root.data(), root.size());
    if (length <= 0) return "/";
    root.resize(static_cast<size_t>(length));
    return root;
}

std::string path_within(const std::string& root, const std::string& path) {
    const bool is_below = root.size() > 1 && path.starts_with(root + "/");
    return is_below ? path.substr(root.size()) : path;
}

Result<Fd> open_mapped_file(pid_t pid, const Mapping& mapping) {
    std::string link = fmt::format("/proc/{}/map_files/{:x}-{:x}", pid, mapping.start, mapping.end);
    constexpr int kFlags = O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY;
    Fd fd(::open(link.c_str(), kFlags));
    // The range may have been mapped anew since it was read.
    int link_error = fd.valid() ? 0 : errno;
    if (fd.valid()) {
        const auto is_it = is_mapped_file(fd, mapping);
        if (!is_it) return is_it.error();
        if (*is_it) return fd;
    }

    std::string root_path = fmt::format("/proc/{}/root", pid);
    Fd root(::open(root_path.c_str(), O_PATH | O_DIRECTORY | O_CLOEXEC));
    int path_error = root.valid() ? 0 : errno;
    if (root.valid()) {
        // A name may really end in " (deleted)".
        std::string candidates[] = {mapping.path, mapping.path + std::string(kDeleted)};
        for (size_t i = 0; i < (mapping.deleted ? 2 : 1); ++i) {
            Fd other = open_below(root, candidates[i], kFlags);
            if (!other.valid()) {
                if (path_error == 0) path_error = errno;
                continue;
            }
            const auto is_it = is_mapped_file(other, mapping);
            if (!is_it) return is_it.error();
            if (*is_it) return other;
        }
    }
    std::string what = fmt::format("{} of process {}: ", mapping.path, pid);
    if (link_error == EPERM || link_error == EACCES) {
        Error error = errno_error(what + "open " + link, link_error);
        error.message += path_error != 0
                             ? fmt::format("; by its name: {}", std::strerror(path_error))
                             : std::string("; its name now leads to another file");
        error.hint =
            "a file that was deleted or replaced while mapped is opened through "
            "/proc/PID/map_files, "
            "which needs CAP_CHECKPOINT_RESTORE or CAP_SYS_ADMIN (and CAP_SYS_PTRACE)";
        return error;
    }
    if (link_error != 0) return errno_error(what + "open " + link, link_error);
    return make_error(ErrorKind::kNotFound, what + "it is not what is mapped there now");
}

} // namespace speedbump::process
