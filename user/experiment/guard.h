// SPDX-License-Identifier: MIT
#pragma once

#include <optional>
#include <string>

#include "experiment/document.h"
#include "experiment/pace.h"
#include "experiment/subject.h"

namespace speedbump::experiment {

// Whether the delays of all targets together take too much, by readings one after the other.
class Guard {
  public:
    // Of max_slowdown and max_cpu, which may be set until the first look.
    explicit Guard(const Settings& settings) : settings_(settings) {}

    // Delays begin anew: nothing before counts.
    void begin();
    // Why all delays must end at once, if they must. `period` of the first progress point without
    // delay, in ns; 0: not known.
    std::optional<std::string> look(Subject::Readings now, double period);

  private:
    const Settings& settings_;
    std::optional<Subject::Readings> last_;
    SlowdownWatch slowdown_;
};

} // namespace speedbump::experiment
