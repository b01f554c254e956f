#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""A hundred functions of which four that are drawn matter (tests/programs/hundred): which of them an
experiment finds when all are slowed at once in short slices, and when one is after the other.

  targets.py SPEEDBUMP HUNDRED    as root

Prints, for each program: how many of the four are said to matter, how many others, what is said of the
others, the criticalities with half the width of their intervals, and how long the analysis takes. TARGETS_SECONDS (120) is how long each
takes, TARGETS_PROGRAMS (3) how many programs there are, TARGETS_SEED what they are drawn by.
"""

import collections
import json
import os
import pathlib
import random
import statistics
import subprocess
import sys
import tempfile
import time

from slices import half_width, measure

SECONDS = int(os.environ.get("TARGETS_SECONDS", "120"))
PROGRAMS = int(os.environ.get("TARGETS_PROGRAMS", "3"))


def show(title: str, critical: set[str], document: dict) -> bool:
    """Whether all are found and at most one other."""
    progress = document["results"]["progress"][0]
    verdicts = {one["name"].partition(":")[2]: one["verdict"] for one in progress["targets"]}
    found = {name for name, verdict in verdicts.items() if verdict == "matters"}
    others = collections.Counter(verdict for name, verdict in verdicts.items() if name not in critical)
    known = {one["name"].partition(":")[2]: one["criticality"] for one in progress["targets"]
             if one["criticality"] and one["criticality"]["high"] is not None}
    widths = [half_width(one) for one in known.values()]
    print(f"  {title}: {len(found & critical)} of 4 matter, {len(found - critical)} others; of these "
          f"{', '.join(f'{count} {verdict}' for verdict, count in sorted(others.items()))}; "
          f"{len(progress.get('pairs', ()))} pairs bend each other")
    if widths:
        print(f"    half widths: median {statistics.median(widths):.3f}, most {max(widths):.3f} "
              f"({len(widths)} of {len(verdicts)} known)")
    print("    the four: " + ", ".join(
        f"{name} {known[name]['value']:.3f} +- {half_width(known[name]):.3f}" if name in known
        else f"{name} {verdicts.get(name, 'not there')}" for name in sorted(critical)), flush=True)
    return found >= critical and len(found - critical) <= 1


def analysis_s(speedbump: str, document: dict, folder: str) -> float:
    """How long it takes to say from the slices what they say: `speedbump report`."""
    path = pathlib.Path(folder) / "document.json"
    path.write_text(json.dumps(document))
    begin = time.monotonic()
    subprocess.run([speedbump, "report", str(path)], stdout=subprocess.DEVNULL, check=True)
    return time.monotonic() - begin


def main() -> None:
    speedbump, program = sys.argv[1:]
    seed = int(os.environ.get("TARGETS_SEED", random.randrange(2**31)))
    print(f"four of a hundred functions, {SECONDS} s each, seed {seed}")
    right = 0
    for number in range(PROGRAMS):
        process = subprocess.Popen([program, str(seed + number)], stdin=subprocess.PIPE,
                                   stdout=subprocess.PIPE, text=True)
        critical = {f"f_{int(word):02}" for word in process.stdout.readline().split()[1:]}
        print(f"program {seed + number}: {' '.join(sorted(critical))}")
        try:
            with tempfile.TemporaryDirectory() as folder:
                targets = pathlib.Path(folder) / "targets.txt"
                targets.write_text("".join(f"+exe:f_{one:02}\n" for one in range(100)))
                for title, slice_ in (("all at once", "5ms"), ("one after the other", "200ms")):
                    document = measure(speedbump, process.pid, "native:exe:unit_done", str(targets),
                                       f"--slice={slice_}", seconds=SECONDS)
                    is_right = show(f"{title}, slices of {slice_}", critical, document)
                    print(f"    analysed in {analysis_s(speedbump, document, folder):.1f} s", flush=True)
                    right += is_right and slice_ == "5ms"
        finally:
            process.kill()
            process.wait()
    print(f"all at once: all four and at most one other in {right} of {PROGRAMS}")


if __name__ == "__main__":
    main()
