#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""The worked examples of docs/methodology.md: services whose answer is known, as `experiment` sees them.

  shapes.py SPEEDBUMP PROGRAMS [KIND]...    as root; the kinds are those of tests/programs/known_service.cpp

Prints the command and its table for each kind.
"""

import os
import pathlib
import subprocess
import sys
import tempfile

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


def show(speedbump: str, programs: str, kind: str) -> None:
    lines, options = KINDS[kind]
    with tempfile.TemporaryDirectory() as folder:
        targets = pathlib.Path(folder) / "targets.txt"
        targets.write_text("".join(f"{line}\n" for line in lines))
        service = subprocess.Popen([f"{programs}/known_service", kind], stdin=subprocess.PIPE,
                                   stdout=subprocess.PIPE, text=True)
        try:
            assert service.stdout is not None and service.stdout.readline() == "ready\n"
            command = [speedbump, "experiment", "-q", "--pid", str(service.pid),
                       "--progress=native:exe:unit_done", f"--time={TIME}", "--max-cpu=2", *options,
                       str(targets)]
            shown = ["speedbump experiment --pid $(pidof known_service)", *command[5:-1], "targets.txt"]
            print(f"-- {kind}: {', '.join(lines)}\n$ {' '.join(shown)}", flush=True)
            subprocess.run(command, stdin=subprocess.DEVNULL)
        finally:
            service.kill()
            service.wait()


def main() -> None:
    speedbump, programs, *kinds = sys.argv[1:]
    for kind in kinds or KINDS:
        show(speedbump, programs, kind)


if __name__ == "__main__":
    main()
