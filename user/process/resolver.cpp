// SPDX-License-Identifier: MIT
#include "process/resolver.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <iterator>
#include <tuple>
#include <unordered_map>

#include "process/ifunc.h"
#include "process/sightings.h"
#include "process/symbol_matcher.h"
#include "targets/matcher.h"
#include "util/file.h"
#include "util/passing.h"
#include "util/proc.h"

namespace speedbump::process {

namespace {

using targets::BinaryIdentity;
using targets::TargetLine;

// The part of an absolute pattern that stands for one file or folder: the whole path, or the folder
// before the first glob character.
std::string fixed_prefix(const targets::Pattern& pattern) {
    if (!pattern.is_glob) return pattern.text;
    const std::string_view text = pattern.text;
    const size_t slash = text.substr(0, text.find_first_of("*?[")).rfind('/');
    return std::string(text.substr(0, slash));
}

constexpr size_t kMaxIdentities = 64;         // of one file
constexpr size_t kMaxAllIdentities = 1 << 16; // since files were last forgotten
constexpr size_t kSkippedNode = 256;          // bytes

} // namespace

struct Resolver::Impl {
    Impl(const targets::TargetsFile& targets_file, elf::PlacementOptions options, Placing when,
         const ResolverLimits& its_limits);

    struct File {
        Fd fd; // open while there are matches, so that the inode is not used again
        std::string path;
        std::shared_ptr<const elf::ElfFile> elf; // kept while an IFUNC waits, or places are to come
        std::string soname;
        std::set<std::pair<std::string, bool>> identities; // path, is the main executable
        std::set<size_t> lines;                            // whose BINARY names it
        std::vector<uint64_t> reported;                    // entries of all so far, ascending
        bool waits_for_ifunc = false;
        // what a later look compares before it trusts an inode number that was free meanwhile
        timespec changed = {};
        off_t size = 0;
    };

    // What is decided of the functions of one file, by their entries.
    using Decided = std::vector<std::pair<uint64_t, SymbolMatcher::Decision>>;

    std::vector<size_t> lines_for(const BinaryIdentity& identity) const;
    bool is_known(const FileKey& key, const Sighting& sighting) const;
    static bool is_unchanged(const File& known, pid_t pid, const Mapping& mapping);
    Result<void> look(const FileKey& key, Fd fd, const Sighting& sighting, Findings& findings);
    void match(File& file, const FileKey& key, const Sighting& sighting, bool only_ifuncs,
               Findings& findings);
    static Result<uint64_t> find_implementation(const File& file, const FileKey& key,
                                                const elf::Function& function,
                                                const Sighting& sighting);
    void match_offset(const File& file, size_t line, Decided& decided, Findings& findings);
    void keep_new(File& file, Decided& decided) const;
    std::vector<std::optional<NativeMatch>> place(std::span<const Candidate> candidates,
                                                  std::vector<Skipped>& skipped);
    void skip(std::vector<Skipped>& all, Skipped skipped);
    void forget_files();
    void skip_file(Findings& findings, const Sighting& sighting, const Error& error);

