// SPDX-License-Identifier: MIT
#include <algorithm>
#include <map>
#include <set>

#include "elf/exits.h"
#include "elf/placement.h"
#include "experiment/machine.h"
#include "experiment/progress_sites.h"
#include "targets/parser.h"
#include "util/text.h"

namespace speedbump::experiment {

namespace {

constexpr unsigned kMaxTailCalls = 16;

// Of which a function has none: nothing is read.
sb_argument argument_of(const DeviceArgument& argument) {
    sb_argument where{SB_NO_REGISTER, 0, 0, argument.within.value_or(SB_NOT_WITHIN)};
    if (argument.number == 0) return where;
    const auto registers = argument_registers();
    if (argument.number <= registers.size())
        where.number = word_of(registers[argument.number - 1]);
    else
        where.on_stack = static_cast<uint16_t>(8 * (argument.number - registers.size()));
    return where;
}

std::vector<uint8_t> registers_of(const DeviceFunction& function) {
    std::vector<uint8_t> registers;
    for (const DeviceArgument* argument : {&function.queue, &function.event})
        if (argument->number >= 1 && argument->number <= argument_registers().size())
            registers.push_back(argument_registers()[argument->number - 1]);
    return registers;
}

class DeviceSites : public ProgressSites {
  public:
    DeviceSites(DeviceSpec spec, targets::TargetsFile file, const elf::SiteOptions& options)
        : spec_(std::move(spec)),
          file_(std::move(file)),
          options_(options),
          resolver_(file_, {options}) {}

    Result<Found> look_at(pid_t pid) override {
        auto findings = resolver_.look_at_process(pid);
        if (!findings) return Found{}; // it has ended
        Found found;
        found.files = std::move(findings->files);
        for (const process::Skipped& one : findings->skipped)
            if (one.line_index < spec_.functions.size())
                return make_error(ErrorKind::kUnsupported,
                                  printable(one.name) + " can't be watched: " + one.reason);
        std::map<process::FileKey, std::map<uint64_t, sb_progress_site>> files;
        for (const process::NativeMatch& match : findings->matches)
            if (auto added = add(match, files[match.file]); !added) return std::move(added).error();
        for (const auto& [file, sites] : files)
            for (const auto& [offset, site] : sites) found.sites.push_back({file, offset, 0, site});
        return found;
    }

    int descriptor(const process::FileKey& file) const override {
        return resolver_.descriptor(file);
    }
    std::optional<Error> refusal() const override;
    std::string name() const override { return "the functions of " + spec_.binary; }

  private:
    using Sites = std::map<uint64_t, sb_progress_site>; // by file offset

    Result<void> add(const process::NativeMatch& match, Sites& sites);
    Result<uint64_t> place_of(const process::NativeMatch& match, const elf::ElfFile& file,
                              const elf::ExitFinder& finder, const DeviceFunction& function) const;
    Result<void> add_ends(const process::NativeMatch& match, const elf::ElfFile& file,
                          const elf::ExitFinder& finder, Sites& sites) const;

