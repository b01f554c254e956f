#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""The targets of loaded services all at once in short slices, and one after the other as `experiment`
does it, in the same run.

  slices.py SPEEDBUMP SLICES [redis|nginx|flask]...    as root; SLICES: the program of slices.cpp

Prints each target's criticality with half the width of its interval by both.
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
SLICE_US = {"redis": 4000, "nginx": 4000, "flask": 20000}  # as short as each service answers


def main() -> None:
    speedbump, slices, *names = sys.argv[1:]
    for name in names or SERVICES:
        print(f"-- {name}, {SECONDS} s, slices of {SLICE_US[name]} us", flush=True)
        with tempfile.TemporaryDirectory() as folder, SERVICES[name]() as (pid, progress, lines):
            targets, document = pathlib.Path(folder) / "targets.txt", f"{folder}/one.json"
            targets.write_text(lines)
            time.sleep(2)
            subprocess.run([slices, str(pid), progress, str(SECONDS), str(SLICE_US[name])],
                           input=lines, text=True, check=True)
            subprocess.run(
                [speedbump, "experiment", "-q", "--pid", str(pid), "--progress", progress,
                 f"--time={SECONDS}s", "--seed=1", "--max-cpu=2", "--max-slowdown=100%",
                 "--output", document, str(targets)],
                stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
            )
            print("one after the other, slices of 200 ms:")
            for result in json.loads(pathlib.Path(document).read_text())["results"]["progress"][0][
                    "targets"]:
                estimate = result.get("criticality")
                if estimate:
                    half = (estimate["high"] - estimate["low"]) / 2
                    print(f"{result['name']:<44} {'':>10} {estimate['value']:>14.3f} {half:>10.3f} "
                          f"{result['verdict']:>14}", flush=True)


if __name__ == "__main__":
    main()
