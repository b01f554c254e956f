// SPDX-License-Identifier: MIT
#include "elf/symbol_tables.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <tuple>
#include <unordered_set>

namespace speedbump::elf {
namespace {

// Bounds on what one file may make us hold: far above Chromium's own figures.
constexpr uint64_t kMaxSymbolBytes = 256u << 20;
constexpr uint64_t kMaxStringBytes = 512u << 20;
constexpr uint64_t kMaxNameBytes = 64u << 10;
constexpr uint64_t kMaxHashBytes = 256u << 20;
constexpr uint16_t kHiddenVersion = 0x8000;
constexpr size_t kFewNames = 8; // of one function, that are looked through one by one

uint8_t rank_of(const Elf64_Sym& symbol, bool default_version, std::string_view name) {
    unsigned rank = default_version ? 0 : 16;
    unsigned binding = ELF64_ST_BIND(symbol.st_info);
    rank += binding == STB_GLOBAL || binding == STB_GNU_UNIQUE ? 0 : binding == STB_WEAK ? 2 : 4;
    if (name.starts_with('_') && !name.starts_with("_Z") && !name.starts_with("_R")) rank += 1;
    return static_cast<uint8_t>(rank);
}

// "f.cold", "f.cold.1": the unlikely part of a function, which its other part jumps to.
bool is_cold_part(std::string_view name) {
    if (name.find('.') == std::string_view::npos) return false; // most names, at once
    size_t at = name.rfind(".cold");
    if (at == std::string_view::npos || at == 0) return false;
    name.remove_prefix(at + 5);
    return name.empty() || name.front() == '.';
}

// How many dynamic symbols there are: nothing in PT_DYNAMIC says so but the hash tables.
uint64_t dynamic_symbol_count(const Image& image, uint64_t hash, uint64_t gnu_hash) {
    if (hash != 0) {
        uint32_t words[2];
        auto bytes = image.read_address(hash, sizeof words, sizeof words, "DT_HASH");
        if (bytes && bytes->size() == sizeof words) {
            std::memcpy(words, bytes->data(), sizeof words);
            return words[1];
        }
    }
    if (gnu_hash == 0) return 0;
    uint32_t header[4]; // buckets, first symbol, bloom words, bloom shift
    auto bytes = image.read_address(gnu_hash, sizeof header, sizeof header, "DT_GNU_HASH");
    if (!bytes || bytes->size() != sizeof header) return 0;
    std::memcpy(header, bytes->data(), sizeof header);
    uint64_t buckets_at = gnu_hash + sizeof header + uint64_t{header[2]} * 8;
    auto buckets =
        image.read_address(buckets_at, uint64_t{header[0]} * 4, kMaxHashBytes, "DT_GNU_HASH");
    if (!buckets) return 0;
    uint64_t last = 0;
    for (uint32_t first : as_table<uint32_t>(*buckets)) last = std::max<uint64_t>(last, first);
    if (last < header[1]) return header[1];
    // The chain of the last bucket ends with the last symbol; its final entry has bit 0 set.
    uint64_t chains_at = buckets_at + uint64_t{header[0]} * 4;
    const Segment* segment = image.segment_of_address(gnu_hash);
    uint64_t chain_at = chains_at + (last - header[1]) * 4;
    if (chain_at < segment->address || chain_at - segment->address >= segment->file_size) return 0;
    auto chain = image.read_address(chain_at, std::min<uint64_t>(segment->file_size, 4u << 20),
                                    kMaxHashBytes, "DT_GNU_HASH");
    if (!chain) return 0;
    for (uint32_t value : as_table<uint32_t>(*chain)) {
        ++last;
        if ((value & 1) != 0) return last;
    }
    return 0;
}

Error damaged(const std::string& name, const char* how) {
    return make_error(ErrorKind::kInvalid, fmt::format("{}: damaged ELF file: {}", name, how));
}

bool is_typed(const Elf64_Sym& symbol) {
    const unsigned type = ELF64_ST_TYPE(symbol.st_info);
    return type == STT_FUNC || type == STT_GNU_IFUNC;
}

} // namespace

std::span<const unsigned char> SymbolCollector::keep(std::vector<unsigned char> strings) {
    names_.strings.push_back(std::move(strings));
    return names_.strings.back();
}

// Whether it is the name of code that the program runs, as far as its section can tell.
bool SymbolCollector::may_be_function(const Elf64_Sym& symbol, uint32_t index,
                                      const std::vector<Elf64_Shdr>& sections) const {
    // A table from PT_DYNAMIC may come without sections: then only segments tell.
    const Elf64_Shdr* section = index < sections.size() ? &sections[index] : nullptr;
    if (section != nullptr && (section->sh_flags & SHF_EXECINSTR) == 0) return false;
    if (!is_typed(symbol) && (section == nullptr || symbol.st_value < section->sh_addr ||
                              symbol.st_value - section->sh_addr >= section->sh_size))
        return false;
    const Segment* segment = program_.segment_of_address(symbol.st_value);
    return segment != nullptr && segment->executable;
}

void SymbolCollector::add_name(const SymbolTable& table, size_t at, std::string_view name) {
    const Elf64_Sym& symbol = table.symbols[at];
    bool is_label = name.empty() || name.size() == kMaxNameBytes;
    bool default_version =
        at >= table.versions.size() || (table.versions[at] & kHiddenVersion) == 0;
    if (size_t sign = name.find('@', 1); !table.is_dynamic && sign != std::string_view::npos) {
        default_version = name.substr(sign).starts_with("@@");
        name = name.substr(0, sign);
    }
    is_label = is_label || is_cold_part(name) ||
               (!is_typed(symbol) &&
                (ELF64_ST_BIND(symbol.st_info) == STB_LOCAL || name.starts_with('$')));
    candidates_.push_back({symbol.st_value, symbol.st_size, name,
                           rank_of(symbol, default_version, name), is_typed(symbol),
                           ELF64_ST_TYPE(symbol.st_info) == STT_GNU_IFUNC, is_label});
}

// `sections` belong to the file the table is from, whose addresses are the program's.
Result<void> SymbolCollector::add(const SymbolTable& table, const std::vector<Elf64_Shdr>& sections,
                                  const std::string& name) {
    // Names may overlap; without a bound a small file could make us look for ends forever.
    uint64_t budget = (uint64_t{64} << 20) + 64 * table.strings.size();
    candidates_.reserve(candidates_.size() + table.symbols.size());
    for (size_t i = 1; i < table.symbols.size(); ++i) {
        const Elf64_Sym& symbol = table.symbols[i];
        if (!is_typed(symbol) && ELF64_ST_TYPE(symbol.st_info) != STT_NOTYPE) continue;
        if (symbol.st_shndx == SHN_UNDEF) continue;
        uint32_t index = symbol.st_shndx;
        if (index == SHN_XINDEX && i < table.extended_sections.size())
            index = table.extended_sections[i];
        else if (index >= SHN_LORESERVE)
            continue;
        if (!may_be_function(symbol, index, sections)) continue;
        if (symbol.st_name > table.strings.size()) { // at the end: it has none
            if (!is_typed(symbol)) continue;
            return damaged(name, "a symbol's name lies past the end of its string table");
        }
        const char* text = reinterpret_cast<const char*>(table.strings.data()) + symbol.st_name;
        const size_t room = table.strings.size() - symbol.st_name;
        const size_t length =
            room == 0 ? 0 : ::strnlen(text, std::min<size_t>(room, kMaxNameBytes));
        if (length > budget) return damaged(name, "overlapping symbol names");
        budget -= length;
        add_name(table, i, {text, length});
    }
    return {};
}

Result<bool> SymbolCollector::add_sections(const Image& image, uint32_t type,
                                           const std::string& name) {
    const std::vector<Elf64_Shdr>& sections = image.sections();
    bool found = false;
    for (size_t i = 0; i < sections.size(); ++i) {
        const Elf64_Shdr& section = sections[i];
        // There is one of each type in a linked file; more are a way to make us read for long.
        if (section.sh_type != type || section.sh_size == 0 || found) continue;
        if (section.sh_link >= sections.size() || (sections[section.sh_link].sh_type != SHT_STRTAB))
            return make_error(
                ErrorKind::kInvalid,
                fmt::format("{}: damaged ELF file: a symbol table without strings", name));
        auto symbols = image.read(section, kMaxSymbolBytes, "the symbol table");
        if (!symbols) return symbols.error();
        auto strings = image.read(sections[section.sh_link], kMaxStringBytes, "the symbols' names");
        if (!strings) return strings.error();
        SymbolTable table;
        table.symbols = as_table<Elf64_Sym>(*symbols);
        table.strings = keep(std::move(*strings));
        table.is_dynamic = type == SHT_DYNSYM;
        for (const Elf64_Shdr& other : sections) {
            if (other.sh_link != i) continue;
            bool is_index = other.sh_type == SHT_SYMTAB_SHNDX && table.extended_sections.empty();
            bool is_version = other.sh_type == SHT_GNU_versym && table.versions.empty();
            if (!is_index && !is_version) continue;
            auto bytes = image.read(other, kMaxSymbolBytes, "a table beside the symbols");
            if (!bytes) return bytes.error();
            if (is_index) table.extended_sections = as_table<uint32_t>(*bytes);
            if (is_version) table.versions = as_table<uint16_t>(*bytes);
        }
        if (auto done = add(table, sections, name); !done) return done.error();
        found = true;
    }
    return found;
}

Result<bool> SymbolCollector::add_dynamic(const Image& image, const Dynamic& dynamic,
                                          const std::string& name) {
    if (dynamic.symbols == 0 || dynamic.strings == 0) return false;
    uint64_t count = dynamic_symbol_count(image, dynamic.hash, dynamic.gnu_hash);
    if (count == 0) return false;
    auto symbols = image.read_address(dynamic.symbols, count * sizeof(Elf64_Sym), kMaxSymbolBytes,
                                      "DT_SYMTAB");
    if (!symbols) return symbols.error();
    auto strings =
        image.read_address(dynamic.strings, dynamic.strings_size, kMaxStringBytes, "DT_STRTAB");
    if (!strings) return strings.error();
    SymbolTable table;
    table.symbols = as_table<Elf64_Sym>(*symbols);
    table.strings = keep(std::move(*strings));
    table.is_dynamic = true;
    if (dynamic.versions != 0) {
        auto versions =
            image.read_address(dynamic.versions, count * 2, kMaxSymbolBytes, "DT_VERSYM");
        if (!versions) return versions.error();
        table.versions = as_table<uint16_t>(*versions);
    }
    if (auto done = add(table, {}, name); !done) return done.error();
    return true;
}

std::vector<SymbolCollector::Place> SymbolCollector::sort_candidates() const {
    std::vector<Place> places;
    places.reserve(candidates_.size());
    for (const Candidate& candidate : candidates_)
        places.push_back({candidate.address, static_cast<uint32_t>(places.size()), candidate.rank});
    std::sort(places.begin(), places.end(), [](const Place& a, const Place& b) {
        return std::tie(a.address, a.rank, a.candidate) < std::tie(b.address, b.rank, b.candidate);
    });
    return places;
}

Function SymbolCollector::fold_one(std::span<const Place> places) {
    Function function;
    function.address = places.front().address;
    const size_t first = names_.all.size();
    std::unordered_set<std::string_view> seen; // of many
    for (const Place& place : places) {
        const Candidate& candidate = candidates_[place.candidate];
        if (candidate.is_label) continue;
        function.is_typed = function.is_typed || candidate.typed;
        function.is_ifunc = function.is_ifunc || candidate.is_ifunc;
        function.size = std::max(function.size, candidate.size);
        const auto begin = names_.all.begin() + static_cast<ptrdiff_t>(first);
        bool is_new = true;
        if (names_.all.size() - first < kFewNames) {
            is_new = std::find(begin, names_.all.end(), candidate.name) == names_.all.end();
        } else {
            if (seen.empty()) seen.insert(begin, names_.all.end());
            is_new = seen.insert(candidate.name).second;
        }
        if (is_new) names_.all.push_back(candidate.name);
    }
    function.names = std::span(names_.all).subspan(first);
    return function;
}

std::vector<Function> SymbolCollector::fold(std::vector<uint64_t>& labels) {
    const std::vector<Place> places = sort_candidates();
    names_.all.reserve(candidates_.size()); // spans of it stay where they are
    std::vector<Function> functions;
    functions.reserve(places.size());
    uint64_t covered = 0; // end of the typed functions so far
    for (size_t i = 0; i < places.size();) {
        size_t end = i + 1;
        while (end < places.size() && places[end].address == places[i].address) ++end;
        Function function = fold_one(std::span(places).subspan(i, end - i));
        i = end;
        if (function.names.empty() || (!function.is_typed && function.address < covered)) {
            labels.push_back(function.address);
            continue;
        }
        const Segment* segment = program_.segment_of_address(function.address);
        uint64_t within = function.address - segment->address;
        function.file_offset = segment->offset + within;
        function.size = std::min(function.size, segment->file_size - within);
        if (function.is_typed) covered = std::max(covered, function.address + function.size);
        functions.push_back(function);
    }
    return functions;
}

} // namespace speedbump::elf
