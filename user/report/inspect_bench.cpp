// SPDX-License-Identifier: MIT
#include "report/inspect_bench.h"

#include <fmt/format.h>

#include "report/json_parts.h"
#include "util/text.h"
#include "util/units.h"

namespace speedbump::report {

namespace {

double seconds(std::chrono::nanoseconds time) {
    return std::chrono::duration<double>(time).count();
}

double quotient(double dividend, double divisor) {
    return divisor == 0 ? 0 : dividend / divisor;
}

} // namespace

double InspectBench::success_share() const {
    return quotient(static_cast<double>(successes), static_cast<double>(attempts));
}

double InspectBench::us_per_call() const {
    return quotient(seconds(work) * 1e6, static_cast<double>(attempts));
}

double InspectBench::calls_per_second_of_work() const {
    return quotient(static_cast<double>(attempts), seconds(work));
}

double InspectBench::samples_per_second() const {
    return quotient(static_cast<double>(successes), seconds(total));
}

double InspectBench::work_efficiency() const {
    return quotient(seconds(work), seconds(total));
}

std::string inspect_bench_progress(const InspectBench& bench) {
    return fmt::format("{} attempts, {:.2f}% read, {:.2f} us a call, {} calls/s",
                       show_count(bench.attempts), bench.success_share() * 100, bench.us_per_call(),
                       show_rate(bench.calls_per_second_of_work()));
}

std::string inspect_bench_text(const InspectBench& bench) {
    std::string text = printable(bench.python) + "\n";
    auto row = [&](const char* name, const std::string& value) {
        text += fmt::format("{:<28}{:>14}\n", name, value);
    };
    if (!bench.code.empty()) row("program", bench.code);
    row("threads", bench.threads);
    row("attempts", show_count(bench.attempts));
    row("success rate", fmt::format("{:.3f}%", bench.success_share() * 100));
    row("stacks read", show_count(bench.stacks));
    row("average time per call", fmt::format("{:.2f} us", bench.us_per_call()));
    row("calls per second of work", show_rate(bench.calls_per_second_of_work()));
    row("samples per second", show_rate(bench.samples_per_second()));
    row("work efficiency", fmt::format("{:.1f}%", bench.work_efficiency() * 100));
    return text;
}

std::string inspect_bench_json(const Context& context, const InspectBench& bench) {
    nlohmann::ordered_json document = document_head(context, "speedbump/bench-inspect/1");
    document["program"] = bench.code;
    document["threads"] = bench.threads;
    document["python"] = bench.python;
    document["attempts"] = bench.attempts;
    document["successes"] = bench.successes;
    document["success_share"] = bench.success_share();
    document["stacks"] = bench.stacks;
    document["us_per_call"] = bench.us_per_call();
    document["calls_per_second_of_work"] = bench.calls_per_second_of_work();
    document["samples_per_second"] = bench.samples_per_second();
    document["work_efficiency"] = bench.work_efficiency();
    return to_line(document);
}

} // namespace speedbump::report
