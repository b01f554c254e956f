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

// What tells which file a file is below overlayfs, where uprobes are: each mount shows the one
// below with a device of its own, the same number but for the upper bits, and that one's size and
// times.
struct FileBelow {
    bool is_overlaid = false;
    uint32_t number = 0; // the lower bits
    int64_t size = 0, changed_s = 0, changed_ns = 0;

    // Whether both are one file below, and at least one is seen through overlayfs.
    bool is_that_of(const FileBelow& other) const;
    // What to look for in the maps of other processes (mapped_of) to find who maps what is below.
    // By the number that maps show: of a file that was copied up it is another than stat's.
    FileKey wanted(const FileKey& key) const {
        return is_overlaid ? FileKey{0, static_cast<uint32_t>(key.inode)} : key;
    }
};
// Nothing is known of a descriptor that can't be asked.
FileBelow file_below(int descriptor);

// What /proc/PID/maps shows for mappings of this file. stat tells other numbers on overlayfs and
// btrfs, so the file is mapped and looked up.
Result<FileKey> mapped_key(const Fd& fd, const std::string& path);
// DT_SONAME without the symbols; empty when there is none or the file is not a good ELF file.
std::string read_soname(const Fd& fd, const std::string& path);
// Where a symbolic link leads as a text; empty when it can't be read.
std::string read_link(const std::string& path);
std::string path_of_descriptor(const Fd& fd);

} // namespace speedbump::process
