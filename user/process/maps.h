// SPDX-License-Identifier: MIT
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "util/fd.h"
#include "util/result.h"

namespace speedbump::process {

inline constexpr std::string_view kDeleted =
    " (deleted)"; // behind the path of a file that has no name

// One line of /proc/PID/maps that is backed by a file.
struct Mapping {
    uint64_t start = 0;
    uint64_t end = 0;
    uint64_t file_offset = 0;
    bool executable = false;
    bool writable = false;
    uint64_t device = 0; // makedev(major, minor)
    uint64_t inode = 0;
    std::string path; // as the kernel prints it for the reader, unescaped, no " (deleted)"
    bool deleted = false;
};

// All file-backed mappings of a process, by address. kNotFound when it is gone, a kernel thread or
// a zombie gives an empty list.
Result<std::vector<Mapping>> read_maps(pid_t pid);
std::vector<Mapping> parse_maps(std::string_view text);

// The root folder of a process as its links show it to us: "/" where it is ours, or is unknown.
std::string root_of(pid_t pid);
// A path of read_maps() as a process with this root sees it. The kernel prints paths from our root,
// or, where that does not lead there, from the one of the process's mount namespace.
std::string path_within(const std::string& root, const std::string& path);

// Opens the very file behind a mapping, read-only, also when it was deleted or replaced
// (/proc/PID/map_files), else through /proc/PID/root when device and inode agree.
Result<Fd> open_mapped_file(pid_t pid, const Mapping& mapping);

} // namespace speedbump::process
