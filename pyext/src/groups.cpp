// SPDX-License-Identifier: MIT
#include "groups.h"

#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <utility>

namespace speedbump::python {

using nlohmann::json;

std::optional<uint32_t> Grouping::target_of(uint32_t line, std::string_view module,
                                            std::string_view file, std::string_view name) const {
    if (line >= taken_apart.size() || !taken_apart[line]) return line;
    const std::optional<size_t> group = lines.decide(module, file, name);
    if (!group || lines.lines()[*group].exclude) return std::nullopt;
    return targets[*group];
}

Result<std::string> read_text(int fd) {
    struct stat status {};
    if (::fstat(fd, &status) != 0) return errno_error("fstat of the targets", errno);
    if (status.st_size < 0 || static_cast<size_t>(status.st_size) > targets::kMaxFileBytes) {
        return make_error(ErrorKind::kInvalid, "the targets file is too large");
    }
    std::string text(static_cast<size_t>(status.st_size), '\0');
    size_t done = 0;
    while (done < text.size()) {
        const ssize_t got =
            ::pread(fd, text.data() + done, text.size() - done, static_cast<off_t>(done));
        if (got < 0 && errno == EINTR) continue;
        if (got < 0) return errno_error("read of the targets", errno);
        if (got == 0) return make_error(ErrorKind::kInvalid, "the targets file shrank");
        done += static_cast<size_t>(got);
    }
    return text;
}

Result<Grouping> read_grouping(int fd, uint32_t number, uint32_t target_count) {
    Result<std::string> text = read_text(fd);
    if (!text) return text.error();
    const json message = json::parse(*text);
    Grouping grouping;
    grouping.number = number;
    for (const json& line : message.at("lines")) {
        const auto index = line.get<uint32_t>();
        if (index >= target_count)
            return make_error(ErrorKind::kInvalid, "the groups are of a line that there is not");
        if (grouping.taken_apart.size() <= index) grouping.taken_apart.resize(index + 1);
        grouping.taken_apart[index] = true;
    }
    std::vector<targets::TargetLine> lines;
    for (const json& group : message.at("groups")) {
        targets::TargetLine line;
        line.container = {group.at(0).get<std::string>(), group.at(1).get<bool>()};
        line.name = {group.at(2).get<std::string>(), group.at(3).get<bool>()};
        line.exclude = group.at(4).is_null();
        const auto target = line.exclude ? 0 : group.at(4).get<uint32_t>();
        if (target >= target_count)
            return make_error(ErrorKind::kInvalid, "a group is of a target that there is not");
        lines.push_back(std::move(line));
        grouping.targets.push_back(target);
    }
    grouping.lines = targets::PythonLines(std::move(lines));
    return grouping;
}

} // namespace speedbump::python
