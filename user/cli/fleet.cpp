// SPDX-License-Identifier: MIT
#include "cli/fleet.h"

#include "cli/options.h"
#include "targets/parser.h"

namespace speedbump::cli {

namespace {

constexpr auto kSlice = std::chrono::milliseconds(10);

} // namespace

void add_fleet_options(CLI::App& command, CLI::App& places, FleetArguments& arguments) {
    CLI::Option* at =
        command
            .add_option("--at", arguments.launches,
                        "also on this host: the beginning of a command that runs a program there, "
                        "as in 'ssh node1'; may be repeated (docs/fleet.md)")
            ->type_name("LAUNCH")
            ->allow_extra_args(false);
    command.add_option("--at-binary", arguments.binary, "what is started there [speedbump]")
        ->type_name("PATH")
        ->needs(at);
    command
        .add_option("--where", arguments.where,
                    "with --at: slow all hosts together, or each in its turn [all]")
        ->type_name("all|each")
        ->check(one_of({"all", "each"}))
        ->needs(at);
    places
        .add_option("--exe", arguments.exe,
                    "with --at: the processes there whose executable has this name")
        ->type_name("NAME")
        ->needs(at);
    for (const char* other : {"--ab", "--bisect", "--blocks", "--settle"})
        at->excludes(command.get_option(other));
}

Result<fleet::FleetRequest> complete_fleet(const FleetArguments& arguments,
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
    fleet.launches = arguments.launches;
    fleet.binary = arguments.binary;
    fleet.exe = arguments.exe;
    fleet.each = arguments.where == "each";
    fleet.progress = progress;
    fleet.version = SPEEDBUMP_VERSION;
    return fleet;
}

} // namespace speedbump::cli
