// SPDX-License-Identifier: MIT
#include "targets/matcher.h"

#include <algorithm>
#include <utility>

#include "util/text.h"

namespace speedbump::targets {

namespace {

constexpr size_t kNone = std::string_view::npos;

// The position of the `]` that closes the set whose `[` stands at `open`, or kNone. A `]` right
// after `[` or `[!` is a member, as in every shell.
size_t find_set_end(std::string_view pattern, size_t open) {
    size_t first = open + 1;
    if (first < pattern.size() && pattern[first] == '!') ++first;
    return first < pattern.size() ? pattern.find(']', first + 1) : kNone;
}

// Whether the set pattern[open..close] holds the character.
bool set_holds(std::string_view pattern, size_t open, size_t close, uint32_t code) {
    size_t at = open + 1;
    const bool negated = pattern[at] == '!';
    if (negated) ++at;
    const std::string_view members = pattern.substr(0, close);
    bool found = false;
    while (at < close && !found) {
        const Character low = decode_character(members, at);
        at += low.bytes;
        uint32_t high = low.code;
        if (at + 1 < close && members[at] == '-') {
            const Character end = decode_character(members, at + 1);
            high = end.code;
            at += 1 + end.bytes;
        }
        found = code >= low.code && code <= high;
    }
    return found != negated;
}

} // namespace

bool has_glob(std::string_view text) {
    if (text.find_first_of("*?") != kNone) return true;
    // when the first `[` has no end, no later one can have one
    const size_t open = text.find('[');
    return open != kNone && find_set_end(text, open) != kNone;
}

// Only the last `*` is ever tried again: what an earlier one could take in addition, the later one
// can take too. So the work is at most the product of both lengths.
bool glob_match(std::string_view pattern, std::string_view text) {
    size_t at = 0;
    size_t position = 0;
    size_t star = kNone;           // just after the last `*` seen
    size_t star_position = 0;      // where its rest was last tried
    size_t first_unclosed = kNone; // from here on every `[` is a literal
    while (true) {
        bool advanced = false;
        if (at < pattern.size() && pattern[at] == '*') {
            star = ++at;
            star_position = position;
            if (star == pattern.size()) return true;
            continue;
        }
        if (position == text.size()) {
            if (at == pattern.size()) return true;
        } else if (at < pattern.size()) {
            const Character wanted = decode_character(pattern, at);
            const Character found = decode_character(text, position);
            size_t set_end = kNone;
            if (wanted.code == '[' && at < first_unclosed) {
                set_end = find_set_end(pattern, at);
                if (set_end == kNone) first_unclosed = at;
            }
            if (wanted.code == '?') {
                advanced = true;
                at += 1;
            } else if (set_end != kNone) {
                advanced = set_holds(pattern, at, set_end, found.code);
                if (advanced) at = set_end + 1;
            } else {
                advanced = wanted.code == found.code;
                if (advanced) at += wanted.bytes;
            }
            if (advanced) position += found.bytes;
        }
        if (advanced) continue;
        if (star == kNone || star_position >= text.size()) return false;
        star_position += decode_character(text, star_position).bytes;
        position = star_position;
        at = star;
    }
}

bool matches(const Pattern& pattern, std::string_view text) {
    return pattern.text == text || (pattern.is_glob && glob_match(pattern.text, text));
}

bool binary_matches(const Pattern& binary, const BinaryIdentity& identity) {
    if (binary.text.find('/') != std::string::npos) return matches(binary, identity.path);
    if (binary.text == "exe") return identity.is_main_executable;
    const std::string_view path = identity.path;
    const std::string_view file_name = path.substr(path.rfind('/') + 1);
    return (!file_name.empty() && matches(binary, file_name)) ||
           (!identity.soname.empty() && matches(binary, identity.soname));
}

bool symbol_matches(const TargetLine& line, const FunctionNames& function) {
    if (line.file_offset) return *line.file_offset == function.file_offset;
    return std::any_of(function.names.begin(), function.names.end(),
                       [&line](std::string_view name) { return matches(line.name, name); });
}

bool python_matches(const TargetLine& line, std::string_view module_name,
                    std::string_view file_path, std::string_view qualified_name) {
    return line.runtime == Runtime::kPython && matches(line.name, qualified_name) &&
           (matches(line.container, module_name) || matches(line.container, file_path));
}

const TargetLine* decide_python(const TargetsFile& file, std::string_view module_name,
                                std::string_view file_path, std::string_view qualified_name) {
    const auto last =
        std::find_if(file.lines.rbegin(), file.lines.rend(), [&](const TargetLine& line) {
            return python_matches(line, module_name, file_path, qualified_name);
        });
    return last == file.lines.rend() || last->exclude ? nullptr : &*last;
}

namespace {

// Both halves; no text of Python's holds what is between them where it would matter: two functions
// that share a key have the same halves but for a NUL, which no line can hold.
std::string key_of(std::string_view container, std::string_view name) {
    std::string key;
    key.reserve(container.size() + 1 + name.size());
    key.append(container).push_back('\0');
    return key.append(name);
}

} // namespace

PythonLines::PythonLines(std::vector<TargetLine> lines) : lines_(std::move(lines)) {
    for (size_t index = 0; index < lines_.size(); ++index) {
        const TargetLine& line = lines_[index];
        if (line.runtime != Runtime::kPython) continue;
        if (line.container.is_glob || line.name.is_glob)
            globs_.push_back(index);
        else
            exact_[key_of(line.container.text, line.name.text)] = index;
    }
}

std::optional<size_t> PythonLines::decide(std::string_view module_name, std::string_view file_path,
                                          std::string_view qualified_name) const {
    std::optional<size_t> last;
    for (const std::string_view container : {module_name, file_path}) {
        const auto found = exact_.find(key_of(container, qualified_name));
        if (found != exact_.end()) last = std::max(last.value_or(0), found->second);
    }
    for (auto glob = globs_.rbegin(); glob != globs_.rend() && (!last || *glob > *last); ++glob)
        if (python_matches(lines_[*glob], module_name, file_path, qualified_name)) return *glob;
    return last;
}

} // namespace speedbump::targets