    DeviceSpec spec_;
    targets::TargetsFile file_; // a line for each function
    elf::SiteOptions options_;
    process::Resolver resolver_;
    std::set<size_t> found_; // functions, by their index
};

std::optional<Error> DeviceSites::refusal() const {
    bool launches = false, waits = false, wants_waits = false;
    for (size_t index = 0; index < spec_.functions.size(); ++index) {
        const DeviceFunction& function = spec_.functions[index];
        const bool found = found_.contains(index);
        if (!found && !spec_.may_lack)
            return make_error(ErrorKind::kNotFound, function.name + " is in none of the processes");
        launches |= found && function.launches;
        waits |= found && function.waits;
        wants_waits |= function.waits;
    }
    if (launches && (waits || !wants_waits)) return std::nullopt;
    return make_error(ErrorKind::kNotFound, "none of its functions that " +
                                                std::string(launches ? "wait" : "launch") +
                                                " is in the processes");
}

// Where the arguments of the call are still what they were at its entry.
Result<uint64_t> DeviceSites::place_of(const process::NativeMatch& match, const elf::ElfFile& file,
                                       const elf::ExitFinder& finder,
                                       const DeviceFunction& function) const {
    if (finder.keeps(match.entry_offset, match.site.file_offset, registers_of(function)))
        return match.site.file_offset;
    elf::PlacementOptions options{options_};
    options.entry_only = true;
    auto entry = elf::place_probe(file, match.entry_offset, options);
    if (!entry) return std::move(entry).error().with_context(printable(match.name));
    return entry->file_offset;
}

// What may be a way out of this function, or of one that it ends in a call of: the stack pointer is
// the same at the end of either.
Result<void> DeviceSites::add_ends(const process::NativeMatch& match, const elf::ElfFile& file,
                                   const elf::ExitFinder& finder, Sites& sites) const {
    std::vector<uint64_t> entries = {match.entry_offset};
    for (size_t next = 0; next < entries.size(); ++next) {
        const auto refuse = [&](const std::string& why) {
            return make_error(ErrorKind::kUnsupported,
                              "the end of " + printable(match.name) + " is not known: " + why)
                .with_hint("name the function that calls it, or the one that it calls");
        };
        if (next == kMaxTailCalls) return refuse("it ends in too many others");
        auto ways = finder.find(entries[next]);
        if (!ways) return refuse(ways.error().message);
        if (ways->is_go) return refuse("it is written in Go");
        for (const elf::Exit& exit : ways->exits) {
            if (exit.is_return) {
                sb_progress_site end = {};
                end.condition = SB_ALWAYS;
                sites.try_emplace(exit.file_offset, end).first->second.actions |=
                    SB_PROGRESS_DEVICE_ENDS;
                continue;
            }
            const auto offset =
                exit.target ? file.offset_of_address(*exit.target) : std::optional<uint64_t>();
            if (!offset) return refuse("it ends by " + exit.instruction);
            if (std::find(entries.begin(), entries.end(), *offset) == entries.end())
                entries.push_back(*offset);
        }
    }
    return {};
}

Result<void> DeviceSites::add(const process::NativeMatch& match, Sites& sites) {
    const DeviceFunction& function = spec_.functions.at(match.line_index);
    auto file = elf::ElfFile::open(resolver_.descriptor(match.file), match.path);
    if (!file) return std::move(file).error();
    const elf::ExitFinder finder(*file, options_);
    const auto place = place_of(match, **file, finder, function);
    if (!place) return place.error();
    const auto used = finder.stack_used(match.entry_offset, *place);
    if (!used)
        return make_error(
            ErrorKind::kUnsupported,
            "what " + printable(match.name) + " does to its stack before the probe is not known");
    sb_progress_site& begin = sites[*place];
    begin.condition = SB_ALWAYS;
    begin.stack_used = *used;
    begin.queue = argument_of(function.queue);
    begin.event = argument_of(function.event);
    if (function.launches) begin.actions |= SB_PROGRESS_LAUNCHES;
    if (function.records) begin.actions |= SB_PROGRESS_RECORDS;
    found_.insert(match.line_index);
    if (!function.waits) return {};
    begin.actions |= SB_PROGRESS_WAITS | SB_PROGRESS_BEGINS;
    return add_ends(match, **file, finder, sites);
}

} // namespace

Result<std::unique_ptr<ProgressSites>> device_sites(const DeviceSpec& spec,
                                                    const elf::SiteOptions& options) {
    targets::TargetsFile file{"--progress", {}};
    for (const DeviceFunction& function : spec.functions) {
        auto line = native_line(spec.binary, function.name);
        if (!line) return std::move(line).error();
        file.lines.push_back(std::move(*line));
    }
    return std::unique_ptr<ProgressSites>(
        std::make_unique<DeviceSites>(spec, std::move(file), options));
}

} // namespace speedbump::experiment
