#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""experiment --ab on pairs of services whose difference is known.

  ab.py SPEEDBUMP PROGRAMS [PAIRS [SECONDS [SEED]]]   as root; 10 pairs of 60 s

A unit is a loop of a random number of steps, in b up to 5 % more (no more in every third pair). Both
run side by side, each as fast as it gets a CPU. Found: worse by 1 % or more, and called so; false:
called worse by 1 % without any difference.
"""

import json
import pathlib
import random
import subprocess
import sys
import tempfile


def start(program: pathlib.Path, loops: int) -> subprocess.Popen:
    service = subprocess.Popen([program, "counted", f"loops={loops}"], stdin=subprocess.PIPE,
                               stdout=subprocess.PIPE, text=True)
    assert service.stdout.readline() == "ready\n"
    return service


def measure(speedbump: str, program: pathlib.Path, loops: tuple[int, int], seconds: int) -> dict:
    services = [start(program, count) for count in loops]
    try:
        with tempfile.TemporaryDirectory() as folder:
            done = subprocess.run(
                [speedbump, "experiment", "--ab", *(str(one.pid) for one in services), "--progress",
                 "native:exe:unit_done", f"--time={seconds}s", "--fail-if-worse=1%", "--json"],
                capture_output=True, text=True, cwd=folder)
        assert done.returncode in (0, 6, 7), done.stderr
        return json.loads(done.stdout)
    finally:
        for service in services:
            service.kill()
            service.wait()


def main() -> None:
    speedbump = str(pathlib.Path(sys.argv[1]).resolve())  # it runs in another folder
    program = pathlib.Path(sys.argv[2]) / "known_service"
    pairs, seconds = (int(text) for text in (sys.argv[3:5] + ["10", "60"][len(sys.argv) - 3:]))
    seed = int(sys.argv[5]) if len(sys.argv) > 5 else random.SystemRandom().getrandbits(32)
    chance = random.Random(seed)
    print(f"{pairs} pairs of {seconds} s, seed {seed}; change of a unit in %")
    print(f"{'true':>6} {'pace':>7} {'low':>7} {'high':>7} {'CPU':>7} {'low':>7} {'high':>7}  judged")
    found = worse = false = none = covered = 0
    for index in range(pairs):
        steps = chance.randrange(20_000, 200_000)
        change = 0.0 if index % 3 == 2 else chance.uniform(0, 0.05)
        loops = (steps, round(steps * (1 + change)))
        truth = loops[1] / loops[0] - 1
        document = measure(speedbump, program, loops, seconds)
        row = [100 * truth]
        for what in ("time per unit", "CPU per unit"):
            for one in document["changes"]:
                if one["what"] == what:
                    row += [100 * one["change"][key] for key in ("value", "low", "high")]
        pace = document["changes"][0]
        is_called = document["judgement"] == "worse"
        covered += pace["change"]["low"] <= truth <= pace["change"]["high"]
        worse += truth >= 0.01
        found += truth >= 0.01 and is_called
        none += truth == 0
        false += truth == 0 and is_called
        print(f"{row[0]:6.2f} " + " ".join(f"{value:7.2f}" for value in row[1:]) +
              f"  {document['judgement']}", flush=True)
    print(f"found {found} of {worse}; false {false} of {none}; {covered} of {pairs} intervals hold")


main()
