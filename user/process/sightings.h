// SPDX-License-Identifier: MIT
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "process/file_identity.h"
#include "process/ifunc.h"
#include "process/maps.h"

namespace speedbump::process {

// One way to reach a file, before it is opened.
struct Sighting {
    std::vector<std::string> paths; // as its process sees it, and by its other names
    bool is_main_executable = false;
    std::string debug_root;
    IfuncResolver* ifuncs = nullptr; // of the process; none when looked at by path
};

// Where a pattern's prefix leads in one process: the text to put before the rest of a path.
struct Alias {
    std::string real;
    std::string named;
};

// Those of the prefixes that are symbolic links below this root: /lib/x.so may be mapped as
// /usr/lib/x.so.1.
std::vector<Alias> aliases_below(const std::string& root, const std::vector<std::string>& prefixes);

// A file of whose code a process maps some.
struct SeenFile {
    const Mapping* mapping; // the first one
    Sighting sighting;
    uint64_t code_bytes = 0; // of all
};

// The files that are mapped executable, each with its names: those of a file with very many are
// not all taken. The mappings (of that process) and `ifuncs` must outlive the answer.
std::map<FileKey, SeenFile> files_with_code(pid_t pid, const std::vector<Mapping>& mappings,
                                            const std::vector<Alias>& aliases,
                                            IfuncResolver& ifuncs);

} // namespace speedbump::process
