// SPDX-License-Identifier: MIT
#include "cli/live_report.h"

#include <fmt/format.h>

#include <cstdio>
#include <thread>

#include "cli/results.h"
#include "report/experiment.h"

namespace speedbump::cli {

namespace {

// Pages ask each second.
constexpr auto kLastFetch = std::chrono::seconds(3);
constexpr auto kTick = std::chrono::milliseconds(50);

} // namespace

Result<LiveReport> LiveReport::open(std::optional<uint16_t> port,
                                    const experiment::Request& request) {
    LiveReport live;
    if (!port) return live;
    auto server = control::PageServer::open(*port);
    if (!server)
        return std::move(server).error().with_context("--live").with_hint(
            "another port, or --live 0 for any that is free");
    live.server_ = std::move(*server);
    live.limit_s_ = std::chrono::duration<double>(request.time).count();
    live.server_->set_page(report::experiment_live_page());
    fmt::print(stderr, "speedbump: the report as it grows: {}\n", live.server_->address());
    return live;
}

void LiveReport::show(const experiment::Document& document, const experiment::Results& results) {
    if (!server_) return;
    experiment::Document shown = document;
    set_origin(shown);
    const double elapsed = std::chrono::duration<double>(Clock::now() - begun_).count();
    server_->set_data(
        report::experiment_live_data(shown, results, report::Live{elapsed, limit_s_}));
}

void LiveReport::end(const experiment::Document& document,
                     const std::function<bool()>& stop_asked) {
    if (!server_) return;
    server_->set_data(
        report::experiment_live_data(document, experiment::analyse(document), std::nullopt));
    const Clock::time_point until = Clock::now() + kLastFetch;
    while (server_->has_reader() && server_->asked_for_data() == 0 && Clock::now() < until &&
           (!stop_asked() || !document.complete))
        std::this_thread::sleep_for(kTick);
}

} // namespace speedbump::cli
