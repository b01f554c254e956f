#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Experiments on services whose answer is known: estimate against truth, coverage of the 95 %
interval, false alarms of the sham target, and what speedbump itself uses.

  experiment.py SPEEDBUMP KNOWN_SERVICE [truth|coverage [RUNS]]...    as root
"""

import contextlib
import json
import subprocess
import sys
import tempfile

# kind, doses, and for each function its truth: criticality, and slack in us (None: no hinge).
TRUTH = [
    ("serial", "50us,100us,150us,200us", {"a": (1, None), "b": (1, None)}),
    ("paths", "25us,50us,75us,100us", {"both": (1, None)}),
    ("apart", "50us,100us,150us,200us", {"on": (1, None), "off": (0, None)}),
    ("slack", "200us,400us,600us,800us,1ms", {"short": (1, 400)}),
    ("pipeline", "150us,300us,450us,600us,750us", {"second": (1, None), "first": (1, 300)}),
    ("convoy", "100us,200us,300us,400us", {"locked": (4, None)}),
]


@contextlib.contextmanager
def service(program: str, kind: str):
    process = subprocess.Popen([program, kind], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    process.stdout.readline()
    try:
        yield process.pid
    finally:
        process.kill()
        process.wait()


def experiment(speedbump: str, pid: int, functions, *arguments: str) -> dict:
    with tempfile.NamedTemporaryFile("w", suffix=".txt") as targets:
        targets.write("".join(f"+exe:work_{name}\n" for name in functions))
        targets.flush()
        done = subprocess.run(
            [speedbump, "experiment", "--pid", str(pid), "--progress", "native:exe:unit_done",
             "--json", "-q", "--max-slowdown=300%", "--max-cpu=2", *arguments, targets.name],
            capture_output=True, text=True,
        )
    if not done.stdout:
        sys.exit(f"speedbump ended with {done.returncode}: {done.stderr}")
    return json.loads(done.stdout)


def truth(speedbump: str, program: str) -> None:
    print(f"{'service':10} {'function':9} {'truth':>16} {'criticality':>12} {'95% interval':>18} "
          f"{'shape':8} {'slack':>10}")
    for kind, doses, functions in TRUTH:
        with service(program, kind) as pid:
            document = experiment(speedbump, pid, functions, f"--doses={doses}", "--blocks=8")
        for result in document["results"]["progress"][0]["targets"]:
            name = result["name"].removeprefix("+exe:work_")
            k, slack = functions[name]
            wanted = f"{k}" if slack is None else f"{k} after {slack} us"
            if "criticality" not in result:
                print(f"{kind:10} {name:9} {wanted:>16}   nothing measured")
                continue
            found = result["criticality"]
            shown = f"{result['slack_ns']['value'] / 1000:.0f} us" if "slack_ns" in result else "-"
            print(f"{kind:10} {name:9} {wanted:>16} {found['value']:12.3f} "
                  f"{found['low']:8.3f} to {found['high']:6.3f} {result['shape']:8} {shown:>10}",
                  flush=True)


def coverage(speedbump: str, program: str, runs: int) -> None:
    covered = alarms = 0
    cpu = []
    with service(program, "serial") as pid:
        for run in range(runs):
            document = experiment(speedbump, pid, ["a"], "--doses=50us,100us,150us", "--blocks=8",
                                  "--slice=100ms", "--settle=20ms", f"--seed={run}")
            progress = document["results"]["progress"][0]
            found = progress["targets"][0]["criticality"]
            covered += found["low"] <= 1 <= found["high"]
            alarms += not document["results"]["valid"]
            cpu.append(document["tool_cpu"])
    print(f"live coverage of the 95% interval: {covered} of {runs}; runs with a sham that alarms: "
          f"{alarms}; speedbump used {100 * max(cpu):.1f}% of a CPU at most")


def main() -> None:
    speedbump, program, *parts = sys.argv[1:]
    runs = 20
    for part in parts or ["truth", "coverage"]:
        if part.isdigit():
            continue
        if part == "truth":
            truth(speedbump, program)
        elif part == "coverage":
            following = parts[parts.index(part) + 1:][:1] if part in parts else []
            if following and following[0].isdigit():
                runs = int(following[0])
            coverage(speedbump, program, runs)
        else:
            sys.exit(f"unknown part '{part}'")


if __name__ == "__main__":
    main()
