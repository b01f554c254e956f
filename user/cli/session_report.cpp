// SPDX-License-Identifier: MIT
#include "cli/session_report.h"

#include <fmt/format.h>
#include <unistd.h>

#include "report/text.h"
#include "util/log.h"

namespace speedbump::cli {

lifecycle::WatchRequest watch_request(const SessionArguments& arguments) {
    return {arguments.targets_path, arguments.session, arguments.stats_interval,
            arguments.control_fifo};
}

Result<void> SessionReport::open() {
    auto output = Output::open(arguments_.output);
    if (!output) return std::move(output).error();
    output_ = std::move(*output);
    return {};
}

void SessionReport::warn(const std::string& text) {
    if (!warnings_.admit(Clock::now())) return;
    output_->erase();
    report_held_back();
    log::warning(text);
}

void SessionReport::report_held_back() {
    const size_t count = warnings_.take_held_back();
    if (count == 0) return;
    log::warning(fmt::format("{} more warnings were not shown: at most {} are in a minute", count,
                             kMaxWarnings));
}

void SessionReport::matched(const session::Snapshot& snapshot, const targets::TargetsFile& file) {
    context_ = make_context(command_);
    context_.engine = snapshot.engine;
    if (arguments_.output.json) {
        output_->write_line(
            report::attach_matched_json(context_, arguments_.session, snapshot, file));
    } else if (!arguments_.output.quiet) {
        output_->write(report::match_table(snapshot, file, output_->style()));
    }
}

bool SessionReport::wants_samples() const {
    return (arguments_.output.json || output_->animated()) && output_->takes_more();
}

void SessionReport::sample(const session::Snapshot& before, const session::Snapshot& now,
                           const targets::TargetsFile& file) {
    if (arguments_.output.json) {
        output_->write_line(report::attach_sample_json(before, now, file));
    } else if (output_->animated()) {
        output_->redraw(report::live_table(before, now, file, output_->style()));
    }
}

std::string SessionReport::status(const session::Snapshot& snapshot,
                                  const targets::TargetsFile& file) const {
    return report::session_json(context_, ::getpid(), arguments_.session, snapshot, file);
}

void SessionReport::final(const session::Snapshot& snapshot, const targets::TargetsFile& file,
                          const std::string& reason) {
    output_->erase();
    report_held_back();
    if (arguments_.output.json) {
        output_->write_line(
            report::attach_final_json(context_, arguments_.session, snapshot, file, reason));
    } else {
        output_->write(
            report::final_table(snapshot, file, output_->style(), arguments_.output.verbose));
    }
}

Result<void> SessionReport::finish() {
    return output_->finish();
}

} // namespace speedbump::cli
