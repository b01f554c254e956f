// SPDX-License-Identifier: MIT
#include "cli/look.h"

#include <fmt/format.h>
#include <signal.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <iterator>
#include <map>
#include <set>

#include "cpython/interpreter.h"
#include "elf/demangle.h"
#include "elf/symbols.h"
#include "engine/features.h"
#include "process/maps.h"
#include "process/ownership.h"
#include "process/resolver.h"
#include "targets/matcher.h"
#include "tree/descent.h"
#include "tree/polled_tree.h"
#include "util/proc.h"

namespace speedbump::cli {

namespace {

namespace fs = std::filesystem;

std::string process_label(pid_t pid) {
    return fmt::format("process {} ({})", pid, status_field(pid, "Name"));
}

// Says of each function in `functions[first...]`, all of this file, why it can't be probed, if so.
void judge_functions(const elf::ElfFile& file, const elf::PlacementOptions& placement,
                     std::vector<report::ListedFunction>& functions, size_t first) {
    std::vector<uint64_t> entries;
    for (size_t i = first; i < functions.size(); i++) entries.push_back(functions[i].file_offset);
    const auto sites = elf::place_probes(file, entries, placement);
    for (size_t i = first; i < functions.size(); i++) {
        // Of an indirect function the implementation is probed, which is listed by its own name.
        const auto& site = sites[i - first];
        if (!site && !functions[i].is_ifunc) functions[i].refusal = site.error().message;
    }
}

// Adds the functions of one mapped file; a file that is no ELF (a font, a locale) has none.
void add_functions(pid_t pid, const process::Mapping& mapping, const std::string& glob,
                   const elf::PlacementOptions& placement,
                   std::vector<report::ListedFunction>& functions) {
    const size_t first = functions.size();
    const auto fd = process::open_mapped_file(pid, mapping);
    if (!fd) return;
    elf::DebugSearch debug;
    debug.root = fmt::format("/proc/{}/root", pid);
    const auto file = elf::ElfFile::open(fd->get(), mapping.path, debug);
    if (!file) return;
    for (const elf::Function& function : (*file)->functions()) {
        for (const std::string_view name : function.names) {
            const elf::Demangled demangled =
                elf::is_mangled(name) ? elf::demangle(name) : elf::Demangled{};
            const bool matches = is_selected(glob, mapping.path, std::string(name)) ||
                                 (!demangled.with_signature.empty() &&
                                  (is_selected(glob, mapping.path, demangled.with_signature) ||
                                   is_selected(glob, mapping.path, demangled.without_signature)));
            if (!matches) continue;
            functions.push_back({mapping.path,
                                 std::string(name),
                                 demangled.with_signature,
                                 function.file_offset,
                                 function.size,
                                 function.is_ifunc,
                                 {}});
        }
    }
    judge_functions(**file, placement, functions, first);
}

} // namespace

std::vector<pid_t> with_descendants(const std::vector<pid_t>& pids) {
    std::map<uint32_t, uint64_t> roots;
    for (const pid_t pid : pids) roots[static_cast<uint32_t>(pid)] = 1;
    std::vector<pid_t> result;
    for (const auto& [tgid, bits] : tree::descendants(tree::list_proc(), {}, roots, true, 0)) {
        const auto pid = static_cast<pid_t>(tgid);
        if (process::is_ours(pid)) result.push_back(pid);
    }
    return result;
}

bool is_selected(const std::string& glob, const std::string& path, const std::string& name) {
    return targets::glob_match(glob, name) || targets::glob_match(glob, path + ":" + name) ||
           targets::glob_match(glob, fs::path(path).filename().string() + ":" + name);
}

Result<report::CheckReport> look_for_targets(const targets::TargetsFile& file,
                                             const LookArguments& arguments) {
    if (auto ours = process::require_ours(arguments.pids); !ours) return std::move(ours).error();
    const engine::Features features = engine::probe_features();
    const elf::PlacementOptions placement{engine::site_options(features), arguments.entry_only,
                                          arguments.jumps};
    process::Resolver resolver(file, placement);
    report::CheckReport report;
    auto take = [&](process::Findings findings) {
        std::move(findings.matches.begin(), findings.matches.end(),
                  std::back_inserter(report.matches));
        std::move(findings.skipped.begin(), findings.skipped.end(),
                  std::back_inserter(report.skipped));
    };

    for (const pid_t pid : arguments.pids) {
        auto findings = resolver.look_at_process(pid);
        if (!findings)
            return std::move(findings).error().with_context(fmt::format("check {}", pid));
        report.places.push_back(process_label(pid));
        take(std::move(*findings));
        take(resolver.look_at_named_files(fmt::format("/proc/{}/root", pid)));
    }
    const std::set<pid_t> roots(arguments.pids.begin(), arguments.pids.end());
    if (arguments.follow_children && !roots.empty()) {
        for (const pid_t pid : with_descendants(arguments.pids)) {
            if (roots.contains(pid)) continue;
            const std::string label = process_label(pid);
            auto findings = resolver.look_at_process(pid);
            if (!findings && findings.error().kind == ErrorKind::kNotFound) continue; // it ended
            if (!findings) return std::move(findings).error();
            report.places.push_back(label);
            take(std::move(*findings));
        }
    }
    for (const std::string& executable : arguments.executables) {
        std::error_code error;
        const std::string path = fs::absolute(executable, error).lexically_normal();
        auto findings = resolver.look_at_file(path, "", true);
        if (!findings) return std::move(findings).error();
        report.places.push_back("file " + path);
        take(std::move(*findings));
    }
    if (arguments.pids.empty()) take(resolver.look_at_named_files(""));
    report.unmatched_lines = resolver.unmatched_lines();
    return report;
}

Result<std::vector<report::ListedFunction>> list_native_functions(const std::vector<pid_t>& pids,
                                                                  const std::string& glob) {
    if (auto ours = process::require_ours(pids); !ours) return std::move(ours).error();
    const elf::PlacementOptions placement{engine::site_options(engine::probe_features()), false};
    std::vector<report::ListedFunction> functions;
    std::set<std::pair<uint64_t, uint64_t>> seen;
    for (const pid_t pid : pids) {
        const auto mappings = process::read_maps(pid);
        if (!mappings) return mappings.error();
        for (const process::Mapping& mapping : *mappings) {
            if (!mapping.executable || !seen.insert({mapping.device, mapping.inode}).second) {
                continue;
            }
            add_functions(pid, mapping, glob, placement, functions);
        }
    }
    return functions;
}

std::vector<engine::Check> check_process(pid_t pid) {
    using State = engine::Check::State;
    const std::string name = fmt::format("process {}", pid);
    if (::kill(pid, 0) != 0 && errno == ESRCH) {
        return {{name, State::kBad, "there is no such process", "ps -e"}};
    }
    if (status_field(pid, "Kthread") == "1") {
        return {{name, State::kBad, "is a kernel thread: it maps no files", ""}};
    }
    if (status_field(pid, "State").starts_with("Z")) {
        return {{name, State::kBad, "is a zombie: it runs nothing any more", ""}};
    }
    std::vector<engine::Check> checks;
    const auto mappings = process::read_maps(pid);
    if (!mappings) {
        return {{name, State::kBad, mappings.error().message,
                 mappings.error().hint.empty() ? "sudo speedbump ..." : mappings.error().hint}};
    }
    checks.push_back({name, State::kGood,
                      fmt::format("{}, {} file mappings can be read", status_field(pid, "Name"),
                                  mappings->size()),
                      ""});
    const auto interpreters = cpython::find_interpreters(pid);
    if (!interpreters) {
        checks.push_back({name + " Python", State::kUnknown, interpreters.error().message,
                          interpreters.error().hint});
        return checks;
    }
    for (const cpython::Interpreter& interpreter : *interpreters) {
        checks.push_back({name + " Python", interpreter.is_supported() ? State::kGood : State::kBad,
                          interpreter.describe(),
                          interpreter.is_supported() ? "" : "CPython 3.10 or later on glibc"});
    }
    return checks;
}

} // namespace speedbump::cli
