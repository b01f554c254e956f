// SPDX-License-Identifier: MIT
#include "elf/placement.h"

#include <fmt/format.h>

#include <optional>

#include "elf/entry_proof.h"
#include "elf/image.h"
#include "elf/refusal.h"

namespace speedbump::elf {
namespace {

// Of a function that another symbol lies in: how far it is decoded to find that symbol.
constexpr uint64_t kMaxWalk = 1u << 20;

bool walks_to(const ElfFile& file, const Function& function, uint64_t address) {
    if (address - function.address > kMaxWalk) return false;
    return begins_instruction(file.code_at(function.file_offset, function.size),
                              address - function.address);
}

} // namespace

Result<ProvenEntry> prove_entry(const ElfFile& file, uint64_t offset) {
    const std::optional<uint64_t> address = file.address_of_offset(offset);
    if (!address || file.code_at(offset, 1).empty()) return refusal(file.why_no_code(offset));
    const Function* function = file.function_at_offset(offset);
    if (function != nullptr && function->address != *address) function = nullptr;
    const bool is_typed = function != nullptr && function->is_typed;
    const std::optional<uint64_t> frame_end = file.frame_end(*address);
    if (!is_typed && !frame_end)
        return refusal(
            "nothing proves that code begins there: no symbol of a function, no unwind "
            "information");
    ProvenEntry entry{offset, *address, frame_end.value_or(0), SitePosition::kInside};
    if (function != nullptr && function->size > 0) entry.end = *address + function->size;
    if (is_typed) entry.position = SitePosition::kEntry;
    const Function* outer = offset > 0 ? file.function_at_offset(offset - 1) : nullptr;
    if (outer == nullptr || outer->address + outer->size <= *address) return entry;
    // Control may come from above, with data below the stack pointer.
    entry.position = SitePosition::kInside;
    if (!walks_to(file, *outer, *address))
        return refusal(fmt::format("it lies in the middle of an instruction of {}, or of data",
                                   outer->names.front()));
    return entry;
}

Result<ProbeSite> place_probe(const ElfFile& file, uint64_t entry,
                              const PlacementOptions& options) {
    return std::move(place_probes(file, {&entry, 1}, options).front());
}

} // namespace speedbump::elf
