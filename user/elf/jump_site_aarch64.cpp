// SPDX-License-Identifier: MIT
#include "elf/jump_site.h"
#include "elf/moved_code.h"

namespace speedbump::elf {

std::vector<Result<ProbeSite>> place_jumps(const ElfFile&, std::span<const uint64_t> entries,
                                           const PlacementOptions&) {
    return std::vector<Result<ProbeSite>>(
        entries.size(),
        make_error(ErrorKind::kUnsupported, "jumps are not put into functions on aarch64 yet"));
}

uint8_t straight_on(std::basic_string_view<unsigned char>) {
    return 0;
}

std::optional<Range> movable_range(std::basic_string_view<unsigned char>, uint64_t) {
    return std::nullopt;
}

std::optional<uint32_t> stack_growth(std::basic_string_view<unsigned char>) {
    return std::nullopt;
}

std::optional<MovedRange> move_range(std::basic_string_view<unsigned char>, uint64_t, uint64_t) {
    return std::nullopt;
}

} // namespace speedbump::elf
