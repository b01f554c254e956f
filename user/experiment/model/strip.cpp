// SPDX-License-Identifier: MIT
#include "experiment/model/strip.h"

#include <algorithm>
#include <numeric>

namespace speedbump::experiment {

namespace {

constexpr size_t kGap = 8; // slices of 0 that a range goes on over

size_t blocks_of(size_t slices, size_t block) {
    return (slices + block - 1) / block;
}

} // namespace

Strip::Strip(const std::vector<double>& all) {
    for (size_t i = 0; i < all.size(); ++i) {
        if (all[i] == 0) continue;
        if (ranges_.empty() || i - ranges_.back().end > kGap)
            ranges_.push_back({i, i, values_.size()});
        Range& range = ranges_.back();
        values_.insert(values_.end(), all.begin() + static_cast<ptrdiff_t>(range.end),
                       all.begin() + static_cast<ptrdiff_t>(i) + 1);
        range.end = i + 1;
    }
}

std::vector<double> Strip::all(size_t slices) const {
    std::vector<double> result(slices);
    add_to(result, 1);
    return result;
}

void Strip::add_to(std::vector<double>& values, double factor) const {
    for (const Range& range : ranges_)
        for (size_t i = range.begin; i < range.end; ++i)
            values[i] += factor * values_[range.at + i - range.begin];
}

double Strip::sum() const {
    return std::accumulate(values_.begin(), values_.end(), 0.0);
}

double Strip::times(const std::vector<double>& values) const {
    double sum = 0;
    for (const Range& range : ranges_) {
        const double* own = values_.data() + range.at;
        sum += std::transform_reduce(own, own + (range.end - range.begin),
                                     values.data() + range.begin, 0.0);
    }
    return sum;
}

double Strip::times(const Strip& other) const {
    double sum = 0;
    auto a = ranges_.begin();
    auto b = other.ranges_.begin();
    while (a != ranges_.end() && b != other.ranges_.end()) {
        const size_t begin = std::max(a->begin, b->begin), end = std::min(a->end, b->end);
        if (begin < end) {
            const double* own = values_.data() + a->at + (begin - a->begin);
            const double* others = other.values_.data() + b->at + (begin - b->begin);
            sum += std::transform_reduce(own, own + (end - begin), others, 0.0);
        }
        (a->end < b->end ? a : b)++;
    }
    return sum;
}

std::vector<double> Strip::times_by_block(const std::vector<double>& values, size_t block) const {
    std::vector<double> result(blocks_of(values.size(), block));
    for (const Range& range : ranges_)
        for (size_t i = range.begin; i < range.end; ++i)
            result[i / block] += values[i] * values_[range.at + i - range.begin];
    return result;
}

std::vector<double> Strip::squares_by_block(size_t slices, size_t block) const {
    std::vector<double> result(blocks_of(slices, block));
    for (const Range& range : ranges_)
        for (size_t i = range.begin; i < range.end; ++i) {
            const double own = values_[range.at + i - range.begin];
            result[i / block] += own * own;
        }
    return result;
}

} // namespace speedbump::experiment
