// SPDX-License-Identifier: MIT
#include "cli/results.h"

#include "cli/exit_status.h"
#include "experiment/analysis.h"
#include "report/experiment.h"
#include "util/log.h"

namespace speedbump::cli {

void add_result_options(CLI::App& command, ResultFiles& files, OutputArguments& output) {
    command.add_flag("--json", output.json, "the JSON document on stdout instead of the table");
    command.add_option("-o,--output", files.json, "write the JSON document to FILE")
        ->type_name("FILE");
    command.add_option("--html", files.html, "write a report with plots to FILE")
        ->type_name("FILE");
    add_verbosity(command, output);
}

Result<ResultWriter> ResultWriter::open(const ResultFiles& files,
                                        const OutputArguments& arguments) {
    auto output = Output::open(arguments);
    if (!output) return std::move(output).error();
    ResultWriter writer(std::move(*output));
    auto json = OutputFile::open(files.json);
    if (!json) return std::move(json).error();
    writer.json_ = std::move(*json);
    auto html = OutputFile::open(files.html);
    if (!html) return std::move(html).error();
    writer.html_ = std::move(*html);
    return writer;
}

Result<int> ResultWriter::write(const experiment::Document& document) {
    const experiment::Results results = experiment::analyse(document);
    std::string json, html; // where nobody wants them they are not made: an analysis takes seconds
    if (json_.is_open() || output_.arguments().json) json = experiment::to_json(document, results);
    if (html_.is_open()) html = report::experiment_html(document, results);
    output_.erase();
    // All of them are tried: a full disk must not take the table, too.
    const auto json_written = json_.write(json + "\n");
    const auto html_written = html_.write(html);
    if (output_.arguments().json)
        output_.write_line(json);
    else
        output_.write(report::experiment_table(document, results, output_.style()));
    for (const auto& written : {json_written, html_written, output_.finish()})
        if (!written) return written.error();
    if (!document.complete) log::error("the experiment was cut short: " + document.stopped);
    return int{results.valid && document.complete ? kDone : kFailed};
}

} // namespace speedbump::cli
