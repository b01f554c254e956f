// SPDX-License-Identifier: MIT
#pragma once

#include <string_view>

namespace speedbump::elf {

// Whether a Rust name (v0, RFC 2603) is of the form that demanglers read, and asks for no more
// lifetimes at once than a real one: libiberty counts up to any number of them, also where it
// prints none, so that a name of 20 bytes takes hours.
bool is_plain_rust_name(std::string_view symbol);

} // namespace speedbump::elf
