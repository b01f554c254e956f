// SPDX-License-Identifier: MIT
#include "fleet/listed.h"

#include <fmt/format.h>

#include <algorithm>

#include "util/text.h"

namespace speedbump::fleet {

namespace {

std::vector<std::string_view> split(std::string_view text, char mark) {
    std::vector<std::string_view> parts;
    for (size_t at = 0; at <= text.size();) {
        const size_t end = std::min(text.find(mark, at), text.size());
        parts.push_back(text.substr(at, end - at));
        at = end + 1;
    }
    return parts;
}

// Lines that are not empty.
std::vector<std::string_view> lines_of(std::string_view text) {
    std::vector<std::string_view> lines = split(text, '\n');
    std::erase_if(lines, [](std::string_view line) { return line.empty(); });
    return lines;
}

bool is_digit(char one) {
    return one >= '0' && one <= '9';
}

// What names of nodes, namespaces and pods are made of: it becomes a word of a command.
bool is_name(std::string_view text) {
    const auto fits = [](char one) {
        return is_digit(one) || (one >= 'a' && one <= 'z') || (one >= 'A' && one <= 'Z') ||
               one == '-' || one == '.' || one == '_';
    };
    return !text.empty() && text[0] != '-' && std::all_of(text.begin(), text.end(), fits);
}

Error not_understood(const std::string& program, std::string_view line) {
    return make_error(ErrorKind::kInvalid, program + " says what is not understood: '" +
                                               printable(std::string(line)) + "'")
        .with_hint("name the hosts one by one, with --at");
}

} // namespace

bool is_job_id(std::string_view text) {
    const auto digits = [&text] {
        const size_t before = text.size();
        while (!text.empty() && is_digit(text[0])) text.remove_prefix(1);
        return text.size() < before;
    };
    if (!digits()) return false;
    if (text.empty()) return true;
    if (text[0] != '_' && text[0] != '+') return false;
    text.remove_prefix(1);
    return digits() && text.empty();
}

Result<Job> read_job(std::string_view text) {
    const auto lines = lines_of(text);
    if (lines.empty()) return make_error(ErrorKind::kNotFound, "Slurm knows no such job");
    if (lines.size() > 1)
        return make_error(ErrorKind::kUsage,
                          fmt::format("these are {} jobs, of an array or a heterogeneous job",
                                      lines.size()))
            .with_hint("name the one that is meant, such as 42_3 or 42+1");
    const auto columns = split(lines[0], '|');
    if (columns.size() != 3 || !is_job_id(columns[0])) return not_understood("squeue", lines[0]);
    if (columns[1] != "RUNNING")
        return make_error(ErrorKind::kNotFound,
                          "the job is " + printable(std::string(columns[1])) + ", not RUNNING")
            .with_hint("an experiment needs a job that runs");
    if (columns[2].empty()) return not_understood("squeue", lines[0]);
    return Job{std::string(columns[0]), std::string(columns[2])};
}

Result<std::vector<Launch>> read_nodes(const Job& job, std::string_view text) {
    std::vector<Launch> launches;
    for (const std::string_view node : lines_of(text)) {
        if (!is_name(node)) return not_understood("scontrol", node);
        launches.push_back({fmt::format("srun --overlap --jobid {} -w {} -N1 -n1", job.id, node),
                            std::string(node)});
    }
    if (launches.empty()) return make_error(ErrorKind::kNotFound, "scontrol names no node of it");
    return launches;
}

Result<std::vector<Launch>> read_pods(std::string_view text, std::vector<std::string>& left_out) {
    std::vector<Launch> launches;
    for (const std::string_view line : lines_of(text)) {
        const auto columns = split(line, '|');
        if (columns.size() != 4 || !is_name(columns[0]) || !is_name(columns[1]))
            return not_understood("kubectl", line);
        const std::string pod(columns[1]);
        if (columns[2] != "Running" || !columns[3].empty())
            left_out.push_back(
                "pod " + pod + " is " +
                (columns[3].empty() ? printable(std::string(columns[2])) : "being deleted"));
        else
            launches.push_back({fmt::format("kubectl exec -i -n {} {} --", columns[0], pod), pod});
    }
    if (!launches.empty()) return launches;
    if (left_out.empty()) return make_error(ErrorKind::kNotFound, "no pod matches");
    return make_error(
        ErrorKind::kNotFound,
        "no pod that matches is running: " + left_out[0] +
            (left_out.size() > 1 ? fmt::format(", and {} more", left_out.size() - 1) : ""));
}

} // namespace speedbump::fleet
