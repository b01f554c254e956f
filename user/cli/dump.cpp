// SPDX-License-Identifier: MIT
#include <algorithm>
#include <fstream>
#include <memory>
#include <optional>

#include "cli/command.h"
#include "cli/exit_status.h"
#include "cli/look.h"
#include "cli/output.h"
#include "process/ownership.h"
#include "report/stacks.h"
#include "stacks/stack_reader.h"
#include "util/log.h"

namespace speedbump::cli {

namespace {

struct DumpArguments {
    std::vector<pid_t> pids;
    bool follow_children = true;
    OutputArguments output;
};

std::string task_file(pid_t pid, pid_t tid, const char* name) {
    std::ifstream file("/proc/" + std::to_string(pid) + "/task/" + std::to_string(tid) + "/" +
                       name);
    std::string text;
    std::getline(file, text);
    return text;
}

std::string state_name(pid_t pid, pid_t tid) {
    const std::string stat = task_file(pid, tid, "stat");
    const size_t end = stat.rfind(')'); // a name may hold anything
    switch (end == std::string::npos || end + 2 >= stat.size() ? '\0' : stat[end + 2]) {
        case 'R':
            return "running";
        case 'S':
            return "sleeping";
        case 'D':
            return "waiting for a device";
        case 'T':
            return "stopped";
        case 't':
            return "stopped by a debugger";
        default:
            return "ending";
    }
}

// `readers` keeps what the stacks point to.
Result<report::DumpedProcess> dump_process(pid_t pid, std::vector<stacks::StackReader>& readers) {
    // Once only: there is time for the most restless stack. One of two trees of empty functions
    // holds still often enough only when an interrupt comes: 6 of 100 take longer than 200 ms.
    stacks::ReaderOptions options;
    options.patience = std::chrono::seconds(4);
    auto reader = stacks::StackReader::open(pid, options);
    if (!reader) return std::move(reader).error();
    if (auto sampled = reader->sample(); !sampled) return std::move(sampled).error();
    readers.push_back(std::move(*reader));
    report::DumpedProcess process{pid, readers.back().interpreter(), {}};
    for (const stacks::ThreadStack* stack : readers.back().stacks())
        process.threads.push_back(
            {*stack, task_file(pid, stack->tid, "comm"), state_name(pid, stack->tid)});
    return process;
}

Result<int> dump(const DumpArguments& arguments) {
    auto output = Output::open(arguments.output);
    if (!output) return std::move(output).error();
    if (auto ours = process::require_ours(arguments.pids); !ours) return std::move(ours).error();
    std::vector<stacks::StackReader> readers;
    std::vector<report::DumpedProcess> processes;
    std::vector<pid_t> pids = arguments.pids;
    if (arguments.follow_children)
        for (pid_t pid : with_descendants(arguments.pids))
            if (std::find(pids.begin(), pids.end(), pid) == pids.end()) pids.push_back(pid);
    std::optional<Error> failure; // of a process that was named
    bool all_read = true;
    for (pid_t pid : pids) {
        auto process = dump_process(pid, readers);
        if (process) {
            for (const report::DumpedThread& thread : process->threads)
                all_read = all_read && thread.stack.fault == stacks::StackFault::kFine;
            processes.push_back(std::move(*process));
            continue;
        }
        // A tree may well have other programs in it.
        const bool was_named =
            std::find(arguments.pids.begin(), arguments.pids.end(), pid) != arguments.pids.end();
        if (was_named && !failure) failure = std::move(process).error();
    }
    if (processes.empty() && failure) return std::move(*failure);
    if (failure) log::warning(failure->message);
    if (arguments.output.json)
        output->write_line(report::stacks_json(make_context("dump"), processes));
    else
        output->write(report::stacks_text(processes));
    if (auto written = output->finish(); !written) return std::move(written).error();
    return int{all_read ? kDone : kFailed};
}

} // namespace

void add_dump(CLI::App& app, Action& action) {
    auto arguments = std::make_shared<DumpArguments>();
    CLI::App* command = app.add_subcommand("dump", "print the Python stacks of running processes");
    add_pids(*command, arguments->pids)->required();
    add_no_children(*command, arguments->follow_children);
    add_output_options(*command, arguments->output);
    command->footer(
        "The processes are only read: not stopped, changed or written to. CPython 3.10 to 3.15.\n"
        "Example:\n"
        "  speedbump dump --pid $(pidof -s gunicorn)");
    command->final_callback(
        [arguments, &action] { action = [arguments] { return dump(*arguments); }; });
}

} // namespace speedbump::cli
