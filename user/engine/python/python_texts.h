// SPDX-License-Identifier: MIT
#pragma once

#include <cstdint>
#include <set>
#include <string>

#include "engine/engine.h"
#include "util/fd.h"
#include "util/result.h"

// Texts that are too long for a packet (pyext/src/serve.h), as files in memory that all
// interpreters of a session read.
namespace speedbump::engine {

// A memfd of this text that can never be changed.
Result<Fd> sealed_text(const char* name, const std::string& text);

// What a "groups" packet is about.
std::string text_of(const Regrouping& regrouping);
std::string text_of(const std::set<uint64_t>& modules); // of a "look" packet

} // namespace speedbump::engine
