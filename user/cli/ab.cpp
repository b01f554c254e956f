// SPDX-License-Identifier: MIT
#include "cli/ab.h"

#include "cli/exit_status.h"
#include "cli/output.h"
#include "lifecycle/signals.h"
#include "report/pair.h"
#include "util/log.h"

namespace speedbump::cli {

namespace {

Result<experiment::PairDocument> measure(const AbArguments& arguments, Output& output) {
    auto signals = lifecycle::Signals::install();
    if (!signals) return std::move(signals).error();
    experiment::PairHooks hooks;
    hooks.warn = [&](const std::string& text) {
        output.erase();
        log::warning(text);
    };
    hooks.say = [&](const std::string& text) { output.say(text); };
    hooks.stop_asked = [&] {
        signals->drain();
        return signals->stop_signal() != 0;
    };
    hooks.wake_fd = signals->fd();
    hooks.after_second = [&](const experiment::PairDocument& document) {
        if (output.animated()) output.redraw(report::pair_progress(document));
    };
    return experiment::run_pair(arguments.request, hooks);
}

} // namespace

Result<int> run_ab(const AbArguments& arguments) {
    // Before the services are touched: a result that cannot be written is none.
    auto output = Output::open(arguments.output);
    if (!output) return std::move(output).error();
    auto file = OutputFile::open(arguments.files.json);
    if (!file) return std::move(file).error();
    auto gate = Gate::open(arguments.gate, "experiment.ab");
    if (!gate) return std::move(gate).error();
    auto document = measure(arguments, *output);
    if (!document) return std::move(document).error();
    set_origin(*document);

    const experiment::Changes changes = changes_between(*document);
    const std::string json = report::pair_json(*document, changes, gate->limit());
    output->erase();
    const auto file_written = file->write(json + "\n");
    if (arguments.output.json)
        output->write_line(json);
    else
        output->write(report::pair_text(*document, changes, gate->limit(), output->style()));
    auto status = gate->judge(changes);
    for (const auto& written : {file_written, output->finish()})
        if (!written) return written.error();
    if (!document->complete) log::error("the experiment was cut short: " + document->stopped);
    if (status && !gate->limit()) return int{document->complete ? kDone : kFailed};
    return status;
}

} // namespace speedbump::cli
