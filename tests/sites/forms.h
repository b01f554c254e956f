// SPDX-License-Identifier: MIT
#pragma once

#include <Zydis/Zydis.h>

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "random.h"
#include "util/result.h"

namespace speedbump::sites {

using Bytes = std::vector<uint8_t>;

struct Decoded {
    ZydisDecodedInstruction instruction;
    ZydisDecodedOperand operands[ZYDIS_MAX_OPERAND_COUNT];
};
std::optional<Decoded> decode(const uint8_t* code, size_t size);
std::string text_of(const Decoded& decoded);

// An instruction with its displacement and immediates set to 0: those are chosen for each case.
// Nops keep theirs, as it is the exact bytes that the kernel looks at.
struct Form {
    Bytes code;
    uint64_t count = 0;  // of functions that begin so, or get their probe there
    std::string example; // one of them
};
Bytes form_of(const Decoded& decoded, const uint8_t* code);

// Any instruction: prefixes, opcode and operands at random, the usual ones more often.
Bytes random_instruction(Random& random);

class Forms {
  public:
    // Adds the first instruction of every function of the file, and the one that gets the probe.
    // Functions are those of its symbols and those that its unwind table names, which are all: the
    // variants of IFUNCs too.
    // Returns how many functions it has.
    Result<size_t> collect(const std::string& path);
    Result<void> read(const std::string& path);
    Result<void> write(const std::string& path) const;
    void add(const uint8_t* code, size_t size, const std::string& example, uint64_t count = 1);

    std::vector<Form> sorted() const; // the most frequent first
    size_t size() const { return forms_.size(); }

  private:
    std::map<Bytes, Form> forms_;
};

} // namespace speedbump::sites
