// SPDX-License-Identifier: MIT
// Not followed on aarch64 yet: all that needs the ways out of a function is refused.
#include "elf/exits.h"

namespace speedbump::elf {

struct ExitFinder::Impl {};
ExitFinder::ExitFinder(std::shared_ptr<const ElfFile>) {}
ExitFinder::~ExitFinder() = default;

Result<WaysOut> ExitFinder::find(uint64_t) const {
    return make_error(ErrorKind::kUnsupported,
                      "the ways out of a function are known on x86-64 only");
}

std::optional<uint64_t> ExitFinder::stack_used(uint64_t, uint64_t) const {
    return std::nullopt;
}

bool ExitFinder::keeps(uint64_t, uint64_t, const std::vector<uint8_t>&) const {
    return false;
}

} // namespace speedbump::elf
