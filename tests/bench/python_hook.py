#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Cost and accuracy of the Python hook, per interpreter; both sides of each figure in one run.

Usage: python_hook.py [interpreters.tsv [name...]]. Prints, in nanoseconds per call of an empty
function: the call alone; what a call that matches costs more at delay 0, and one that does not
match; what it costs more after the hook was removed; and per delay the error of what was added,
as median and half the interquartile range over rounds. Each round measures the plain call, the
hooked one and the plain one again.
"""

from __future__ import annotations

import json
import pathlib
import subprocess
import sys

MEASURE = """
import json, statistics, sys, time
import speed_bump

def f(): pass
def other(): pass

def per_call(function, calls, batches):
    # The lower quartile of the batches: the others were disturbed by other work on this machine.
    times = []
    clock = time.perf_counter_ns
    for _ in range(batches):
        numbers = range(calls)
        begin = clock()
        for _ in numbers:
            function()
        times.append((clock() - begin) / calls)
    times.sort()
    return times[len(times) // 4]

def summary(values):
    low, middle, high = statistics.quantiles(values, n=4)
    return [middle, (high - low) / 2]

def rounds(count, measure):
    columns = list(zip(*(measure() for _ in range(count))))
    return [summary(column) for column in columns]

def costs():
    plain = per_call(f, 1000, 40)
    with speed_bump.slow("__main__:f", delay=0):
        per_call(other, 100, 2)
        matched, unmatched = per_call(f, 1000, 40), per_call(other, 1000, 40)
    again = per_call(other, 1000, 40)
    return plain, matched - plain, unmatched - again, per_call(f, 1000, 40) - plain

def error(delay):
    calls, batches = (200, 30) if delay < 5000 else (20, 30) if delay < 50000 else (3, 25)
    plain = per_call(f, 500, 20)
    with speed_bump.slow("__main__:f", delay=delay):
        slowed = per_call(f, calls, batches)
    return (slowed - (plain + per_call(f, 500, 20)) / 2 - delay,)

per_call(f, 1000, 20), per_call(other, 1000, 20)
result = {"costs": rounds(9, costs), "errors": {}}
for delay in (100, 1000, 10000, 100000):
    result["errors"][delay] = rounds(7, lambda: error(delay))[0]
result["minimum"] = speed_bump.min_delay_ns
print(json.dumps(result))
"""


def main() -> int:
    source_root = pathlib.Path(__file__).resolve().parents[2]
    default = source_root / "build/pyext/interpreters.tsv"
    table = pathlib.Path(sys.argv[1]) if len(sys.argv) > 1 else default
    wanted = sys.argv[2:]
    print(f"{'':10} {'call':>11} {'matched':>11} {'unmatched':>11} {'after':>11}"
          + "".join(f"{title:>14}" for title in ("100 ns", "1 us", "10 us", "100 us")))
    for line in table.read_text().splitlines():
        name, command, package = line.split("\t")
        if wanted and name not in wanted:
            continue
        run = subprocess.run(
            [command, "-c", MEASURE],
            env={"PYTHONPATH": package, "PATH": "/usr/bin:/bin:/usr/sbin:/sbin"},
            cwd=source_root, capture_output=True, text=True, check=False,
        )
        if run.returncode != 0:
            print(f"{name:10} failed: {run.stderr.strip().splitlines()[-1:]}")
            return 1
        result = json.loads(run.stdout)
        cells = [f"{middle:.1f}±{spread:.1f}" for middle, spread in result["costs"]]
        errors = [f"{middle:+.0f}±{spread:.0f}" for middle, spread in result["errors"].values()]
        print(f"{name:10} " + " ".join(f"{cell:>11}" for cell in cells)
              + "".join(f"{cell:>14}" for cell in errors))
    return 0


if __name__ == "__main__":
    sys.exit(main())
