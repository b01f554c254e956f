// SPDX-License-Identifier: MIT
#include <memory>

#include "cli/command.h"
#include "cli/exit_status.h"
#include "cli/gate.h"
#include "cli/results.h"
#include "experiment/analysis.h"
#include "experiment/comparison.h"
#include "report/experiment.h"
#include "report/gate.h"

namespace speedbump::cli {

namespace {

struct ReportArguments {
    std::vector<std::string> paths;
    ResultFiles files;
    OutputArguments output;
};

Result<int> run(const ReportArguments& arguments) {
    std::vector<experiment::Document> documents;
    for (const std::string& path : arguments.paths) {
        auto document = experiment::load_document(path);
        if (!document) return std::move(document).error();
        documents.push_back(std::move(*document));
    }
    auto merged = experiment::merge(documents);
    if (!merged) return std::move(merged).error();
    auto writer = ResultWriter::open(arguments.files, arguments.output);
    if (!writer) return std::move(writer).error();
    return writer->write(*merged);
}

struct CompareArguments {
    std::string a, b;
    GateArguments gate;
    OutputArguments output;
};

Result<int> run(const CompareArguments& arguments) {
    const auto a = experiment::load_document(arguments.a);
    if (!a) return a.error();
    const auto b = experiment::load_document(arguments.b);
    if (!b) return b.error();
    const auto comparison = experiment::compare(*a, *b);
    if (!comparison) return comparison.error();
    const auto changes = experiment::changes_between(*a, *b);
    if (!changes) return changes.error();
    auto output = Output::open(arguments.output);
    if (!output) return std::move(output).error();
    auto gate = Gate::open(arguments.gate, "compare");
    if (!gate) return std::move(gate).error();
    if (arguments.output.json) {
        output->write_line(report::comparison_json(*comparison, *changes, gate->limit()));
    } else {
        output->write(report::comparison_table(*comparison, output->style()));
        output->write("\n" + report::gate_text(*changes, gate->limit(), output->style()));
    }
    auto status = gate->judge(*changes);
    if (auto written = output->finish(); !written) return std::move(written).error();
    return status;
}

} // namespace

void add_report(CLI::App& app, Action& action) {
    auto arguments = std::make_shared<ReportArguments>();
    CLI::App* command =
        app.add_subcommand("report", "show results of experiments again, several as one");
    command->add_option("results", arguments->paths, "JSON documents of `experiment -o`")
        ->type_name("RESULT")
        ->required();
    add_result_options(*command, arguments->files, arguments->output);
    command->footer(
        "Examples:\n"
        "  speedbump report result.json --html report.html\n"
        "  speedbump report host1.json host2.json -o both.json");
    command->final_callback(
        [arguments, &action] { action = [arguments] { return run(*arguments); }; });
}

void add_compare(CLI::App& app, Action& action) {
    auto arguments = std::make_shared<CompareArguments>();
    CLI::App* command =
        app.add_subcommand("compare", "test the results of two experiments against each other");
    command->add_option("a", arguments->a, "JSON document of `experiment -o`")
        ->type_name("A")
        ->required();
    command->add_option("b", arguments->b, "another one")->type_name("B")->required();
    add_gate_options(*command, arguments->gate);
    add_output_options(*command, arguments->output);
    command->footer(
        "Examples:\n"
        "  speedbump compare before.json after.json\n"
        "  speedbump compare --fail-if-worse 1% --junit pace.xml before.json after.json");
    command->final_callback(
        [arguments, &action] { action = [arguments] { return run(*arguments); }; });
}

} // namespace speedbump::cli
