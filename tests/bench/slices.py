#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Loaded services in short slices with all targets at once, which is what nothing else is asked for,
and one target after the other in slices of 200 ms, in the same run.

  slices.py SPEEDBUMP [redis|nginx|flask]...    as root

Prints each target's criticality with half the width of its interval by both, its full dose, and what the
experiment cost itself. SLICES_SECONDS (60) is how long each takes. Half of the targets have a dose in a
slice: at --max-slowdown=150% five may have doses of a quarter of a unit each.
"""

import json
import os
import pathlib
import subprocess
import sys
import tempfile
import time

from experiment_services import SERVICES

SECONDS = int(os.environ.get("SLICES_SECONDS", "60"))


def measure(speedbump: str, pid: int, progress: str, targets: str, *arguments: str,
            seconds: int = SECONDS) -> dict:
    with tempfile.TemporaryDirectory() as folder:
        document = pathlib.Path(folder) / "result.json"
        subprocess.run(
            [speedbump, "experiment", "-q", "--pid", str(pid), "--progress", progress,
             f"--time={seconds}s", "--max-cpu=2", "--max-slowdown=150%", "--output", str(document),
             *arguments, targets],
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )
        return json.loads(document.read_text())


def half_width(estimate: dict) -> float:
    return (estimate["high"] - estimate["low"]) / 2


def show(title: str, document: dict) -> None:
    progress = document["results"]["progress"][0]
    looking = progress["looking_ns"]
    share = 100 / progress["period_ns"] if progress["period_ns"] else 0
    print(f"{title}: {100 * document['tool_cpu']:.2f} % of a CPU, cost of looking "
          f"{looking['value'] * share:+.2f} +- {half_width(looking) * share:.2f} %"
          if looking else title)
    doses_of = {target["name"]: target["doses_ns"] for target in document["targets"]}
    for result in progress["targets"]:
        estimate = result.get("criticality")
        shown = (f"{estimate['value']:>9.3f} +- {half_width(estimate):.3f}"
                 if estimate and estimate["high"] is not None else f"{'-':>9}")
        doses = doses_of[result["name"]]
        dose = f"{doses[-1] / 1000:.2f} us" if doses else "-"
        print(f"  {result['name']:<44} {shown}  {result['verdict']}, {dose}", flush=True)


def main() -> None:
    speedbump, *names = sys.argv[1:]
    for name in names or SERVICES:
        with tempfile.TemporaryDirectory() as folder, SERVICES[name]() as (pid, progress, lines):
            targets = pathlib.Path(folder) / "targets.txt"
            targets.write_text(lines)
            time.sleep(2)
            for arguments in ((), ("--slice=200ms",)):
                document = measure(speedbump, pid, progress, str(targets), *arguments)
                slice_ms = document["settings"]["slice_ns"] / 1e6
                show(f"{name}, {SECONDS} s, slices of {slice_ms:g} ms", document)


if __name__ == "__main__":
    main()
