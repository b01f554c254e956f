// SPDX-License-Identifier: MIT
#include "stacks/running_account.h"

#include <utility>

namespace speedbump::stacks {

namespace {

// Periods up to which ticks are right on average, and times are not: of many processes that run for
// less than a period each some are hit, and stand for the others.
constexpr uint64_t kFew = 30;

} // namespace

void RunningAccount::settle(std::chrono::nanoseconds period,
                            const std::function<void(Sample&&, uint64_t)>& count) {
    const uint64_t samples = samples_.size();
    const auto ran = static_cast<uint64_t>((ran_ - ran_before_) / period);
    const uint64_t due = ran <= kFew ? samples : ran > counted_ ? ran - counted_ : 0;
    for (uint64_t i = 0; i < samples; ++i) {
        const uint64_t periods = (i + 1) * due / samples - i * due / samples;
        counted_ += periods;
        count(std::move(samples_[i]), periods);
    }
    samples_.clear();
}

} // namespace speedbump::stacks
