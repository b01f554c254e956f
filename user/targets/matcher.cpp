// SPDX-License-Identifier: MIT
#include "targets/matcher.h"

#include <algorithm>
#include <functional>
#include <map>
#include <utility>

#include "targets/glob.h"

namespace speedbump::targets {

bool has_glob(std::string_view text) {
    if (text.find_first_of("*?") != std::string_view::npos) return true;
    // when the first `[` has no end, no later one can have one
    const size_t open = text.find('[');
    return open != std::string_view::npos &&
           glob::find_set_end({text.data(), text.size()}, open) != glob::kNone;
}

bool glob_match(std::string_view pattern, std::string_view text) {
    return glob::match({pattern.data(), pattern.size()}, {text.data(), text.size()});
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

// Two functions that share a key have the same parts but for a NUL, which no line can hold.
std::string key_of(std::string_view container, std::string_view name) {
    std::string key;
    key.reserve(container.size() + 1 + name.size());
    key.append(container).push_back('\0');
    return key.append(name);
}

// How much of the half a text has to begin with, to match: npos where it is all of it.
size_t literal_part(const Pattern& pattern) {
    return pattern.is_glob ? pattern.text.find_first_of("*?[") : std::string_view::npos;
}

bool is_as_long(std::string_view text, size_t part) {
    return part == std::string_view::npos || text.size() >= part;
}

} // namespace

PythonLines::PythonLines(std::vector<TargetLine> lines) : lines_(std::move(lines)) {
    std::map<std::pair<size_t, size_t>, size_t> known; // of shapes_
    for (size_t index = 0; index < lines_.size(); ++index) {
        const TargetLine& line = lines_[index];
        if (line.runtime != Runtime::kPython) continue;
        const size_t container = literal_part(line.container);
        const size_t name = literal_part(line.name);
        const auto [place, is_new] = known.try_emplace({container, name}, shapes_.size());
        if (is_new) shapes_.push_back({container, name});
        Shape& shape = shapes_[place->second];
        shape.last = index;
        shape
            .lines[key_of(line.container.text.substr(0, container), line.name.text.substr(0, name))]
            .push_back(index);
    }
    std::ranges::sort(shapes_, std::ranges::greater(), &Shape::last);
}

std::optional<size_t> PythonLines::decide(std::string_view module_name, std::string_view file_path,
                                          std::string_view qualified_name) const {
    std::optional<size_t> last;
    for (const Shape& shape : shapes_) {
        if (last && *last >= shape.last) break;
        if (!is_as_long(qualified_name, shape.name)) continue;
        const std::string_view name = qualified_name.substr(0, shape.name);
        for (const std::string_view container : {module_name, file_path}) {
            if (!is_as_long(container, shape.container)) continue;
            const auto found = shape.lines.find(key_of(container.substr(0, shape.container), name));
            if (found == shape.lines.end()) continue;
            const std::vector<size_t>& lines = found->second;
            for (auto line = lines.rbegin(); line != lines.rend() && (!last || *line > *last);
                 ++line)
                if (python_matches(lines_[*line], module_name, file_path, qualified_name))
                    last = *line;
        }
    }
    return last;
}

} // namespace speedbump::targets
