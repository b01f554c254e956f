// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <vector>

namespace speedbump::experiment {

// A number for each slice of a run of which most are 0, as those of a target at one level of its
// dose are: only the ranges that are not are kept, and gone over.
class Strip {
  public:
    Strip() = default;
    explicit Strip(const std::vector<double>& all);

    // As `all` was.
    std::vector<double> all(size_t slices) const;
    // Adds each, times the factor.
    void add_to(std::vector<double>& values, double factor) const;
    double sum() const;
    // The sum of the products of each with the other's.
    double times(const std::vector<double>& values) const;
    double times(const Strip& other) const;
    // The same, and the sum of its own squares, in each block of so many slices.
    std::vector<double> times_by_block(const std::vector<double>& values, size_t block) const;
    std::vector<double> squares_by_block(size_t slices, size_t block) const;

  private:
    struct Range {
        size_t begin, end; // slices
        size_t at;         // in values_: of the first one
    };
    std::vector<Range> ranges_; // in order
    std::vector<double> values_;
};

} // namespace speedbump::experiment
