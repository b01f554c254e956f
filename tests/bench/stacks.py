# SPDX-License-Identifier: MIT
"""How many stacks are wrong, of programs whose possible stacks are known (tests/programs/stacks).

    stacks.py PROGRAMS [SAMPLES]

Needs root. Each Python of this host, each program, read from outside and, while it runs, by BPF;
SAMPLES (1,000,000) of each, a twentieth of the deep recursion's. Prints a line each: wrong stacks
and those reported as failed.
"""

import json
import os
import pathlib
import subprocess
import sys

SOURCE = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(SOURCE / "tests" / "runtime"))
PROGRAMS = ["alternating", "shared", "generators", "recursion", "reuse", "oversized", "threads"]


def main() -> None:
    check = str(pathlib.Path(sys.argv[1]) / "stack_check")
    samples = int(sys.argv[2]) if len(sys.argv) > 2 else 1_000_000
    os.environ.setdefault("SPEEDBUMP_BINARY", "speedbump")  # what pythons' helpers ask for
    os.environ.setdefault("SPEEDBUMP_PROGRAMS", sys.argv[1])
    import pythons

    code = (SOURCE / "tests/programs/stacks/trees.py").read_text()
    wrong = 0
    print(f"{'Python':<7} {'program':<12} {'how':<8} {'samples':>9} {'wrong':>6} {'failed':>8}")
    for python in pythons.find():
        for program in PROGRAMS:
            process = python.start(code, program)
            count = samples // 20 if program == "recursion" else samples
            for how in ([], ["0"]):
                done = subprocess.run(
                    [check, str(process.pid), program, str(count), *how],
                    capture_output=True, text=True,
                )  # fmt: skip
                if not done.stdout:
                    sys.exit(f"{python.name} {program}: {done.stderr}")
                found = json.loads(done.stdout)
                wrong += found["wrong"]
                print(
                    f"{python.name:<7} {program:<12} {'BPF' if how else 'outside':<8}"
                    f" {found['samples']:>9,} {found['wrong']:>6} {found['failed']:>8,}"
                    + (f"  {found['first_wrong']}" if found["wrong"] else ""),
                    flush=True,
                )
            process.kill()
            process.wait()
    print(f"{wrong} wrong")


if __name__ == "__main__":
    main()
