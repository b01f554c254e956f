// SPDX-License-Identifier: MIT
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "elf/dynamic.h"
#include "elf/image.h"
#include "elf/symbols.h"
#include "util/result.h"

namespace speedbump::elf {

// One symbol table with what belongs to it.
struct SymbolTable {
    std::vector<Elf64_Sym> symbols;
    std::span<const unsigned char> strings;
    std::vector<uint32_t> extended_sections; // SHT_SYMTAB_SHNDX, or empty
    std::vector<uint16_t> versions;          // SHT_GNU_versym, or empty
    bool is_dynamic = false;
};

// The names of all functions, and the bytes they are of.
struct Names {
    std::vector<std::string_view> all;
    std::vector<std::vector<unsigned char>> strings;
};

// Gathers the symbols of all tables of a program and makes functions of them; owns the string
// tables that their names point into.
class SymbolCollector {
  public:
    explicit SymbolCollector(const Image& program) : program_(program) {}

    // Adds the symbol tables of this type that section headers name; whether there was one. `image`
    // is the program or a file about it, whose addresses are the program's.
    Result<bool> add_sections(const Image& image, uint32_t type, const std::string& name);
    // Adds the dynamic symbols of a file without section headers; whether there were any.
    Result<bool> add_dynamic(const Image& image, const Dynamic& dynamic, const std::string& name);
    // Folds everything into functions by address; what is left over goes to `labels`.
    std::vector<Function> fold(std::vector<uint64_t>& labels);
    // What the functions' names point into.
    Names take_names() { return std::move(names_); }

  private:
    // One symbol that may become a function. The name points into a string table that is kept.
    struct Candidate {
        uint64_t address;
        uint64_t size;
        std::string_view name;
        uint8_t rank; // of the name among its aliases; lower is better
        bool typed;   // FUNC or GNU_IFUNC
        bool is_ifunc;
        bool is_label; // only to be known of, no function
    };

    std::span<const unsigned char> keep(std::vector<unsigned char> strings);
    Result<void> add(const SymbolTable& table, const std::vector<Elf64_Shdr>& sections,
                     const std::string& name);
    bool may_be_function(const Elf64_Sym& symbol, uint32_t section,
                         const std::vector<Elf64_Shdr>& sections) const;
    void add_name(const SymbolTable& table, size_t at, std::string_view name);
    // A candidate as it is sorted, by address and rank.
    struct Place {
        uint64_t address;
        uint32_t candidate;
        uint8_t rank;
    };

    std::vector<Place> sort_candidates() const;
    // What the symbols of one address, which are sorted, say of its function.
    Function fold_one(std::span<const Place> places);

    const Image& program_;
    std::vector<Candidate> candidates_;
    Names names_;
};

} // namespace speedbump::elf
