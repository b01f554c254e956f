// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <optional>
#include <utility>
#include <vector>

namespace speedbump::experiment {

// A small dense matrix of numbers.
class Matrix {
  public:
    Matrix(size_t rows, size_t columns) : columns_(columns), cells_(rows * columns) {}

    size_t rows() const { return columns_ == 0 ? 0 : cells_.size() / columns_; }
    size_t columns() const { return columns_; }
    double& operator()(size_t row, size_t column) { return cells_[row * columns_ + column]; }
    double operator()(size_t row, size_t column) const { return cells_[row * columns_ + column]; }

  private:
    size_t columns_;
    std::vector<double> cells_;
};

inline Matrix product(const Matrix& a, const Matrix& b) {
    Matrix result(a.rows(), b.columns());
    for (size_t row = 0; row < a.rows(); ++row)
        for (size_t inner = 0; inner < a.columns(); ++inner)
            for (size_t column = 0; column < b.columns(); ++column)
                result(row, column) += a(row, inner) * b(inner, column);
    return result;
}

inline Matrix transposed(const Matrix& a) {
    Matrix result(a.columns(), a.rows());
    for (size_t row = 0; row < a.rows(); ++row)
        for (size_t column = 0; column < a.columns(); ++column)
            result(column, row) = a(row, column);
    return result;
}

// By elimination with row pivots; nullopt when a column is, as near as can be told, made of others.
inline std::optional<Matrix> inverse(Matrix a) {
    const size_t size = a.rows();
    Matrix result(size, size);
    std::vector<double> scale(size);
    for (size_t row = 0; row < size; ++row) {
        result(row, row) = 1;
        for (size_t column = 0; column < size; ++column)
            scale[row] = std::max(scale[row], std::abs(a(row, column)));
        if (!(scale[row] > 0)) return std::nullopt;
    }
    for (size_t column = 0; column < size; ++column) {
        size_t pivot = column;
        for (size_t row = column; row < size; ++row)
            if (std::abs(a(row, column)) / scale[row] > std::abs(a(pivot, column)) / scale[pivot])
                pivot = row;
        if (std::abs(a(pivot, column)) < 1e-10 * scale[pivot]) return std::nullopt;
        std::swap(scale[pivot], scale[column]);
        for (size_t i = 0; i < size; ++i) {
            std::swap(a(pivot, i), a(column, i));
            std::swap(result(pivot, i), result(column, i));
        }
        const double head = a(column, column);
        for (size_t row = 0; row < size; ++row) {
            const double factor = a(row, column) / head;
            if (row == column || factor == 0) continue;
            for (size_t i = 0; i < size; ++i) {
                a(row, i) -= factor * a(column, i);
                result(row, i) -= factor * result(column, i);
            }
        }
    }
    for (size_t row = 0; row < size; ++row)
        for (size_t i = 0; i < size; ++i) result(row, i) /= a(row, row);
    return result;
}

} // namespace speedbump::experiment
