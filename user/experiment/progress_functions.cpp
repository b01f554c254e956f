// SPDX-License-Identifier: MIT
#include "elf/exits.h"
#include "experiment/machine.h"
#include "experiment/progress_sites.h"
#include "util/text.h"

namespace speedbump::experiment {

namespace {

static_assert(elf::kMaxCodeParts <= SB_CODE_PARTS);

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
    for (size_t i = 0; i < ways.parts.size(); ++i)
        site.parts[i] = {ways.parts[i].begin, ways.parts[i].end};
    return site;
}

class FunctionSites : public ProgressSites {
  public:
    FunctionSites(bool timed, targets::TargetLine line, const elf::SiteOptions& options)
        : timed_(timed),
          options_(options),
          file_{"--progress", {std::move(line)}},
          resolver_(file_, {options}) {}

    Result<Found> look_at(pid_t pid) override {
        auto findings = resolver_.look_at_process(pid);
        if (!findings) return Found{}; // it has ended
        Found found;
        found.files = std::move(findings->files);
        for (const process::NativeMatch& match : findings->matches) {
            if (auto added = add(match, found.sites); !added) return std::move(added).error();
        }
        for (const process::Skipped& one : findings->skipped)
            refusal_ = make_error(ErrorKind::kUnsupported, printable(one.name) + ": " + one.reason);
        return found;
    }

    int descriptor(const process::FileKey& file) const override {
        return resolver_.descriptor(file);
    }
    std::optional<Error> refusal() const override { return refusal_; }
    std::string name() const override { return file_.lines.front().name.text; }

  private:
    Result<void> add(const process::NativeMatch& match, std::vector<Site>& sites) const {
        if (timed_) return add_timed(match, sites);
        sb_progress_site site = {};
        site.actions = SB_PROGRESS_COUNTS;
        sites.push_back({match.file, match.site.file_offset, 0, site});
        return {};
    }
    Result<void> add_timed(const process::NativeMatch& match, std::vector<Site>& sites) const;

    bool timed_;
    elf::SiteOptions options_;
    targets::TargetsFile file_;
    process::Resolver resolver_;
    std::optional<Error> refusal_;
};

Result<void> FunctionSites::add_timed(const process::NativeMatch& match,
                                      std::vector<Site>& sites) const {
    auto file = elf::ElfFile::open(resolver_.descriptor(match.file), match.path);
    if (!file) return std::move(file).error();
    const elf::ExitFinder finder(*file, options_);
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
        sites.push_back({match.file, exit.file_offset, 0, site});
    }
    sites.push_back({match.file, match.site.file_offset, 0, entry});
    return {};
}

} // namespace

Result<std::unique_ptr<ProgressSites>> function_sites(const ProgressSpec& spec,
                                                      const elf::SiteOptions& options) {
    auto line = line_of(spec);
    if (!line) return std::move(line).error();
    return std::unique_ptr<ProgressSites>(std::make_unique<FunctionSites>(
        spec.kind == ProgressSpec::Kind::kLatency, std::move(*line), options));
}

} // namespace speedbump::experiment
