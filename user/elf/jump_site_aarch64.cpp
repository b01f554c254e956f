// SPDX-License-Identifier: MIT
#include "elf/jump_site.h"

namespace speedbump::elf {

std::vector<Result<ProbeSite>> place_jumps(const ElfFile&, std::span<const uint64_t> entries,
                                           const PlacementOptions&) {
    return std::vector<Result<ProbeSite>>(
        entries.size(),
        make_error(ErrorKind::kUnsupported, "jumps are not put into functions on aarch64 yet"));
}

std::optional<Range> movable_range(std::basic_string_view<unsigned char>) {
    return std::nullopt;
}

std::optional<std::basic_string<unsigned char>> moved_range(std::basic_string_view<unsigned char>,
                                                            uint64_t, uint64_t) {
    return std::nullopt;
}

} // namespace speedbump::elf
