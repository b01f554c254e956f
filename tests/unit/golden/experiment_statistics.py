#!/usr/bin/python3
# SPDX-License-Identifier: MIT
"""Writes experiment_statistics.json: what scipy finds for random experiments.

Independent of user/experiment: block intercepts are dummy variables, Huber's loss is minimised by a
general optimiser, and the scale is found by iterating to a fixed point around it.
"""

import json
import pathlib

import numpy
from scipy import optimize, stats

HUBER = 1.345


def experiment(random, blocks, doses, k, drift, noise, outliers):
    rows = []
    for block in range(blocks):
        level = 100 + random.normal(0, 5)
        for place, dose in enumerate(random.permutation([0.0, *doses])):
            time = block * (len(doses) + 1) + place
            x = dose * random.normal(1, 0.01)
            y = level + k * x + drift * time + random.normal(0, noise)
            if random.random() < outliers:
                y += 20 * noise
            rows.append([block, float(time), float(x), float(y)])
    return rows


def robust(rows):
    table = numpy.array(rows)
    blocks = int(table[:, 0].max()) + 1
    design = numpy.zeros((len(rows), blocks + 2))
    design[numpy.arange(len(rows)), table[:, 0].astype(int)] = 1
    design[:, blocks] = table[:, 2]
    design[:, blocks + 1] = table[:, 1]
    y = table[:, 3]
    solution = numpy.linalg.lstsq(design, y, rcond=None)[0]
    for _ in range(200):
        residuals = y - design @ solution
        scale = 1.4826 * numpy.median(numpy.abs(residuals))
        scale *= numpy.sqrt(len(y) / (len(y) - blocks - 2))
        found = optimize.least_squares(
            lambda b, s=scale: (y - design @ b) / s, solution, loss="huber", f_scale=HUBER,
            xtol=1e-14, ftol=1e-14, gtol=1e-14, x_scale="jac",
        )
        done = numpy.allclose(found.x, solution, rtol=1e-12, atol=1e-12)
        solution = found.x
        if done:
            break
    times = [table[table[:, 0] == b, 1].mean() for b in range(blocks)]
    base = numpy.mean(solution[:blocks] + solution[blocks + 1] * numpy.array(times))
    return {"slope": solution[blocks], "drift": solution[blocks + 1], "base": base, "scale": scale}


def holm(p):
    order = numpy.argsort(p)
    corrected = numpy.empty(len(p))
    corrected[order] = numpy.minimum(
        1, numpy.maximum.accumulate(numpy.array(p)[order] * numpy.arange(len(p), 0, -1))
    )
    return corrected.tolist()


def welch(random):
    one, two = random.normal(1, 0.2, 8), random.normal(1.3, 0.5, 15)
    result = stats.ttest_ind(two, one, equal_var=False)
    va, vb = one.var(ddof=1) / 8, two.var(ddof=1) / 15
    freedom = (va + vb) ** 2 / (va**2 / 7 + vb**2 / 14)
    half = stats.t.ppf(0.975, freedom) * numpy.sqrt(va + vb)
    middle = two.mean() - one.mean()
    return {
        "a": one.mean(), "error_a": numpy.sqrt(va), "blocks_a": 8,
        "b": two.mean(), "error_b": numpy.sqrt(vb), "blocks_b": 15,
        "low": middle - half, "high": middle + half, "p": result.pvalue,
    }


def main():
    random = numpy.random.default_rng(7)
    cases = []
    for blocks, doses, k, drift, noise, outliers in [
        (6, [5, 10], 1.0, 0.0, 1.0, 0.0),
        (12, [5, 10, 20], 0.4, 0.3, 2.0, 0.0),
        (20, [2, 4, 8, 16], 0.0, -0.2, 1.0, 0.05),
        (40, [10, 20, 30, 40], 2.5, 0.1, 3.0, 0.1),
    ]:
        rows = experiment(random, blocks, doses, k, drift, noise, outliers)
        cases.append({"rows": rows, **robust(rows)})
    p = random.random(9).tolist() + [0.001, 0.0004]
    document = {
        "lines": cases,
        "holm": {"p": p, "corrected": holm(p)},
        "welch": [welch(random) for _ in range(3)],
    }
    path = pathlib.Path(__file__).with_suffix(".json")
    path.write_text(json.dumps(document, separators=(",", ":")) + "\n")


main()
