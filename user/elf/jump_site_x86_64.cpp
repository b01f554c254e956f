// SPDX-License-Identifier: MIT
#include "elf/jump_site.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <set>

#include "elf/entry_proof.h"
#include "elf/frames.h"
#include "elf/jump_search_x86_64.h"
#include "elf/moved_code.h"
#include "util/page.h"

namespace speedbump::elf {
namespace {

using Bytes = std::basic_string_view<unsigned char>;

constexpr size_t kMaxRunBytes = 96;
constexpr size_t kLongestInstruction = 15;
static_assert(kMaxRunBytes + kLongestInstruction <= kLongestStretch);
static_assert(kLongestRange == kJumpBytes - 1 + kLongestInstruction);

// Where a jump could go, as distances from the entry.
struct Candidate {
    uint8_t begin = 0;
    uint8_t end = 0;
    bool is_redirected = false;
};

struct Run {
    size_t index = 0; // of the caller
    ProvenEntry entry;
    std::vector<Candidate> candidates; // ascending
    Stretch stretch;
};

class JumpPlacement {
  public:
    JumpPlacement(const ElfFile& file, const PlacementOptions& options)
        : file_(file), options_(options), prover_(file), frames_(file) {}

    std::vector<Result<ProbeSite>> place(std::span<const uint64_t> entries) {
        if (file_.has_section("__rseq_cs"))
            return all_refused(entries.size(), "the file has restartable sequences");
        if (file_.has_section(".gopclntab") || file_.has_section(".note.go.buildid"))
            return all_refused(entries.size(), "it is of Go, which moves its stacks");
        PlacementOptions for_uprobes = options_;
        for_uprobes.jump = false;
        for_uprobes.entry_only = false; // so do progress points, and other sessions
        const auto uprobes = place_probes(file_, entries, for_uprobes);
        for (size_t i = 0; i < entries.size(); ++i) look_at(entries[i], uprobes[i]);
        std::sort(runs_.begin(), runs_.end(),
                  [](const Run& a, const Run& b) { return a.entry.address < b.entry.address; });
        std::vector<Stretch> stretches;
        for (const Run& run : runs_) stretches.push_back(run.stretch);
        if (!stretches.empty()) find_jumps_into(file_, stretches);
        for (size_t i = 0; i < runs_.size(); ++i)
            sites_[runs_[i].index] = choose(runs_[i], stretches[i]);
        return std::move(sites_);
    }

  private:
    static Error refusal(std::string reason) {
        return make_error(ErrorKind::kUnsupported, std::move(reason));
    }

    static std::vector<Result<ProbeSite>> all_refused(size_t count, const char* reason) {
        std::vector<Result<ProbeSite>> sites;
        for (size_t i = 0; i < count; ++i) sites.push_back(refusal(reason));
        return sites;
    }

    void look_at(uint64_t offset, const Result<ProbeSite>& uprobe) {
        sites_.push_back(refusal("not decided"));
        const auto proven = prover_.prove(offset);
        if (!proven) {
            sites_.back() = proven.error();
            return;
        }
        if (proven->end <= proven->address) {
            sites_.back() = refusal("the extent of the function is not known");
            return;
        }
        std::optional<uint64_t> distance;
        if (uprobe) distance = uprobe->file_offset - proven->file_offset;
        if (auto run = find_candidates(*proven, distance))
            runs_.push_back(std::move(*run));
        else
            sites_.back() = std::move(run).error();
    }

    // `uprobe`: where ours would be.
    Result<Run> find_candidates(const ProvenEntry& entry, std::optional<uint64_t> uprobe) const {
        Run run;
        run.index = sites_.size() - 1;
        run.entry = entry;
        const Bytes code = file_.code_at(entry.file_offset, kMaxRunBytes + kRangeSight);
        const uint64_t size = std::min<uint64_t>(code.size(), entry.end - entry.address);
        std::set<uint64_t> branches;
        bool is_ours = false;
        size_t at = 0;
        for (size_t length = 1; length != 0 && at < size && at < kMaxRunBytes; at += length) {
            const Bytes rest = code.substr(at);
            length = straight_on(rest);
            const auto range = movable_range(rest, entry.address + at);
            if (!range || at + range->code > size || (at == 0 && !range->is_redirected)) continue;
            const Candidate found{static_cast<uint8_t>(at),
                                  static_cast<uint8_t>(at + range->length), range->is_redirected};
            // One write of five bytes is one step only within a page.
            if ((entry.address + at) % kPage + kJumpBytes > kPage) continue;
            const bool is_uprobe = uprobe && *uprobe >= found.begin && *uprobe < found.end;
            is_ours |= is_uprobe;
            if (is_uprobe && !(found.is_redirected && *uprobe == found.begin)) continue;
            run.candidates.push_back(found);
            for (const uint8_t branch : range->branches)
                branches.insert(entry.address + at + branch);
        }
        if (run.candidates.empty())
            return refusal(is_ours ? "a probe of the BPF engine would be where a jump could be"
                                   : "behind its first instruction there are no five bytes of "
                                     "instructions that each call passes, that can be moved and "
                                     "that lie within a page");
        Stretch& stretch = run.stretch;
        stretch.entry = entry.address;
        stretch.watched_end = entry.address + run.candidates.back().end;
        stretch.end = stretch.watched_end;
        stretch.function_end = entry.end;
        stretch.branches.assign(branches.begin(), branches.end());
        return run;
    }

    Result<ProbeSite> choose(const Run& run, const Stretch& stretch) const {
        const FramePart* const part = frames_.find(run.entry.address);
        std::vector<uint64_t> pads;
        if (part == nullptr && !frames_.is_whole())
            return refusal("the unwind information of its file can't be read in full");
        if (part != nullptr) {
            auto known = frames_.landing_pads(*part);
            if (!known) return refusal("where exceptions continue in it is not known");
            pads = std::move(*known);
        }
        const char* obstacle = stretch.obstacle;
        for (const Candidate& candidate : run.candidates) {
            const uint64_t begin = run.entry.address + candidate.begin;
            const uint64_t end = run.entry.address + candidate.end;
            if (end > stretch.first_target) break;
            if (std::any_of(pads.begin(), pads.end(),
                            [&](uint64_t pad) { return pad > run.entry.address && pad < end; })) {
                obstacle = "exceptions may continue there";
                break;
            }
            const uint64_t offset = run.entry.file_offset + candidate.begin;
            return ProbeSite{
                offset, SiteKind::kJump,
                instruction_text(file_.code_at(offset, kLongestInstruction), begin),
                candidate.is_redirected
                    ? fmt::format("it leads elsewhere first, {} bytes after the entry; every call "
                                  "passes here once",
                                  candidate.begin)
                    : fmt::format("a jump in place of {} bytes, {} after the entry; every call "
                                  "passes here once",
                                  candidate.end - candidate.begin, candidate.begin),
                stack_growth(file_.code_at(run.entry.file_offset, candidate.begin))};
        }
        return refusal(obstacle != nullptr ? obstacle : "something may lead into it");
    }

    const ElfFile& file_;
    const PlacementOptions& options_;
    EntryProver prover_;
    FrameTable frames_;
    std::vector<Result<ProbeSite>> sites_;
    std::vector<Run> runs_;
};

} // namespace

std::vector<Result<ProbeSite>> place_jumps(const ElfFile& file, std::span<const uint64_t> entries,
                                           const PlacementOptions& options) {
    return JumpPlacement(file, options).place(entries);
}

} // namespace speedbump::elf
