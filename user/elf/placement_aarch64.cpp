// SPDX-License-Identifier: MIT
// Entries alone: whether something jumps past them is not looked for on aarch64 yet.
#include "elf/placement.h"

#include <fmt/format.h>

#include "elf/entry_proof.h"
#include "elf/image.h"
#include "elf/jump_site.h"
#include "elf/refusal.h"

namespace speedbump::elf {
namespace {

using Bytes = std::basic_string_view<unsigned char>;

constexpr size_t kWord = 4;

// The code that ends a signal handler: mov x8,#139 (rt_sigreturn); svc #0. Unwinders know it by its
// bytes, and those that a probe changes they would not know.
bool is_signal_return(Bytes code) {
    static constexpr unsigned char kReturn[] = {0x68, 0x11, 0x80, 0xd2, 0x01, 0x00, 0x00, 0xd4};
    return code.starts_with(Bytes(kReturn, sizeof kReturn));
}

Result<ProbeSite> place(const ElfFile& file, EntryProver& prover, uint64_t offset,
                        const PlacementOptions& options) {
    Result<ProvenEntry> entry = prover.prove(offset);
    if (!entry) return std::move(entry).error();
    if (entry->address % kWord != 0)
        return refusal("no instruction begins there: its address is no multiple of 4");
    const Bytes code = file.code_at(offset, 2 * kWord);
    if (is_signal_return(code))
        return refusal("signal handlers return to it, and unwinders know it by its code");
    const SiteVerdict verdict = judge_site(code, entry->address, options, entry->position);
    if (verdict.length == 0) return refusal("its code could not be decoded");
    const std::string text = instruction_text(code, entry->address);
    if (!verdict.allowed)
        return refusal(
            fmt::format("its first instruction {} {}, and other places are not looked "
                        "for on aarch64",
                        text, verdict.reason));
    const char* reason = verdict.kind == SiteKind::kEmulated
                             ? "the entry: the kernel emulates its first instruction"
                             : "the entry: other places are not looked for on aarch64";
    return ProbeSite{offset, verdict.kind, text, reason};
}

} // namespace

void add_starts(Bytes code, uint64_t distance, std::vector<uint32_t>& starts) {
    for (uint32_t at = starts.back(); at < distance && at + kWord <= code.size();) {
        at += static_cast<uint32_t>(kWord);
        starts.push_back(at);
    }
}

std::vector<Result<ProbeSite>> place_probes(const ElfFile& file, std::span<const uint64_t> entries,
                                            const PlacementOptions& options) {
    if (options.jump) return place_jumps(file, entries, options);
    std::vector<Result<ProbeSite>> sites;
    sites.reserve(entries.size());
    EntryProver prover(file);
    for (const uint64_t entry : entries) sites.push_back(place(file, prover, entry, options));
    return sites;
}

} // namespace speedbump::elf
