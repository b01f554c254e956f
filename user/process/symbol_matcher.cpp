// SPDX-License-Identifier: MIT
#include "process/symbol_matcher.h"

#include <algorithm>

#include "elf/demangle.h"
#include "targets/matcher.h"

namespace speedbump::process {

namespace {

// With more exact lines than this, demangling and one hash look-up cost less than trying a word of
// each line.
constexpr size_t kFewLines = 8;

// Words that demanglers write of their own accord, so that a mangled name need not hold them.
// tests/unit/process_resolver_test.cpp checks the list against libstdc++.
constexpr std::string_view kInventedWords =
    " Class GTT Imaginary TLS VTT _BitInt _Complex _Float _Float128 _Float16 _Float32 "
    "_Float64 _Imaginary __float128 __fp16 __ibm128 __int128 __vector abi alignof "
    "allocator and anonymous arg array as atomic auto basic_iostream basic_istream "
    "basic_ostream basic_string bfloat16_t block bool char char16_t char32_t char8_t "
    "char_traits clone closure co_await complex const const_cast constraint construction "
    "covariant crate decimal128 decimal32 decimal64 decltype default delete double dyn "
    "dynamic_cast enable_if extern f32 f64 false float fn for function global guard half "
    "hidden i128 i16 i32 i64 i8 if impl in init initializer int iostream isize istream "
    "java lambda long mut name namespace new noexcept non nullptr nullptr_t operator "
    "ostream pack parameter pixel pointer reference reinterpret_cast requires restrict "
    "return shim short signed sizeof static_cast std str string template temporary this "
    "thread throw thunk to transaction true type typeid typeinfo typename u u128 u16 u32 "
    "u64 u8 unnamed unsafe unsigned usize vector virtual void volatile vtable wchar_t "
    "wrapper ";

bool is_word_byte(char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_';
}

bool is_invented(std::string_view word) {
    // numbers are counted (template arguments, lambdas) or written in another base
    if (word.front() >= '0' && word.front() <= '9') return true;
    return kInventedWords.find(" " + std::string(word) + " ") != std::string_view::npos;
}

// Whether an invented word, or the suffix of a number (5ul), may hold this part of a word.
bool is_part_of_invented(std::string_view part) {
    constexpr size_t kLongestSuffix = 3;
    return part.size() <= kLongestSuffix || part.front() <= '9' ||
           kInventedWords.find(part) != std::string_view::npos;
}

} // namespace

std::string_view required_word(std::string_view pattern, bool is_glob) {
    // Rust writes other than ASCII letters in a code that splits words up
    if (std::any_of(pattern.begin(), pattern.end(), [](char c) { return (c & 0x80) != 0; })) {
        return {};
    }
    std::string_view longest;
    size_t at = 0;
    while (at < pattern.size()) {
        if (is_glob && pattern[at] == '[') return longest; // members are alternatives, not words
        size_t end = at;
        while (end < pattern.size() && is_word_byte(pattern[end])) ++end;
        const std::string_view word = pattern.substr(at, end - at);
        const auto is_wildcard = [&](size_t place) {
            return is_glob &&
                   (pattern[place] == '*' || pattern[place] == '?' || pattern[place] == '[');
        };
        const bool is_cut =
            (at > 0 && is_wildcard(at - 1)) || (end < pattern.size() && is_wildcard(end));
        if (word.size() > std::max<size_t>(longest.size(), 1) && !is_invented(word) &&
            !(is_cut && is_part_of_invented(word))) {
            longest = word;
        }
        at = std::max(end, at + 1);
    }
    return longest;
}

SymbolMatcher::SymbolMatcher(const targets::TargetsFile& file, std::span<const size_t> lines,
                             std::vector<bool>& matched)
    : matched_(matched) {
    for (const size_t index : lines) {
        const targets::TargetLine& line = file.lines[index];
        const std::string_view pattern = line.name.text;
        if (line.file_offset) {
            offset_lines_.push_back(index);
            offsets_[*line.file_offset].push_back(index);
            continue;
        }
        exact_[pattern].push_back(index); // also of globs: operator[](int)
        const GlobLine with_word{index, pattern, required_word(pattern, line.name.is_glob)};
        exact_words_.push_back(with_word);
        if (line.name.is_glob) globs_.push_back(with_word);
    }
    std::reverse(globs_.begin(), globs_.end());
    many_exact_ = exact_words_.size() > kFewLines;
}

// Whether it still matters if the line matches: it would win, or its user has to be told.
bool SymbolMatcher::is_wanted(const Best& best, size_t line) const {
    return !best.found || line > best.line || !matched_[line];
}

void SymbolMatcher::note(Best& best, size_t line, std::string_view alias) {
    matched_[line] = true;
    if (best.found && line <= best.line) return;
    best = {true, line, alias};
}

void SymbolMatcher::match_name(Best& best, std::string_view name, std::string_view alias) {
    if (const auto found = exact_.find(name); found != exact_.end()) {
        for (const size_t line : found->second) note(best, line, alias);
    }
    for (const GlobLine& glob : globs_) {
        if (is_wanted(best, glob.index) && targets::glob_match(glob.pattern, name)) {
            note(best, glob.index, alias);
        }
    }
}

bool SymbolMatcher::may_match_demangled(const Best& best, std::string_view mangled) const {
    if (many_exact_) return true;
    return std::any_of(exact_words_.begin(), exact_words_.end(), [&](const GlobLine& line) {
        return is_wanted(best, line.index) && mangled.find(line.word) != std::string_view::npos;
    });
}

std::optional<SymbolMatcher::Decision> SymbolMatcher::decide(const elf::Function& function) {
    Best best;
    if (const auto found = offsets_.find(function.file_offset); found != offsets_.end()) {
        for (const size_t line : found->second) note(best, line, function.names.front());
    }
    for (const std::string_view name : function.names) match_name(best, name, name);
    Decision decision;
    for (const std::string_view name : function.names) {
        if (!elf::is_mangled(name) || !may_match_demangled(best, name)) continue;
        elf::Demangled forms = elf::demangle(name);
        if (forms.with_signature.empty()) continue;
        match_name(best, forms.with_signature, name);
        match_name(best, forms.without_signature, name);
        if (best.found && best.alias == name) {
            decision.alias = name;
            decision.demangled = std::move(forms.with_signature);
        }
    }
    if (!best.found) return std::nullopt;
    if (decision.alias != best.alias) decision.demangled.clear();
    decision.line_index = best.line;
    decision.alias = best.alias;
    return decision;
}

std::string SymbolMatcher::Decision::name() const {
    if (!demangled.empty()) return demangled;
    std::string shown = elf::demangle(alias).with_signature;
    return shown.empty() ? std::string(alias) : shown;
}

} // namespace speedbump::process
