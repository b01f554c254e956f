// SPDX-License-Identifier: MIT
#include "cli/fleet.h"

#include "cli/options.h"
#include "fleet/asked.h"
#include "targets/parser.h"
#include "util/log.h"

namespace speedbump::cli {

namespace {

constexpr auto kSlice = std::chrono::milliseconds(10);

CLI::Validator job_id() {
    return CLI::Validator(
        [](const std::string& text) {
            return fleet::is_job_id(text) ? "" : "'" + text + "' is not the id of a Slurm job";
        },
        "", "job id");
}

CLI::Validator selector() {
    return CLI::Validator(
        [](const std::string& text) {
            return text.empty() ? std::string("an empty selector matches all pods") : "";
        },
        "", "selector");
}

} // namespace

void add_fleet_options(CLI::App& command, CLI::App& places, FleetArguments& arguments) {
    CLI::Option* at =
        command
            .add_option("--at", arguments.launches,
                        "also on this host: the beginning of a command that runs a program there, "
                        "as in 'ssh node1'; may be repeated (docs/fleet.md)")
            ->type_name("LAUNCH")
            ->allow_extra_args(false);
    CLI::Option* slurm =
        command
            .add_option("--at-slurm", arguments.jobs,
                        "also on each node of this running Slurm job, which squeue and scontrol "
                        "are asked for; may be repeated")
            ->type_name("JOBID")
            ->check(job_id())
            ->allow_extra_args(false);
    CLI::Option* pods =
        command
            .add_option("--at-pods", arguments.selectors,
                        "also in each running pod that kubectl finds by this label selector, as "
                        "in app=web; may be repeated")
            ->type_name("SELECTOR")
            ->check(selector())
            ->allow_extra_args(false);
    command.add_option("--at-binary", arguments.binary, "what is started there [speedbump]")
        ->type_name("PATH");
    command
        .add_option("--where", arguments.where,
                    "with --at: slow all hosts together, or each in its turn [all]")
        ->type_name("all|each")
        ->check(one_of({"all", "each"}));
    places
        .add_option("--exe", arguments.exe,
                    "with --at: the processes there whose executable has this name")
        ->type_name("NAME");
    for (CLI::Option* one : {at, slurm, pods})
        for (const char* other : {"--ab", "--bisect", "--blocks", "--settle"})
            one->excludes(command.get_option(other));
}

Result<bool> asks_for_fleet(const FleetArguments& arguments) {
    if (!arguments.launches.empty() || !arguments.jobs.empty() || !arguments.selectors.empty())
        return true;
    for (const auto& [name, is_given] : {std::pair("--at-binary", arguments.binary.has_value()),
                                         std::pair("--exe", arguments.exe.has_value()),
                                         std::pair("--where", arguments.where.has_value())})
        if (is_given)
            return make_error(ErrorKind::kUsage,
                              std::string(name) + " requires --at, --at-slurm or --at-pods");
    return false;
}

Result<std::vector<fleet::Launch>> find_hosts(const FleetArguments& arguments) {
    std::vector<fleet::Launch> launches;
    for (const std::string& launch : arguments.launches) launches.push_back({launch, ""});
    for (const std::string& job : arguments.jobs) {
        auto nodes = fleet::ask_slurm(job);
        if (!nodes) return nodes;
        launches.insert(launches.end(), nodes->begin(), nodes->end());
    }
    for (const std::string& selector : arguments.selectors) {
        std::vector<std::string> left_out;
        auto pods = fleet::ask_kubernetes(selector, left_out);
        if (!pods) return pods;
        for (const std::string& one : left_out) log::warning(one + ", and no part of this");
        launches.insert(launches.end(), pods->begin(), pods->end());
    }
    return launches;
}

Result<fleet::FleetRequest> complete_fleet(const FleetArguments& arguments,
                                           std::vector<fleet::Launch> launches,
                                           experiment::Request request,
                                           const std::vector<fleet::Combination>& progress) {
    fleet::FleetRequest fleet;
    if (request.slice.count() == 0) request.slice = kSlice;
    if (request.slice > experiment::kLongestSwitched ||
        request.slice < experiment::kShortestSwitched)
        return make_error(
            ErrorKind::kUsage,
            "--slice: on many hosts the clock switches all targets at once, every 1ms to " +
                targets::format_duration(experiment::kLongestSwitched));
    for (const experiment::ProgressSpec& spec : request.progress)
        if (!is_told_by_slice(spec))
            return make_error(ErrorKind::kUsage,
                              "--at: progress of " + spec.text + " can't be told by slice");
    for (const targets::TargetLine& line : request.file.lines)
        if (line.options.pid)
            return make_error(ErrorKind::kUsage,
                              "--at: a line of the targets file has a pid=, which is of one host");
    fleet.experiment = std::move(request);
    fleet.launches = std::move(launches);
    if (arguments.binary) fleet.binary = *arguments.binary;
    fleet.exe = arguments.exe;
    fleet.each = arguments.where == "each";
    fleet.progress = progress;
    fleet.version = SPEEDBUMP_VERSION;
    return fleet;
}

} // namespace speedbump::cli
