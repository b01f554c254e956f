#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""What a hit of the in-process engine costs and how right its delays are, in one run beside the BPF
engine, bpftrace and an untouched call.

  inprocess.py SPEEDBUMP BENCH_TARGET [experiment]    as root; BENCH_ROUNDS [9]

With "experiment": what looking costs redis under load, and the intervals, with both engines.
"""

import contextlib
import os
import pathlib
import statistics
import subprocess
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "runtime"))
os.environ["SPEEDBUMP_BINARY"] = sys.argv[1]
from harness import Run, Session, targets_file  # noqa: E402

FUNCTIONS = ("nop5", "push", "endbr64", "mov", "leaf")
SPREAD = "+exe:many_?\n+exe:many_??\n+exe:many_???\n+exe:many_1???\n"  # with options: 2,000
DELAYS = (20, 50, 100, 1_000, 10_000, 1_000_000)
ROUNDS = int(os.environ.get("BENCH_ROUNDS", "9"))


class Target:
    """A bench_target, which answers a line with a number."""

    def __init__(self, path: str):
        self.process = subprocess.Popen([path], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                        stderr=subprocess.DEVNULL, text=True)
        self.pid = self.process.pid

    def ask(self, question: str) -> float:
        self.process.stdin.write(question + "\n")
        self.process.stdin.flush()
        return float(self.process.stdout.readline())

    def calls(self, name: str, count: int) -> float:
        self.ask(f"calls {name} {count // 20 + 1}")
        return self.ask(f"calls {name} {count}")

    def spread(self, count: int) -> float:
        self.ask("spread 4000")
        return self.ask(f"spread {count}")


class Sample(list):
    def text(self) -> str:
        low, middle, high = statistics.quantiles(self, n=4)
        return f"{middle:.1f} +- {(high - low) / 2:.1f}"

    def middle(self) -> float:
        return statistics.median(self)


@contextlib.contextmanager
def attached(target: Target, targets: str, engine: str, *arguments: str):
    with Session(targets, f"--engine={engine}", *arguments, pid=target.pid) as session:
        time.sleep(0.3)
        yield session
        session.stop()


@contextlib.contextmanager
def bpftrace(target: Target, path: str, names: list[str]):
    program = " ".join(f"uprobe:{path}:{name} {{ @[{number}] = count(); }}"
                       for number, name in enumerate(names))
    other = subprocess.Popen(["bpftrace", "-p", str(target.pid), "-e", program],
                             stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    other.stdout.readline()
    time.sleep(0.3)
    try:
        yield
    finally:
        other.terminate()
        other.communicate()


def cost(target: Target, path: str) -> None:
    ways = ("plain", "disabled", "inprocess", "bpf", "bpftrace", "after")
    taken = {(name, way): Sample() for name in (*FUNCTIONS, "spread") for way in ways}

    def measure(way: str, calls: int) -> None:
        for name in FUNCTIONS:
            taken[name, way].append(target.calls(name, calls))
        if way != "bpftrace":
            taken["spread", way].append(target.spread(calls))

    targets = "".join(f"+exe:bench_{name} delay=0ns\n" for name in FUNCTIONS)
    targets += SPREAD.replace("\n", " delay=0ns\n")
    for _ in range(ROUNDS):
        measure("plain", 1_000_000)
        with attached(target, targets, "inprocess", "--paused"):
            measure("disabled", 1_000_000)
        with attached(target, targets, "inprocess"):
            measure("inprocess", 1_000_000)
        measure("after", 1_000_000)
        with attached(target, targets, "bpf"):
            measure("bpf", 10_000)
        with bpftrace(target, path, [f"bench_{name}" for name in FUNCTIONS]):
            measure("bpftrace", 10_000)
    print("Cost of a call with a delay of 0, ns; plain: untouched; disabled: jumps are in, paused; "
          "after: they are out\nadded: more than plain; share: of what BPF adds")
    print(f"{'function':10}" + "".join(f"{way:>16}" for way in ways) + f"{'added':>8}{'share':>8}")
    for name in (*FUNCTIONS, "spread"):
        cells = "".join(f"{taken[name, way].text() if taken[name, way] else '':>16}" for way in ways)
        plain = taken[name, "plain"].middle()
        added = taken[name, "inprocess"].middle() - plain
        share = added / (taken[name, "bpf"].middle() - plain)
        print(f"{name:10}{cells}{added:8.1f}{100 * share:7.1f}%")


def filters(target: Target) -> None:
    """What it costs to ask who calls, and on which thread, where the answer is yes, and no."""
    asked = ("", "caller=*", "caller=nobody", "thread=*", "thread=nobody", "caller=* thread=*")
    taken = {options: Sample() for options in ("plain", *asked)}
    for _ in range(ROUNDS):
        taken["plain"].append(target.calls("push", 1_000_000))
        for options in asked:
            with attached(target, f"+exe:bench_push delay=0ns {options}\n", "inprocess"):
                taken[options].append(target.calls("push", 1_000_000))
    print("\nA call of bench_push with a delay of 0, ns")
    for options, sample in taken.items():
        print(f"{options or 'neither':20}{sample.text():>16}")


def error(target: Target) -> None:
    print("\nDelays asked for and added, ns; spin: a loop of the program's own that looks at the clock "
          "until as much has passed")
    print(f"{'delay':>10}{'spin':>22}" +
          "".join(f"{engine:>22}{'error':>10}{'%':>8}" for engine in ("inprocess", "bpf")))
    for delay in DELAYS:
        calls = max(100, min(200_000, 50_000_000 // (delay + 500)))
        added = {way: Sample() for way in ("spin", "inprocess", "bpf")}
        below = set()
        for _ in range(ROUNDS):
            plain = target.calls("push", 500_000)
            added["spin"].append(target.ask(f"spins {delay} {calls}"))
            for engine in ("inprocess", "bpf"):
                with attached(target, f"+exe:bench_push delay={delay}ns", engine) as session:
                    if session.matched["targets"][0].get("below_floor", False):
                        below.add(engine)
                    added[engine].append(target.calls("push", calls) - plain)
        cells = f"{added['spin'].text():>22}"
        for engine in ("inprocess", "bpf"):
            off = added[engine].middle() - delay
            cells += f"{added[engine].text():>22}{off:+10.1f}{100 * off / delay:8.2f}"
            cells += " (below its floor)" if engine in below else ""
        print(f"{delay:10}{cells}")


def experiments() -> None:
    import services
    print("\nredis' lookupKey under pipelined load (-P 16), slices of 5 ms, 60 s with each engine")
    with services.redis() as server:
        benchmark = [services.need("redis-benchmark"), "-p", str(server.port), "-d", "100",
                     "-r", "10000"]
        subprocess.run([*benchmark, "-q", "-t", "set"], stdout=subprocess.DEVNULL, check=True)
        load = subprocess.Popen([*benchmark, "-P", "16", "-c", "8", "-n", "1000000000", "-t", "get"],
                                stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            for engine in ("bpf", "inprocess", "bpf", "inprocess"):
                run = Run("experiment", f"--engine={engine}", "--pid", str(server.pid),
                          "--progress=native:exe:readQueryFromClient", "--slice=5ms", "--time=60s", "--seed=7",
                          "--max-slowdown=400%", targets_file("+exe:lookupKey\n"), timeout=180)
                print(f"--- {engine} (status {run.status})\n{run.out}{run.err}")
        finally:
            load.kill()
            load.wait()


def main() -> None:
    path = sys.argv[2]
    if "experiment" in sys.argv[3:]:
        experiments()
        return
    target = Target(path)
    cost(target, path)
    filters(target)
    error(target)


if __name__ == "__main__":
    main()
