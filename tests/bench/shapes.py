#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""The worked examples of docs/methodology.md: services whose answer is known, as `experiment` sees them.

  shapes.py SPEEDBUMP PROGRAMS [KIND]...    as root; the kinds are those of tests/programs/known_service.cpp

Prints the command and its table for each kind.
"""

import os
import subprocess
import sys
import tempfile

from experiment import Bench

TIME = os.environ.get("SHAPES_TIME", "30s")
# A line for each target, and the options besides the usual ones.
KINDS = {
    "serial": (["+exe:work_a", "+exe:work_b"], []),
    "apart": (["+exe:work_on", "+exe:work_off"], []),
    "slack": (["+exe:work_short"], ["--doses=200us,400us,600us,800us,1ms", "--max-slowdown=200%"]),
    "pipeline": (["+exe:work_first", "+exe:work_second"], []),
    "convoy": (["+exe:work_locked"], ["--max-slowdown=200%"]),
    "paths": (["+exe:work_both"], []),
}


def show(bench: Bench, kind: str) -> None:
    lines, options = KINDS[kind]
    with tempfile.NamedTemporaryFile("w", suffix=".txt") as targets, bench.service(kind) as service:
        targets.write("".join(f"{line}\n" for line in lines))
        targets.flush()
        options = ["--progress=native:exe:unit_done", f"--time={TIME}", "--max-cpu=2", *options]
        print(f"-- {kind}: {', '.join(lines)}\n"
              f"$ speedbump experiment --pid $(pidof known_service) {' '.join(options)} targets.txt",
              flush=True)
        subprocess.run([bench.speedbump, "experiment", "-q", "--pid", str(service.pid), *options,
                        targets.name], stdin=subprocess.DEVNULL)


def main() -> None:
    speedbump, programs, *kinds = sys.argv[1:]
    for kind in kinds or KINDS:
        show(Bench(speedbump, programs), kind)


if __name__ == "__main__":
    main()
