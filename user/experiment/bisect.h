// SPDX-License-Identifier: MIT
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "experiment/ladder.h"
#include "experiment/subject.h"

namespace speedbump::experiment {

// From what the lines of the targets file name, Python and native, to the single functions that
// matter: rung by rung groups of them are delayed, and those that matter taken apart. Not
// thread-safe.
class Bisect {
  public:
    // How targets of the document are measured.
    struct Means {
        std::function<void(size_t)> choose_doses; // of this target
        std::function<void()> run_block;          // each arm of all targets once
    };
    // All outlive this.
    Bisect(const Hooks& hooks, Subject& subject, Document& document, Means means)
        : hooks_(hooks), subject_(subject), document_(document), means_(std::move(means)) {}

    // Leaves single functions as the document's targets, or, where no group matters or nothing is
    // called, a stop; the way there is in document.rungs. Takes the time that it takes.
    void run();

  private:
    // A target of the document that stays what it is: a control, a line that can't be taken apart.
    struct Fixed {
        Target target;
        std::vector<uint32_t> group;
    };
    Ladder find_functions();
    void tell_apart(const Ladder& ladder, const std::vector<Group>& groups);
    std::vector<Group> choose(const Ladder& ladder, const std::vector<Group>& groups);
    void set_targets(const Ladder& ladder, const std::vector<Group>& groups, bool is_last);
    void measure();
    std::vector<Group> follow(const std::vector<Group>& tried);

    const Hooks& hooks_;
    Subject& subject_;
    Document& document_;
    Means means_;
    std::vector<Fixed> fixed_;
    std::vector<size_t> lines_;      // of Python, that are taken apart
    std::vector<uint32_t> targets_;  // the session's, of each function of the ladder on this rung
    std::vector<std::string> notes_; // of this rung
};

} // namespace speedbump::experiment