    const targets::TargetsFile& targets;
    elf::PlacementOptions placement;
    Placing placing;
    ResolverLimits limits; // skipped_bytes: what is left of them
    // native lines by the text of BINARY, each list ascending
    std::vector<std::pair<targets::Pattern, std::vector<size_t>>> binaries;
    std::vector<std::string> prefixes; // fixed parts of absolute patterns
    bool needs_soname = false;
    std::map<FileKey, File> files;
    size_t held_files = 0;                 // those with a descriptor
    size_t identities = 0;                 // that were added to files since some were forgotten
    size_t forget_at = limits.other_files; // so many files
    bool has_told_of_held = false;
    std::vector<bool> matched; // by line
    std::set<std::tuple<std::string, std::string, size_t>> skipped_before;
    bool has_told_of_skipped = false;
    Findings held; // of a look that came to no end, for the next one
};

Resolver::Impl::Impl(const targets::TargetsFile& targets_file, elf::PlacementOptions options,
                     Placing when, const ResolverLimits& its_limits)
    : targets(targets_file),
      placement(options),
      placing(when),
      limits(its_limits),
      matched(targets_file.lines.size()) {
    std::unordered_map<std::string_view, size_t> place;
    std::set<std::string> unique_prefixes;
    for (size_t index = 0; index < targets.lines.size(); ++index) {
        const TargetLine& line = targets.lines[index];
        if (line.runtime != targets::Runtime::kNative) continue;
        const std::string& text = line.container.text;
        const auto [found, is_new] = place.try_emplace(text, binaries.size());
        if (is_new) {
            binaries.push_back({line.container, {}});
            if (text.starts_with('/')) unique_prefixes.insert(fixed_prefix(line.container));
            const bool is_name = text.find('/') == std::string::npos;
            if (is_name && text != "exe" && text != "*") needs_soname = true;
        }
        binaries[found->second].second.push_back(index);
    }
    unique_prefixes.erase("");
    prefixes.assign(unique_prefixes.begin(), unique_prefixes.end());
}

std::vector<size_t> Resolver::Impl::lines_for(const BinaryIdentity& identity) const {
    std::vector<size_t> lines;
    for (const auto& [pattern, indexes] : binaries) {
        if (!targets::binary_matches(pattern, identity)) continue;
        lines.insert(lines.end(), indexes.begin(), indexes.end());
    }
    return lines;
}

// Whether another look at the file by these names can bring nothing new.
bool Resolver::Impl::is_known(const FileKey& key, const Sighting& sighting) const {
    const auto found = files.find(key);
    if (found == files.end() || found->second.waits_for_ifunc) return false;
    return std::all_of(sighting.paths.begin(), sighting.paths.end(), [&](const std::string& path) {
        return found->second.identities.contains({path, sighting.is_main_executable});
    });
}

// Whether the file of that name is, for all that can be seen from outside, the one that was read.
bool Resolver::Impl::is_unchanged(const File& known, pid_t pid, const Mapping& mapping) {
    if (known.fd.valid()) return true; // the inode can't have been freed
    struct stat status = {};
    const std::string range =
        fmt::format("/proc/{}/map_files/{:x}-{:x}", pid, mapping.start, mapping.end);
    if (::stat(range.c_str(), &status) != 0 &&
        ::stat(fmt::format("/proc/{}/root{}", pid, mapping.path).c_str(), &status) != 0) {
        return true; // what can't be asked for can't be read anew either
    }
    return status.st_size == known.size && status.st_ctim.tv_sec == known.changed.tv_sec &&
           status.st_ctim.tv_nsec == known.changed.tv_nsec;
}

void Resolver::Impl::skip(std::vector<Skipped>& all, Skipped skipped) {
    std::tuple key(skipped.path, skipped.name, skipped.line_index);
    if (skipped_before.contains(key)) return;
    const size_t size =
        skipped.path.size() + skipped.name.size() + skipped.reason.size() + kSkippedNode;
    if (size > limits.skipped_bytes) {
        if (std::exchange(has_told_of_skipped, true)) return;
        skipped.reason += "; others that can't be slowed either are not listed any more";
        return all.push_back(std::move(skipped));
    }
    limits.skipped_bytes -= size;
    skipped_before.insert(std::move(key));
    all.push_back(std::move(skipped));
}

// Those of which nothing was reported, or is awaited, are as good as never seen.
void Resolver::Impl::forget_files() {
    if (files.size() <= forget_at && identities <= kMaxAllIdentities) return;
    std::erase_if(files, [](const auto& one) { return !one.second.fd.valid(); });
    for (auto& [key, file] : files) file.identities.clear();
    identities = 0;
    forget_at = 2 * files.size() + limits.other_files;
}

// Reports a file that can't be read, when a line names it by one of its paths.
void Resolver::Impl::skip_file(Findings& findings, const Sighting& sighting, const Error& error) {
    for (const std::string& path : sighting.paths) {
        const std::vector<size_t> lines =
            lines_for({path, std::string(), sighting.is_main_executable});
        const auto wants = std::find_if(lines.rbegin(), lines.rend(), [this](size_t index) {
            return !targets.lines[index].exclude;
        });
        if (wants == lines.rend()) continue;
        std::string reason = error.message;
        if (!error.hint.empty()) reason += " (" + error.hint + ")";
        skip(findings.skipped, {path, targets.lines[*wants].name.text, *wants, reason});
        return;
    }
}

// Takes a file in: finds the lines that name it by its new names, and what they match.
Result<void> Resolver::Impl::look(const FileKey& key, Fd fd, const Sighting& sighting,
                                  Findings& findings) {
    const bool is_new = !files.contains(key);
    File& file = files[key];
    if (is_new) {
        file.path = sighting.paths.front();
        if (needs_soname) file.soname = read_soname(fd, file.path);
        struct stat status = {};
        if (::fstat(fd.get(), &status) == 0) {
            file.changed = status.st_ctim;
            file.size = status.st_size;
        }
    }
    const size_t lines_before = file.lines.size();
    for (const std::string& path : sighting.paths) {
        std::pair identity(path, sighting.is_main_executable);
        if (file.identities.contains(identity)) continue;
        if (file.identities.size() >= kMaxIdentities) file.identities.clear();
        file.identities.insert(std::move(identity));
        ++identities;
        const std::vector<size_t> lines =
            lines_for({path, file.soname, sighting.is_main_executable});
        file.lines.insert(lines.begin(), lines.end());
    }
    const bool has_targets =
        std::any_of(file.lines.begin(), file.lines.end(),
                    [this](size_t index) { return !targets.lines[index].exclude; });
    const bool has_new_lines = file.lines.size() > lines_before;
    if (!has_targets || (!has_new_lines && !file.waits_for_ifunc)) return {};

    const bool was_held = file.fd.valid();
    if (!was_held && held_files >= limits.held_files) {
        if (!std::exchange(has_told_of_held, true))
            findings.skipped.push_back(
                {file.path, "", SIZE_MAX,
                 fmt::format("{} files with targets are known already: no more are slowed",
                             limits.held_files)});
        return {};
    }
    if (!file.elf) {
        auto opened = elf::ElfFile::open(fd.get(), file.path, {.root = sighting.debug_root});
        if (!opened) {
            Error error = std::move(opened).error();
            // it may be a good file at the next look
            if (file.reported.empty()) files.erase(key);
            return error;
        }
        file.elf = std::move(*opened);
    }
    if (!was_held) file.fd = std::move(fd);
    match(file, key, sighting, !has_new_lines, findings);
    const bool has_to_place = placing == Placing::kLater && !file.reported.empty();
    if (!file.waits_for_ifunc && !has_to_place) file.elf.reset();
    if (file.reported.empty() && !file.waits_for_ifunc) file.fd.reset();
    held_files = held_files + file.fd.valid() - was_held;
    return {};
}

// The file offset of what an IFUNC stands for in the process.
Result<uint64_t> Resolver::Impl::find_implementation(const File& file, const FileKey& key,
                                                     const elf::Function& function,
                                                     const Sighting& sighting) {
    if (sighting.ifuncs != nullptr)
        return sighting.ifuncs->resolve(*file.elf, key.device, key.inode, function);
    return make_error(ErrorKind::kNotFound,
                      "indirect function (IFUNC): which implementation is used can only be seen in "
                      "a process that maps the file");
}

// `only_ifuncs`: everything else was decided at an earlier look.
void Resolver::Impl::match(File& file, const FileKey& key, const Sighting& sighting,
                           bool only_ifuncs, Findings& findings) {
    const std::vector<size_t> lines(file.lines.begin(), file.lines.end());
    SymbolMatcher matcher(targets, lines, matched);
    Decided decided;
    if (!only_ifuncs) decided.reserve(file.elf->functions().size());
    file.waits_for_ifunc = false;
    for (const elf::Function& function : file.elf->functions()) {
        if (only_ifuncs && !function.is_ifunc) continue;
        std::optional<SymbolMatcher::Decision> decision = matcher.decide(function);
        if (!decision) continue;
        if (!function.is_ifunc) {
            decided.emplace_back(function.file_offset, std::move(*decision));
            continue;
        }
        Result<uint64_t> implementation = find_implementation(file, key, function, sighting);
        if (implementation) {
            const elf::Function* other = file.elf->function_at_offset(*implementation);
            if (other != nullptr && other->file_offset == *implementation) {
                auto by_own_name = matcher.decide(*other);
                if (by_own_name) decided.emplace_back(*implementation, std::move(*by_own_name));
            }
            decided.emplace_back(*implementation, std::move(*decision));
        } else if (!targets.lines[decision->line_index].exclude) {
            file.waits_for_ifunc = true;
            skip(findings.skipped, {file.path, decision->name(), decision->line_index,
                                    implementation.error().message});
        }
    }
    for (const size_t line : matcher.offset_lines()) match_offset(file, line, decided, findings);

    keep_new(file, decided);
    std::vector<Candidate> at_once;
    std::vector<Candidate>& all = placing == Placing::kLater ? findings.candidates : at_once;
    all.reserve(all.size() + decided.size());
    for (auto& [entry, decision] : decided) all.push_back({key, entry, std::move(decision)});
    for (auto& match : place(at_once, findings.skipped))
        if (match) findings.matches.push_back(std::move(*match));
}

// Of several names of one function the one that the last line has; without exclusions, and what was
// reported before.
void Resolver::Impl::keep_new(File& file, Decided& decided) const {
    std::stable_sort(decided.begin(), decided.end(), [](const auto& a, const auto& b) {
        return a.first != b.first ? a.first < b.first : a.second.line_index > b.second.line_index;
    });
    decided.erase(std::unique(decided.begin(), decided.end(),
                              [](const auto& a, const auto& b) { return a.first == b.first; }),
                  decided.end());
    std::erase_if(decided, [&](const auto& one) {
        return targets.lines[one.second.line_index].exclude ||
               std::binary_search(file.reported.begin(), file.reported.end(), one.first);
    });
    const auto before = static_cast<ptrdiff_t>(file.reported.size());
    for (const auto& [entry, decision] : decided) file.reported.push_back(entry);
    std::inplace_merge(file.reported.begin(), file.reported.begin() + before, file.reported.end());
}

std::vector<std::optional<NativeMatch>> Resolver::Impl::place(std::span<const Candidate> candidates,
                                                              std::vector<Skipped>& skipped) {
    std::map<FileKey, std::vector<size_t>> by_file;
    for (size_t at = 0; at < candidates.size(); ++at) by_file[candidates[at].file].push_back(at);
    std::vector<std::optional<NativeMatch>> matches(candidates.size());
    for (const auto& [key, places] : by_file) {
        const File& file = files.at(key); // it is kept while there are candidates
        std::vector<uint64_t> entries;
        for (const size_t at : places) entries.push_back(candidates[at].entry_offset);
        auto sites = elf::place_probes(*file.elf, entries, placement);
        for (size_t i = 0; i < places.size(); ++i) {
            const SymbolMatcher::Decision& decision = candidates[places[i]].decision;
            const std::string name = decision.name();
            if (sites[i])
                matches[places[i]] = NativeMatch{
                    key, file.path, name, entries[i], std::move(*sites[i]), decision.line_index};
            else
                skip(skipped, {file.path, name, decision.line_index,
                               "not probed: " + sites[i].error().message});
        }
    }
    return matches;
}

// A line with a file offset at which no known function starts; those at a start go by its names.
void Resolver::Impl::match_offset(const File& file, size_t line, Decided& decided,
                                  Findings& findings) {
    const uint64_t offset = *targets.lines[line].file_offset;
    const elf::Function* inside = file.elf->function_at_offset(offset);
    if (inside != nullptr && inside->file_offset == offset) return;
    const std::string& name = targets.lines[line].name.text;
    if (file.elf->code_at(offset, 1).empty()) {
        skip(findings.skipped, {file.path, name, line, file.elf->why_no_code(offset)});
    } else if (inside != nullptr) {
        // not even an instruction has to start there
        skip(findings.skipped, {file.path, name, line,
                                fmt::format("the offset lies inside of {}, which starts at 0x{:x}",
                                            inside->names.front(), inside->file_offset)});
    } else {
        matched[line] = true;
        decided.push_back({offset, {line, name, {}}});
    }
}

Resolver::Resolver(const targets::TargetsFile& file, elf::PlacementOptions placement,
                   Placing placing, const ResolverLimits& limits)
    : impl_(std::make_unique<Impl>(file, placement, placing, limits)) {}
Resolver::~Resolver() = default;

Result<Findings> Resolver::look_at_process(pid_t pid, const WantsFile& wants) {
    Impl& impl = *impl_;
    Findings findings;
    if (impl.binaries.empty()) return findings;
    Result<std::vector<Mapping>> maps = read_maps(pid);
    if ((!maps || maps->empty()) && has_lost_main_thread(pid)) // by kernel: ESRCH, or nothing
        return make_error(ErrorKind::kUnsupported,
                          "its main thread has ended: what it maps can't be seen, or probed");
    if (!maps) return std::move(maps).error();
    IfuncResolver ifuncs(pid, *maps);
    const std::vector<Alias> aliases =
        aliases_below(fmt::format("/proc/{}/root", pid), impl.prefixes);
    std::map<FileKey, SeenFile> seen = files_with_code(pid, *maps, aliases, ifuncs);
    findings.maps_code = !seen.empty();
    if (!findings.maps_code) return findings;
    findings = std::exchange(impl.held, {});
    findings.files.clear();
    impl.forget_files();
    for (auto& [key, one] : seen) {
        if (wants && !wants(one.sighting.paths.front(), one.code_bytes)) continue;
        const auto known = impl.files.find(key);
        if (known != impl.files.end() && !Impl::is_unchanged(known->second, pid, *one.mapping))
            impl.files.erase(known);
        if (!impl.is_known(key, one.sighting)) {
            Result<Fd> fd = open_mapped_file(pid, *one.mapping);
            Result<void> looked = fd ? impl.look(key, std::move(*fd), one.sighting, findings)
                                     : Result<void>(std::move(fd).error());
            if (!looked && may_pass(looked.error().error_number)) {
                impl.held = std::move(findings);
                return std::move(looked).error();
            }
            if (!looked) impl.skip_file(findings, one.sighting, looked.error());
        }
        const auto file = impl.files.find(key);
        if (file != impl.files.end() && !file->second.reported.empty()) findings.files.insert(key);
    }
    return findings;
}

Result<Findings> Resolver::look_at_file(const std::string& path, const std::string& root,
                                        bool is_main_executable) {
    Findings findings;
    Fd fd = open_below(root, path, O_RDONLY | O_NONBLOCK | O_NOCTTY);
    if (!fd.valid()) return errno_error("open " + path, errno);
    struct stat status = {};
    if (::fstat(fd.get(), &status) != 0) return errno_error("fstat " + path, errno);
    if (!S_ISREG(status.st_mode))
        return make_error(ErrorKind::kInvalid, path + ": is not a regular file");
    const Result<FileKey> key = mapped_key(fd, path);
    if (!key) return Error(key.error());

    Sighting sighting{{path}, is_main_executable, root, nullptr};
    std::string real = path_of_descriptor(fd);
    if (!root.empty()) real = path_within(read_link(root), real);
    if (!real.empty() && real != path) sighting.paths.push_back(std::move(real));
    if (!impl_->is_known(*key, sighting)) {
        if (auto looked = impl_->look(*key, std::move(fd), sighting, findings); !looked)
            return std::move(looked).error();
    }
    const auto file = impl_->files.find(*key);
    if (file != impl_->files.end() && !file->second.reported.empty()) findings.files.insert(*key);
    return findings;
}

Findings Resolver::look_at_named_files(const std::string& root) {
    Findings all;
    for (const auto& [pattern, lines] : impl_->binaries) {
        if (pattern.is_glob || !pattern.text.starts_with('/')) continue;
        const auto wants = std::find_if(lines.rbegin(), lines.rend(), [this](size_t index) {
            return !impl_->targets.lines[index].exclude;
        });
        if (wants == lines.rend()) continue;
        Result<Findings> one = look_at_file(pattern.text, root, false);
        if (!one) {
            // a file that is not there may come; that nothing matched is told at the end
            if (one.error().kind == ErrorKind::kNotFound) continue;
            impl_->skip(all.skipped, {pattern.text, impl_->targets.lines[*wants].name.text, *wants,
                                      one.error().message});
            continue;
        }
        all.files.merge(one->files);
        std::move(one->matches.begin(), one->matches.end(), std::back_inserter(all.matches));
        std::move(one->candidates.begin(), one->candidates.end(),
                  std::back_inserter(all.candidates));
        std::move(one->skipped.begin(), one->skipped.end(), std::back_inserter(all.skipped));
    }
    return all;
}

std::vector<std::optional<NativeMatch>> Resolver::place(std::span<const Candidate> candidates,
                                                        std::vector<Skipped>& skipped) {
    return impl_->place(candidates, skipped);
}

const std::string& Resolver::path(const FileKey& key) const {
    return impl_->files.at(key).path;
}

int Resolver::descriptor(const FileKey& key) const {
    const auto file = impl_->files.find(key);
    return file == impl_->files.end() ? -1 : file->second.fd.get();
}

std::vector<size_t> Resolver::unmatched_lines() const {
    std::vector<size_t> unmatched;
    for (size_t index = 0; index < impl_->targets.lines.size(); ++index) {
        const TargetLine& line = impl_->targets.lines[index];
        const bool is_target = line.runtime == targets::Runtime::kNative && !line.exclude;
        if (is_target && !impl_->matched[index]) unmatched.push_back(index);
    }
    return unmatched;
}

} // namespace speedbump::process
