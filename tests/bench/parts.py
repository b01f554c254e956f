#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Units that the edges of slices cut: what an experiment says with the times of units and by their number
alone, of the same slices.

  parts.py SPEEDBUMP PROGRAMS [RUNS [SECONDS]]    as root

Serial services, whose criticalities are 1, with units of several lengths. Prints for each function the
mean and the standard deviation over RUNS (6) of SECONDS (45) each, half the width of the interval
(median), and how many of the intervals hold 1.
"""

import json
import pathlib
import statistics
import subprocess
import sys
import tempfile

UNITS = {  # us of two functions, calls of the first one
    "0.3 ms, one a leaf": (1.155, 174.358, 87),
    "2 ms": (600, 1400, 1),
    "10 ms": (3000, 7000, 1),
    "20 ms": (6000, 14000, 1),
    "40 ms": (10000, 30000, 1),
}


def measure(speedbump: str, pid: int, seconds: int, folder: pathlib.Path,
            *arguments: str) -> pathlib.Path:
    targets, document = folder / "targets.txt", folder / "result.json"
    targets.write_text("+exe:f0\n+exe:f1\n")
    subprocess.run(
        [speedbump, "experiment", "-q", "--pid", str(pid), "--progress", "native:exe:unit_done",
         f"--time={seconds}s", "--max-cpu=2", "--max-slowdown=100%", "--output", str(document),
         *arguments, str(targets)],
        stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    return document


def results_of(speedbump: str, document: pathlib.Path) -> dict[str, dict]:
    told = subprocess.run([speedbump, "report", str(document), "--json"], capture_output=True)
    targets = json.loads(told.stdout)["results"]["progress"][0]["targets"]
    return {target["name"]: target["criticality"] for target in targets
            if target.get("criticality") and target["criticality"]["high"] is not None}


def by_number(document: pathlib.Path) -> pathlib.Path:
    content = json.loads(document.read_text())
    del content["sliced"]["units_since_ns"]
    plain = document.with_name("by_number.json")
    plain.write_text(json.dumps(content))
    return plain


def show(way: str, function: str, seen: list[dict]) -> None:
    if len(seen) < 2:
        print(f"  {way:<10} {function:<8} told by {len(seen)} runs")
        return
    values = [one["value"] for one in seen]
    half = statistics.median((one["high"] - one["low"]) / 2 for one in seen)
    held = sum(one["low"] <= 1 <= one["high"] for one in seen)
    print(f"  {way:<10} {function:<8} {statistics.mean(values):.4f}, deviation "
          f"{statistics.stdev(values):.4f}, +- {half:.4f}, {held} of {len(seen)} hold 1", flush=True)


def main() -> None:
    speedbump, programs, *rest = sys.argv[1:]
    runs, seconds = [int(one) for one in rest] + [6, 45][len(rest):]
    for name, (first, second, calls) in UNITS.items():
        seen: dict[tuple[str, str], list[dict]] = {}
        length = 0
        with tempfile.TemporaryDirectory() as folder, subprocess.Popen(
                [f"{programs}/drawn_service", "serial", f"0:{first}x{calls}/1,1:{second}x1/1"],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE) as service:
            service.stdout.readline()
            for _ in range(runs):
                # Of longer ones long slices may be chosen, one function after the other.
                length_given = ["--slice=50ms"] if first + second > 10000 else []
                document = measure(speedbump, service.pid, seconds, pathlib.Path(folder),
                                   *length_given)
                length = json.loads(document.read_text())["settings"]["slice_ns"] / 1e6
                for way, path in (("by times", document), ("by number", by_number(document))):
                    for function, estimate in results_of(speedbump, path).items():
                        seen.setdefault((way, function), []).append(estimate)
            service.stdin.close()
        print(f"units of {name}, slices of {length:g} ms, {runs} runs of {seconds} s")
        for (way, function), estimates in sorted(seen.items(), reverse=True):
            show(way, function, estimates)


if __name__ == "__main__":
    main()
