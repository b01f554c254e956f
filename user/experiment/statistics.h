// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

// What is concluded from measurements. Pure functions; the unit of y, x and slack is the caller's.
namespace speedbump::experiment {

// One slice of time: the injected time and the period, both per unit of progress.
struct Observation {
    size_t block = 0;
    double time = 0; // when, for the drift; any unit
    double x = 0;
    double y = 0;
    double y_error = 0; // standard error that y has by itself: it is of whole units
};

struct Interval {
    double low = 0;
    double high = 0;

    bool contains(double value) const { return low <= value && value <= high; }
    double half_width() const { return (high - low) / 2; }
};

// A number with its uncertainty over blocks.
struct Estimate {
    double value = 0;
    double error = 0;  // standard error
    Interval interval; // 95 %
    Interval wide;     // 99 %
    double p = 1;      // of the hypothesis that the value is 0, two-sided
};

// From a standard error with Student's t; a freedom of 0: nothing is known.
Estimate estimate_of(double value, double error, double freedom);

// y = base + slope * x + drift * time, with an intercept of its own for each block, of which base
// is the mean. Huber's loss: a disturbed slice counts less.
struct Line {
    double base = 0;
    double slope = 0;
    double drift = 0;
    double scale = 0;            // of the residuals, robust
    double loss = 0;             // sum of Huber's loss over scale, see fit_shape()
    std::vector<double> weights; // of each observation, 0 to 1
};

// Slopes are 0 where x does not vary within any block.
Line fit_line(std::span<const Observation> observations);

// fit_line() with a standard error from a bootstrap over blocks and Student's t. Needs two blocks;
// with fewer the interval is infinite.
struct LineEstimate {
    Line line;
    Estimate slope;
    size_t blocks = 0;
};
LineEstimate estimate_line(std::span<const Observation> observations, uint64_t seed);

enum class Shape {
    kFlat,   // no effect within what was tried
    kLinear, // each injected ns has the same effect
    kHinge,  // none up to a slack, then linear
};
std::string to_string(Shape shape);

// Which of the three shapes the observations have. A hinge must fit better than a line at the 1 %
// level (likelihood ratio), and needs three different doses; a line's slope must differ from 0.
struct ShapeEstimate {
    Shape shape = Shape::kFlat;
    LineEstimate line; // the straight line, whatever the shape
    Estimate slope;    // beyond the slack for a hinge; else the line's
    Estimate slack;    // in units of x; hinge only
    double base = 0;   // period without delay
};
ShapeEstimate fit_shape(std::span<const Observation> observations, uint64_t seed);

// P values after Holm's correction for all of them having been looked at; same order.
std::vector<double> holm(std::span<const double> p);

// How many blocks a half width would take if the noise stays what it is; 0: cannot be told.
size_t blocks_needed(size_t blocks, double half_width, double wanted);

// b - a of two independent estimates, with Welch's degrees of freedom.
Estimate difference(const Estimate& a, size_t blocks_a, const Estimate& b, size_t blocks_b);

} // namespace speedbump::experiment
