// SPDX-License-Identifier: MIT
#include "elf/placement.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <utility>

#include "elf/entry_proof.h"
#include "elf/image.h"
#include "elf/refusal.h"

namespace speedbump::elf {
namespace {

// Of a function that another symbol lies in: how far it is decoded to find that symbol.
constexpr uint64_t kMaxWalk = 1u << 20;
// And how many instructions of all such functions of a file, each of which may be decoded in full
// for one symbol only.
constexpr size_t kMaxDecoded = 16u << 20;

} // namespace

Result<void> EntryProver::walk_to(const Function& outer, uint64_t address) {
    const uint64_t distance = address - outer.address;
    if (distance <= kMaxWalk) {
        std::vector<uint32_t>& starts = starts_[&outer];
        if (starts.empty()) starts.push_back(0);
        const size_t before = starts.size();
        if (starts.back() < distance && decoded_ > kMaxDecoded)
            return refusal(fmt::format(
                "it lies inside of {}, and the file has more functions inside of others than are "
                "looked at",
                outer.names.front()));
        add_starts(file_.code_at(outer.file_offset, outer.size), distance, starts);
        decoded_ += starts.size() - before;
        if (std::binary_search(starts.begin(), starts.end(), distance)) return {};
    }
    return refusal(fmt::format("it lies in the middle of an instruction of {}, or of data",
                               outer.names.front()));
}

Result<ProvenEntry> EntryProver::prove(uint64_t offset) {
    const std::optional<uint64_t> address = file_.address_of_offset(offset);
    if (!address || file_.code_at(offset, 1).empty()) return refusal(file_.why_no_code(offset));
    const Function* function = file_.function_at_offset(offset);
    if (function != nullptr && function->address != *address) function = nullptr;
    const bool is_typed = function != nullptr && function->is_typed;
    const std::optional<uint64_t> frame_end = file_.frame_end(*address);
    if (!is_typed && !frame_end)
        return refusal(
            "nothing proves that code begins there: no symbol of a function, no unwind "
            "information");
    ProvenEntry entry{offset, *address, frame_end.value_or(0), SitePosition::kInside};
    if (function != nullptr && function->size > 0) entry.end = *address + function->size;
    if (is_typed) entry.position = SitePosition::kEntry;
    const Function* outer = offset > 0 ? file_.function_at_offset(offset - 1) : nullptr;
    if (outer == nullptr || outer->address + outer->size <= *address) return entry;
    // Control may come from above, with data below the stack pointer.
    entry.position = SitePosition::kInside;
    if (auto walked = walk_to(*outer, *address); !walked) return std::move(walked).error();
    return entry;
}

Result<ProbeSite> place_probe(const ElfFile& file, uint64_t entry,
                              const PlacementOptions& options) {
    return std::move(place_probes(file, {&entry, 1}, options).front());
}

} // namespace speedbump::elf
