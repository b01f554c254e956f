// SPDX-License-Identifier: MIT
#include "experiment/guard.h"

#include <fmt/format.h>

#include <utility>

#include "util/clock.h"

namespace speedbump::experiment {

void Guard::begin() {
    last_.reset();
    slowdown_ = {};
}

std::optional<std::string> Guard::look(Subject::Readings now, double period) {
    const auto last = std::exchange(last_, std::move(now));
    const uint64_t units = last_->progress.empty() ? 0 : last_->progress[0].units;
    const auto slowdown = slowdown_.look(last_->at_ns, units, settings_.max_slowdown, period);
    if (!last || last_->at_ns <= last->at_ns) return std::nullopt;
    // As it was measured: in a schedule a hit's time has no probe in it, and its doses may be
    // shorter than one takes.
    nanoseconds took{0};
    for (size_t target = 0; target < last_->targets.size(); ++target)
        took += last_->targets[target].took - last->targets[target].took;
    const double cpus = ns(took) / static_cast<double>(last_->at_ns - last->at_ns);
    if (cpus > settings_.max_cpu)
        return fmt::format("they took {:.2f} CPUs, more than --max-cpu {:.2f}", cpus,
                           settings_.max_cpu);
    if (slowdown)
        return fmt::format("they slowed the service by {:.0f}%, more than --max-slowdown {:.0f}%",
                           *slowdown * 100, settings_.max_slowdown * 100);
    return std::nullopt;
}

} // namespace speedbump::experiment
