// SPDX-License-Identifier: MIT
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "targets/target.h"

// From all functions of a program to the few that matter, rung by rung: which groups there are
// below those that mattered, and how Python functions of a group are named. Pure functions.
namespace speedbump::experiment {

// A function that a line of the targets file names.
struct LadderFunction {
    targets::Runtime runtime = targets::Runtime::kPython;
    std::string container; // module, or file
    std::string name;      // qualified name, or symbol
    std::string file;      // Python: its source
};

// Functions that are delayed together.
struct Group {
    std::string name;              // as a line of the targets file: "app.views:Shop.*"; of several
                                   // parts the first one's, "and 12 more"
    std::vector<uint32_t> parts;   // of the ladder's tree; none holds another
    std::vector<size_t> functions; // of the ladder, ascending
};

// Lines that tell the Python functions of groups apart.
struct GroupLines {
    static constexpr size_t kNone = SIZE_MAX;
    std::vector<targets::TargetLine> lines; // the last that matches decides
    std::vector<size_t> group_of;           // of each line; kNone: an exclusion
    // Functions that these lines put into another group than theirs, or none: no pattern tells
    // them apart from others.
    std::vector<size_t> unsure;
};

// The tree of names: Python by package, module, class and function, native code by file and
// function. Nested functions are below the one that holds them, as their names are.
class Ladder {
  public:
    explicit Ladder(std::vector<LadderFunction> functions);
    Ladder(const Ladder&) = delete; // what nodes view stays where it is
    Ladder(Ladder&&) = default;

    const std::vector<LadderFunction>& functions() const { return functions_; }

    // The first rung: all of Python, and each file; every function is in one group.
    std::vector<Group> first() const;
    // The next rung below these groups: what they hold, one step further apart, each function of
    // theirs in one group. What can't be taken apart stays as it is.
    std::vector<Group> below(const std::vector<Group>& groups) const;
    // Whether it can't be taken apart: one function, or several of one name.
    bool is_single(const Group& group) const;
    // These groups, those of little weight together, so that there are at most `limit` (4 and up).
    // A weight is how often the group is called, in any unit. In the order of their weights.
    std::vector<Group> join(std::vector<Group> groups, const std::vector<double>& weights,
                            size_t limit) const;
    // How the Python functions of these groups are named; native ones have no part in it. Takes
    // time in proportion to the functions of the ladder and the lines with a glob.
    GroupLines lines(const std::vector<Group>& groups) const;

  private:
    enum class Kind { kPython, kModule, kNames, kName, kNative, kFile, kFunction };
    struct Node {
        Kind kind;
        // Of the functions' own, which are long and many.
        std::string_view container; // module or file: of kModule and below
        std::string_view name;      // of kName and kFunction
        std::vector<uint32_t> children;
        std::vector<size_t> functions; // of kFunction
    };
    class Builder;

    uint32_t innermost(uint32_t node) const;
    std::string name_of(uint32_t node) const;
    Group group_of(uint32_t node) const;
    void collect(uint32_t node, std::vector<size_t>& functions) const;
    void add_lines(uint32_t node, size_t group, GroupLines& lines) const;
    std::vector<size_t> misplaced(const GroupLines& lines,
                                  const std::vector<size_t>& expected) const;

    std::vector<LadderFunction> functions_;
    std::vector<Node> nodes_; // kPython, kNative, and what is below them
};

} // namespace speedbump::experiment
