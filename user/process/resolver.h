// SPDX-License-Identifier: MIT
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "elf/placement.h"
#include "elf/symbols.h"
#include "process/file_identity.h"
#include "process/maps.h"
#include "process/symbol_matcher.h"
#include "targets/target.h"
#include "util/fd.h"
#include "util/result.h"

namespace speedbump::process {

// One native target: a function of one file that a line of the targets file selects.
struct NativeMatch {
    FileKey file;
    std::string path;          // of the file, as the first process that mapped it sees it
    std::string name;          // the name the line matched (the best one for a reader)
    uint64_t entry_offset = 0; // file offset of the first instruction
    elf::ProbeSite site;
    size_t line_index = 0; // into TargetsFile::lines
};

// A function that a line selects, before its site is looked for.
struct Candidate {
    FileKey file;
    uint64_t entry_offset = 0;
    SymbolMatcher::Decision decision; // the alias lives as long as the Resolver
};

// Something a line named that cannot be slowed, and why: an IFUNC nobody has resolved yet, a
// damaged file, a file that could not be opened.
struct Skipped {
    std::string path;
    std::string name;
    size_t line_index = 0; // SIZE_MAX: not one line's doing
    std::string reason;
};

// What one look at a process (or file) brought.
struct Findings {
    std::set<FileKey> files; // that have at least one match and that this process maps
    // What is new: not reported by an earlier look.
    std::vector<NativeMatch> matches;
    std::vector<Candidate> candidates; // with Placing::kLater, instead of matches
    std::vector<Skipped> skipped;
    bool maps_code = true; // false: the process maps none, as for a moment of an exec
};

// When probe sites are chosen: at once, or when the caller asks for those of some candidates (what
// else would be looked at are all functions of all files).
enum class Placing { kAtOnce, kLater };

// What is kept, however many files hostile processes map by however many names.
struct ResolverLimits {
    size_t held_files = 4096;                 // that have matches: each with a descriptor
    size_t other_files = 1u << 14;            // at least, of which nothing comes
    size_t skipped_bytes = size_t{128} << 20; // of what is told of them
};

// Turns the native lines of a targets file into functions of the files that processes have mapped.
// Reads each file once, however many processes map it. Not thread-safe.
class Resolver {
  public:
    Resolver(const targets::TargetsFile& file, elf::PlacementOptions placement,
             Placing placing = Placing::kAtOnce, const ResolverLimits& limits = {});
    ~Resolver();

    // Looks at what the process has mapped now. kNotFound: it is gone. Else the next look has all.
    // `wants`: which files are worth it, by the path as the process sees it, and how many bytes of
    // code it maps of it; nullptr: all.
    using WantsFile = std::function<bool(const std::string& path, uint64_t code_bytes)>;
    Result<Findings> look_at_process(pid_t pid, const WantsFile& wants = nullptr);
    // Looks at a file by path, below `root` ("" or "/proc/PID/root"), whether mapped or not.
    Result<Findings> look_at_file(const std::string& path, const std::string& root,
                                  bool is_main_executable);
    // Looks at the absolute, glob-free paths that the lines name, whether mapped or not.
    Findings look_at_named_files(const std::string& root);

    // Of candidates: the matches, by index; nullopt, with the reason in `skipped`, where there is
    // no site. Each call reads all code of the files that they are in.
    std::vector<std::optional<NativeMatch>> place(std::span<const Candidate> candidates,
                                                  std::vector<Skipped>& skipped);
    // The path of a candidate's file, as the first process that mapped it sees it.
    const std::string& path(const FileKey& key) const;

    // A descriptor of a file with matches, open as long as the Resolver lives; -1 when unknown.
    // /proc/self/fd/N of it is a path to attach by, whatever happened to the file's name.
    int descriptor(const FileKey& key) const;
    // The lines (indexes) that have matched nothing so far; exclusions are not counted.
    std::vector<size_t> unmatched_lines() const;

  private:
    struct Impl;
    std::unique_ptr<Impl> impl_;
};

} // namespace speedbump::process
