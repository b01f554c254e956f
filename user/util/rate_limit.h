// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <utility>

#include "util/clock.h"

namespace speedbump {

// Lets at most so many events pass in each period; a period begins with the first event after the
// one before. What a target can bring about without end must not fill a log.
class RateLimit {
  public:
    RateLimit(size_t max, Clock::duration period) : max_(max), period_(period) {}

    // Whether an event of this moment passes. Moments must not go back.
    bool admit(Clock::time_point now) {
        if (passed_ == 0 || now - began_ >= period_) {
            began_ = now;
            passed_ = 0;
        }
        if (passed_ == max_) {
            ++held_back_;
            return false;
        }
        ++passed_;
        return true;
    }

    // How many did not pass since this was asked last.
    size_t take_held_back() { return std::exchange(held_back_, 0); }

  private:
    size_t max_;
    Clock::duration period_;
    Clock::time_point began_{};
    size_t passed_ = 0;
    size_t held_back_ = 0;
};

} // namespace speedbump
