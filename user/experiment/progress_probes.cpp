// SPDX-License-Identifier: MIT
#include "experiment/progress_probes.h"

#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <filesystem>

#include "elf/exits.h"
#include "session/outsiders.h"
#include "util/text.h"

namespace speedbump::experiment {

namespace {

// The word of struct pt_regs that holds a register of this number in machine code.
uint8_t word_of(uint8_t number) {
    constexpr uint8_t kWords[] = {10, 11, 12, 5, 19, 4, 13, 14, 9, 8, 7, 6, 3, 2, 1, 0};
    return number < sizeof(kWords) ? kWords[number] : SB_NO_REGISTER;
}
constexpr uint8_t kIpWord = 16;

sb_progress_site site_of(const elf::Exit& exit, const elf::WaysOut& ways) {
    sb_progress_site site = {};
    site.actions = SB_PROGRESS_ENDS;
    site.is_go = ways.is_go;
    site.condition = exit.condition;
    if (!exit.operand) return site;
    const elf::JumpOperand& operand = *exit.operand;
    site.is_indirect = 1;
    site.in_memory = operand.in_memory;
    site.base = operand.from_next ? kIpWord : word_of(operand.base);
    site.index = word_of(operand.index);
    site.scale = operand.scale;
    site.displacement = operand.displacement + (operand.from_next ? exit.length : 0);
    for (size_t i = 0; i < ways.parts.size() && i < SB_CODE_PARTS; ++i)
        site.parts[i] = {ways.parts[i].begin, ways.parts[i].end};
    return site;
}

// Of these files, those that processes outside the tree map.
std::set<process::FileKey> shared_with_others(const std::set<process::FileKey>& files,
                                              const std::set<pid_t>& tree) {
    std::set<process::FileKey> shared;
    std::error_code ignored;
    for (const auto& entry : std::filesystem::directory_iterator("/proc", ignored)) {
        const std::string name = entry.path().filename();
        if (!std::isdigit(static_cast<unsigned char>(name[0]))) continue;
        const pid_t pid = std::atoi(name.c_str());
        if (pid == ::getpid() || tree.contains(pid)) continue;
        shared.merge(session::mapped_of(pid, files));
        if (shared.size() == files.size()) break;
    }
    return shared;
}

} // namespace

ProgressProbes::ProgressProbes(std::shared_ptr<Programs> programs, uint32_t progress, bool timed,
                               targets::TargetLine line)
    : programs_(std::move(programs)),
      progress_(progress),
      timed_(timed),
      file_{"--progress", {std::move(line)}},
      resolver_(file_, {engine::site_options(programs_->features())}) {}

Result<void> ProgressProbes::add_site(Batch& batch, uint64_t offset, sb_progress_site site) {
    site.progress = progress_;
    auto number = programs_->add_site(site);
    if (!number) return std::move(number).error();
    batch.sites.emplace_back(*number, site);
    batch.offsets.push_back(offset);
    return {};
}

Result<void> ProgressProbes::add(const process::NativeMatch& match, Batch& batch) {
    if (timed_) return add_timed(match, batch);
    sb_progress_site site = {};
    site.actions = SB_PROGRESS_COUNTS;
    return add_site(batch, match.site.file_offset, site);
}

Result<void> ProgressProbes::add_timed(const process::NativeMatch& match, Batch& batch) {
    const std::string path = "/proc/self/fd/" + std::to_string(resolver_.descriptor(match.file));
    auto file = elf::ElfFile::open(resolver_.descriptor(match.file), match.path);
    if (!file) return std::move(file).error();
    const elf::ExitFinder finder(*file);
    auto ways = finder.find(match.entry_offset);
    if (!ways)
        return std::move(ways)
            .error()
            .with_context("not every way out of " + printable(match.name) + " is known")
            .with_hint("time the function that calls it, or count its calls with native:");
    const auto used = finder.stack_used(match.entry_offset, match.site.file_offset);
    if (!used)
        return make_error(
            ErrorKind::kUnsupported,
            "what " + printable(match.name) + " does to its stack before the probe is not known");
    sb_progress_site entry = {};
    entry.actions = SB_PROGRESS_BEGINS;
    entry.is_go = ways->is_go;
    entry.stack_used = *used;
    for (const elf::Exit& exit : ways->exits) {
        sb_progress_site site = site_of(exit, *ways);
        site.address = (*file)->address_of_offset(exit.file_offset).value_or(0);
        // Two probes on one instruction have no order.
        if (exit.file_offset == match.site.file_offset) {
            site.actions |= SB_PROGRESS_BEGINS;
            entry = site;
            continue;
        }
        if (auto added = add_site(batch, exit.file_offset, site); !added) return added;
    }
    return add_site(batch, match.site.file_offset, entry);
}

Result<void> ProgressProbes::look(const std::vector<pid_t>& pids, Files& files) {
    std::map<process::FileKey, Batch> found;
    for (const pid_t pid : pids) {
        known_.insert(pid);
        auto findings = resolver_.look_at_process(pid);
        if (!findings) continue; // it has ended
        files[pid] = findings->files;
        for (const process::NativeMatch& match : findings->matches) {
            Batch& batch = found[match.file];
            batch.file = match.file;
            if (auto added = add(match, batch); !added) return added;
        }
        for (const process::Skipped& one : findings->skipped)
            skipped_ = make_error(ErrorKind::kUnsupported, printable(one.name) + ": " + one.reason);
    }
    for (auto& [key, batch] : found) batches_.push_back(std::move(batch));
    return {};
}

Result<engine::Links> ProgressProbes::probe(const Batch& batch, bool wide, pid_t pid) {
    std::vector<engine::UprobePlace> places;
    for (size_t i = 0; i < batch.sites.size(); ++i)
        places.push_back({batch.offsets[i], batch.sites[i].first | (wide ? SB_COOKIE_WIDE : 0)});
    const std::string path = "/proc/self/fd/" + std::to_string(resolver_.descriptor(batch.file));
    const pid_t only = wide ? -1 : pid;
    engine::Links links;
    int error = 0;
    if (programs_->features().uprobe_multi) {
        error = links.attach_multi(programs_->at_site(), path, places, only);
    } else {
        for (const int one : links.attach_perf(programs_->at_site(), path, places, only))
            if (error == 0) error = one;
    }
    if (error != 0)
        return errno_error("probe " + file_.lines.front().name.text + " in " + path, error);
    return links;
}

Result<void> ProgressProbes::widen(Batch& batch) {
    auto links = probe(batch, true, -1);
    if (!links) return std::move(links).error();
    batch.wide_links = std::move(*links);
    batch.wide = true;
    for (auto& [number, site] : batch.sites) {
        site.wide = 1;
        programs_->change_site(number, site);
    }
    batch.narrow.clear();
    return {};
}

Result<void> ProgressProbes::attach(const std::vector<pid_t>& pids) {
    Files files;
    if (auto looked = look(pids, files); !looked) return looked;
    if (batches_.empty() && skipped_) return *skipped_;
    if (batches_.empty()) return make_error(ErrorKind::kNotFound, "is nowhere in the processes");
    const engine::Features& features = programs_->features();
    std::set<process::FileKey> shared;
    if (features.uprobe_multi_pid) {
        for (const Batch& batch : batches_) shared.insert(batch.file);
        shared = shared_with_others(shared, known_);
    }
    for (Batch& batch : batches_) {
        if (!shared.contains(batch.file)) {
            if (auto done = widen(batch); !done) return done;
            continue;
        }
        for (const auto& [pid, mapped] : files) {
            if (!mapped.contains(batch.file)) continue;
            auto links = probe(batch, false, pid);
            if (!links && links.error().error_number == ESRCH) continue; // it has ended
            if (!links) return std::move(links).error();
            batch.narrow[pid] = std::move(*links);
        }
    }
    return {};
}

Result<void> ProgressProbes::follow(const std::vector<session::ProcessInfo>& processes) {
    std::set<pid_t> listed, alive;
    std::vector<pid_t> born;
    bool missed = false; // one has lived and ended: what it called is lost, that of the next is not
    for (const session::ProcessInfo& process : processes) {
        listed.insert(process.pid);
        if (process.alive) alive.insert(process.pid);
        if (known_.contains(process.pid)) continue;
        missed |= !process.alive;
        if (process.alive) born.push_back(process.pid);
    }
    // Another process may get the number of one that has ended.
    std::erase_if(known_, [&](pid_t pid) { return !listed.contains(pid); });
    Files files;
    if (auto looked = look(born, files); !looked) return looked;
    for (Batch& batch : batches_) {
        std::erase_if(batch.narrow, [&](const auto& one) { return !alive.contains(one.first); });
        const bool concerned = std::any_of(files.begin(), files.end(), [&batch](const auto& one) {
            return one.second.contains(batch.file);
        });
        if (batch.wide || (!concerned && !missed)) continue;
        if (auto done = widen(batch); !done) return done;
    }
    return {};
}

} // namespace speedbump::experiment
