// SPDX-License-Identifier: MIT
#pragma once

#include <string>
#include <string_view>

namespace speedbump::elf {

// The two demangled forms of a C++ (Itanium) or Rust (legacy and v0) symbol; empty for others.
struct Demangled {
    std::string with_signature;    // ns::Class::method(int) const
    std::string without_signature; // ns::Class::method
};

// Whether the name could be a mangled one (cheap prefix test).
bool is_mangled(std::string_view symbol);
Demangled demangle(std::string_view symbol);

} // namespace speedbump::elf
