// SPDX-License-Identifier: MIT
#pragma once

#include <compare>
#include <cstdint>
#include <string>

#include "util/fd.h"
#include "util/result.h"

namespace speedbump::process {

// The identity of a file whatever its name: what the kernel keys uprobes by.
struct FileKey {
    uint64_t device = 0;
    uint64_t inode = 0;
    auto operator<=>(const FileKey&) const = default;
};

// What /proc/PID/maps shows for mappings of this file. stat tells other numbers on overlayfs and
// btrfs, so the file is mapped and looked up.
Result<FileKey> mapped_key(const Fd& fd, const std::string& path);
// DT_SONAME without the symbols; empty when there is none or the file is not a good ELF file.
std::string read_soname(const Fd& fd, const std::string& path);
// Where a symbolic link leads as a text; empty when it can't be read.
std::string read_link(const std::string& path);
std::string path_of_descriptor(const Fd& fd);

} // namespace speedbump::process
