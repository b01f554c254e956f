// SPDX-License-Identifier: MIT
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "forms.h"
#include "machine.h"
#include "random.h"

namespace speedbump::sites {

// Where in its page a tried instruction lies.
enum class Place { kInside, kPageEnd, kAcrossPages };

constexpr size_t kSlot = 8192; // two pages of the file for each
constexpr uint64_t kLandedBehind = 1, kLandedAtTarget = 2;

// Code that is tried: one instruction, or some, of which those at `probes` get a probe.
struct Slot {
    std::string name;
    std::string example;
    Bytes code;
    std::vector<size_t> probes{0}; // distances from the first byte of `code`
    size_t at = 0;                 // of `code`, from the start of the slot
    uintptr_t address = 0;         // of `code`
    uintptr_t target = 0;          // where its branches lead: a landing pad
    std::vector<Decoded> instructions;
    bool may_push =
        false; // the kernel may turn it into a call, where nothing lives below the stack
};

// Why an instruction can't be tried; empty when it can.
std::string untried(const Decoded& decoded);
// The slot of that number, with exactly this code.
Slot make_slot(size_t number, const Bytes& code, Place place, Random& random);
// Gives its one instruction the displacement and immediates that form_of() has cleared.
void choose_numbers(Slot& slot, Random& random);
// Writes the code and its landing pads; `bytes` are the slot's.
void write_slot(const Slot& slot, uint8_t* bytes);
State make_state(const Slot& slot, Random& random);

} // namespace speedbump::sites
