// SPDX-License-Identifier: MIT
#pragma once

#include <array>
#include <string>
#include <string_view>

#include "mangled_cpp.h"
#include "mangled_rust.h"
#include "mutator.h"

namespace speedbump::fuzz {

// A name of either language, now and then a damaged one.
inline std::string make_name(Random& random) {
    constexpr std::array<std::string_view, 10> kWords = {"S_", "T_", "I", "E",  "DpT_",
                                                         "N",  "Z",  "B", "G_", "99999999999"};
    constexpr std::array<std::string_view, 4> kSuffixes = {".cold", ".part.0", ".constprop.0", "@"};
    // Many short ones, which take less time, and some as long as any that is demangled.
    const size_t size =
        random.below(10) == 0 ? 16'000 : size_t{8} << random.below(1 + random.below(12));
    const size_t kind = random.below(8);
    std::string name = kind == 0   ? RustName(random, size).make_legacy()
                       : kind <= 2 ? RustName(random, size).make()
                                   : CppName(random, size).make();
    if (random.below(16) == 0) mutate(name, random, {&name, 1}, kWords, name.size() + 64);
    if (random.below(16) == 0) name += kSuffixes[random.below(kSuffixes.size())];
    return name;
}

} // namespace speedbump::fuzz
