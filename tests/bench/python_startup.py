#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""What the installed package adds to the start of a Python that it is not asked to slow.

Usage: python_startup.py [interpreters.tsv [name...]]. For each interpreter three virtual environments:
two empty ones, whose difference is the noise, and one with the package; their starts are measured in
turn, with SPEED_BUMP_TARGETS unset. Milliseconds, medians with half the interquartile range.
"""

from __future__ import annotations

import os
import pathlib
import shutil
import statistics
import subprocess
import sys
import tempfile
import time

ROUNDS = 101


def make_environment(python: str, folder: pathlib.Path) -> pathlib.Path:
    """Its site-packages."""
    subprocess.run([python, "-m", "venv", "--without-pip", str(folder)], check=True)
    (site,) = folder.glob("lib/python3.*/site-packages")
    return site


def start(folder: pathlib.Path, environment: dict[str, str]) -> float:
    begin = time.perf_counter()
    subprocess.run([str(folder / "bin/python"), "-c", "pass"], check=True, env=environment)
    return (time.perf_counter() - begin) * 1000


def text(values: list[float]) -> str:
    low, middle, high = statistics.quantiles(values, n=4)
    return f"{middle:6.2f} +- {(high - low) / 2:.2f}"


def main() -> None:
    table = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else "build/pyext/interpreters.tsv")
    environment = {key: value for key, value in os.environ.items() if key != "SPEED_BUMP_TARGETS"}
    print(f"{'':10} {'empty':>16} {'empty again':>16} {'package':>16}   difference (noise), ms")
    for line in table.read_text().splitlines():
        name, python, package = line.split("\t")
        if len(sys.argv) > 2 and name not in sys.argv[2:]:
            continue
        with tempfile.TemporaryDirectory() as folder:
            kinds = [pathlib.Path(folder) / kind for kind in ("empty", "again", "package")]
            try:
                sites = [make_environment(python, kind) for kind in kinds]
                start(kinds[0], environment)  # a Python in a chroot makes them where it sees them
            except (OSError, subprocess.CalledProcessError):
                print(f"{name:10} skipped: it makes no virtual environments")
                continue
            shutil.copytree(package, sites[2], dirs_exist_ok=True)
            times: list[list[float]] = [[], [], []]
            for _ in range(ROUNDS):
                for kind, measured in zip(kinds, times):
                    measured.append(start(kind, environment))
            empty, again, with_package = (statistics.median(each[1:]) for each in times)
            columns = " ".join(f"{text(each[1:]):>16}" for each in times)
            print(f"{name:10} {columns}   {with_package - empty:+.2f} ({again - empty:+.2f})",
                  flush=True)


if __name__ == "__main__":
    main()
