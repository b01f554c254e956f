// SPDX-License-Identifier: MIT
#include "cli/gate.h"

#include "cli/options.h"
#include "report/gate.h"

namespace speedbump::cli {

void add_gate_options(CLI::App& command, GateArguments& arguments) {
    CLI::Option* limit =
        command
            .add_option("--fail-if-worse", arguments.limit,
                        "end with status 6 when b takes SHARE longer (1%), with 7 when that cannot "
                        "be told")
            ->type_name("SHARE");
    command.add_option("--junit", arguments.junit, "write what is judged to FILE, as JUnit XML")
        ->type_name("FILE")
        ->needs(limit);
}

Result<Gate> Gate::open(const GateArguments& arguments, const std::string& command) {
    Gate gate;
    gate.suite_ = "speedbump." + command;
    if (arguments.limit) {
        const auto share = parse_share("--fail-if-worse", *arguments.limit);
        if (!share) return share.error();
        gate.limit_ = *share;
    }
    auto junit = OutputFile::open(arguments.junit);
    if (!junit) return std::move(junit).error();
    gate.junit_ = std::move(*junit);
    return gate;
}

Result<int> Gate::judge(const experiment::Changes& changes) {
    if (!limit_) return int{kDone};
    if (auto written = junit_.write(report::gate_junit(changes, *limit_, suite_)); !written)
        return std::move(written).error();
    switch (experiment::judge(changes, *limit_)) {
        case experiment::Judgement::kNotWorse:
            return int{kDone};
        case experiment::Judgement::kWorse:
            return int{kWorse};
        case experiment::Judgement::kUndecided:
            return int{kUndecided};
    }
    return int{kUndecided};
}

} // namespace speedbump::cli
