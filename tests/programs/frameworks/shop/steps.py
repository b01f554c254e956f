# SPDX-License-Identifier: MIT
"""NumPy: a step with a product of matrices, a system of equations, a sort and a ufunc."""

import numpy

from shop.rounds import serve

random = numpy.random.default_rng(7)
matrix = random.standard_normal((64, 64))


def step() -> float:
    product = matrix @ matrix
    solution = numpy.linalg.solve(product, matrix[0])
    ordered = numpy.sort(numpy.exp(numpy.tanh(solution)))
    return float(numpy.median(ordered))


def main() -> None:
    serve(step)
