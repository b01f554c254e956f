// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "elf/symbols.h"
#include "targets/target.h"

namespace speedbump::process {

// Decides for each function of one ELF file which of the given lines names it last. Names are
// demangled only where a mangled one cannot decide.
class SymbolMatcher {
  public:
    // `lines` are indexes into `file`, ascending, of native lines whose BINARY names the ELF file.
    // `matched` has an entry per line of `file`, is set where a line names a function, and outlives
    // the matcher, as `file` does.
    SymbolMatcher(const targets::TargetsFile& file, std::span<const size_t> lines,
                  std::vector<bool>& matched);

    struct Decision {
        size_t line_index = 0;
        std::string_view alias; // of the function's names, or the line's file offset
        std::string demangled;  // with its signature, where that decided

        // What to show: demangled where it can be.
        std::string name() const;
    };

    // The last line that names the function, which may be an exclusion; nullopt when none does.
    std::optional<Decision> decide(const elf::Function& function);

    // The lines given whose SYMBOL is a file offset.
    const std::vector<size_t>& offset_lines() const { return offset_lines_; }

  private:
    struct GlobLine {
        size_t index;
        std::string_view pattern;
        std::string_view word; // that every name it matches holds literally, or empty
    };
    struct Best {
        bool found = false;
        size_t line = 0;
        std::string_view alias;
    };

    bool is_wanted(const Best& best, size_t line) const;
    void note(Best& best, size_t line, std::string_view alias);
    void match_name(Best& best, std::string_view name, std::string_view alias);
    bool may_match_demangled(const Best& best, std::string_view mangled) const;

    std::vector<bool>& matched_;
    std::unordered_map<std::string_view, std::vector<size_t>> exact_; // lines ascending
    std::vector<GlobLine> exact_words_; // of exact_, only while they are few
    std::vector<GlobLine> globs_;       // last line first
    std::vector<size_t> offset_lines_;
    std::unordered_map<uint64_t, std::vector<size_t>> offsets_;
    bool many_exact_ = false;
};

// The longest word of the pattern (letters, digits, '_') that a symbol must hold literally, mangled
// or not, for the pattern to match its demangled name; empty when there is none.
std::string_view required_word(std::string_view pattern, bool is_glob);

} // namespace speedbump::process
