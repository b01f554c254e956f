// SPDX-License-Identifier: MIT
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <map>
#include <vector>

#include "process/file_identity.h"
#include "process/maps.h"
#include "targets/target.h"
#include "util/fd.h"

namespace speedbump::process {

struct AddressRange {
    uint64_t begin = 0;
    uint64_t end = 0;
    bool operator==(const AddressRange&) const = default;
};
using AddressRanges = std::vector<AddressRange>; // ascending, and apart from each other

// Where the code of the native functions lies whose names match a pattern, in whatever files a
// process has mapped: by which a return address tells the caller. The extent of a function is what
// its symbol says, or unwind information; a part of it that the compiler has moved away is not in
// it. Reads each file once, however many processes map it. Not thread-safe.
class NamedCode {
  public:
    // Symbols match as those of a native line do (targets::symbol_matches()).
    explicit NamedCode(targets::Pattern name);

    const targets::Pattern& name() const { return lines_.lines[0].name; }
    // In a process with these mappings (read_maps()); files that can't be read have none.
    AddressRanges find(pid_t pid, const std::vector<Mapping>& mappings);
    size_t known_files() const { return files_.size(); }
    size_t held_files() const { return held_; } // each with a descriptor

  private:
    struct File {
        AddressRanges ranges; // file offsets
        Fd fd;                // open where there are some, so that the inode is not used again
        // By which one of another file that has the inode now is told.
        int64_t size = 0, changed_s = 0, changed_ns = 0;
        uint64_t shown_in = 0; // the last look in which a mapping showed it
    };
    const File* file_of(pid_t pid, const Mapping& mapping); // nullptr: it can't be opened now
    static bool is_unchanged(const File& known, pid_t pid, const Mapping& mapping);
    AddressRanges read(pid_t pid, const Fd& fd, const Mapping& mapping) const;
    void forget_files();

    targets::TargetsFile lines_; // one
    std::map<FileKey, File> files_;
    uint64_t look_ = 0;         // the number of this one
    uint64_t forgotten_in_ = 0; // when files were last forgotten
    size_t held_ = 0;           // descriptors of them
    size_t forget_at_ = kFewFiles;
    static constexpr size_t kFewFiles = 4096;
    static constexpr size_t kMaxHeld = 1024;
};

} // namespace speedbump::process
