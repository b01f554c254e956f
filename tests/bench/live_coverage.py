#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""How often `experiment` is right in short slices, over running services drawn at random.

  live_coverage.py SPEEDBUMP PROGRAMS [COUNT [SEED]]    as root; COUNT: 120

The seed is drawn anew unless given, and printed. Each thread of a service has a CPU (so there must be
two): where it has to wait for one a delay takes more than what was drawn, by as much as nobody knows.
Half of the services run beside a busy process; where that would take a CPU from them it runs only
while nobody else wants to (SCHED_IDLE). For each kind: intervals, the share of them that hold the
truth, the median of their half-widths; of those with a criticality above 0.2 how many were found, and
how many called hidden; of those that are hidden how many were told so, and how many said to matter; how
many say nothing. Status 1: not as promised.
LIVE_SECONDS (20) is how long each is looked at. `bench.sh coverage` has the same for simulated
services, and more of them.
"""

import contextlib
import dataclasses
import os
import pathlib
import random
import statistics
import subprocess
import sys
from collections.abc import Callable, Iterator

from experiment import PYTHON_SERVICE, Bench

SECONDS = int(os.environ.get("LIVE_SECONDS", "20"))
CPUS = sorted(os.sched_getaffinity(0))
PLAIN = 0.2  # a criticality above this must not be called hidden


@dataclasses.dataclass
class Service:
    command: list[str]
    truth: dict[str, float]  # of each targets line
    threads: int


def native(structure: str, threads: list[str], truth: dict[int | str, float]) -> Service:
    names = {f"+exe:f{name}" if isinstance(name, int) else f"+exe:{name}": k
             for name, k in truth.items()}
    return Service(["drawn_service", structure, *threads], names, len(threads))


def by_ratio(draw: random.Random, low: float, high: float) -> float:
    return low * (high / low) ** draw.random()


def work(function: int, us: float, times: int = 1, every: int = 1) -> str:
    return f"{function}:{us:.3f}x{times}/{every}"


# --- kinds of service. What is hidden has room for more than a dose adds.


def serial(draw: random.Random) -> Service:
    period, parts = by_ratio(draw, 200, 1500), draw.randint(2, 5)
    calls, truth = [], {}
    for part in range(parts):
        times = draw.randint(1, 3)
        calls.append(work(part, period / parts * draw.uniform(0.5, 1.5) / times, times))
        truth[part] = 1.0
    return native("serial", [",".join(calls)], truth)


def hot_leaf(draw: random.Random) -> Service:
    leaf_us, times, rest = by_ratio(draw, 1, 10), draw.randint(20, 100), draw.uniform(20, 300)
    return native("serial", [f"{work(0, leaf_us, times)},{work(1, rest)}"], {0: 1.0, 1: 1.0})


def nested(draw: random.Random) -> Service:
    period, times = by_ratio(draw, 200, 1500), draw.randint(1, 10)
    return native("serial", [f"{work(0, period / 2 / times, times)},{work(1, period / 2)}"],
                  {"unit_work": 1.0, 0: 1.0})


def rare_calls(draw: random.Random) -> Service:
    period, every = by_ratio(draw, 50, 300), int(by_ratio(draw, 2, 1000))
    rare = min(period * every * draw.uniform(0.2, 0.8), 20_000)
    return native("serial", [f"{work(0, period)},{work(1, rare, 1, every)}"], {0: 1.0, 1: 1.0})


def paced(draw: random.Random) -> Service:
    gap, parts = by_ratio(draw, 400, 2000), draw.randint(1, 3)
    busy = gap * draw.uniform(0.2, 0.4)
    return native(f"paced={gap:.0f}", [",".join(work(i, busy / parts) for i in range(parts))],
                  {i: 0.0 for i in range(parts)})


def threads_of(draw: random.Random, most: int) -> int:
    return draw.randint(2, max(2, min(most, len(CPUS))))


def beside_the_longest(draw: random.Random, most: int) -> tuple[list[str], dict]:
    """A function for each thread, the longest of which is a random one."""
    count, longest_us = threads_of(draw, most), by_ratio(draw, 500, 2000)
    longest = draw.randrange(count)
    threads = [work(i, longest_us * (1 if i == longest else draw.uniform(0.2, 0.5)))
               for i in range(count)]
    return threads, {i: float(i == longest) for i in range(count)}


def fork_and_join(draw: random.Random) -> Service:
    return native("join", *beside_the_longest(draw, 3))


def pipeline(draw: random.Random) -> Service:
    return native(f"pipeline={draw.randint(1, 16)}", *beside_the_longest(draw, 3))


def prefetch(draw: random.Random) -> Service:
    return native(f"pipeline={draw.randint(17, 128)}", *beside_the_longest(draw, 2))


def off_the_path(draw: random.Random) -> Service:
    on, off = by_ratio(draw, 300, 1500), by_ratio(draw, 300, 1500)
    return native("apart", [work(0, on), work(1, off)], {0: 1.0, 1: 0.0})


def pool(draw: random.Random) -> Service:
    threads, us = threads_of(draw, 4), [by_ratio(draw, 300, 1500) for _ in range(2)]
    calls = ",".join(work(i, one) for i, one in enumerate(us))
    return native("pool", [calls] * threads, {0: 1 / threads, 1: 1 / threads})


def convoy(draw: random.Random) -> Service:
    threads, locked = threads_of(draw, 4), by_ratio(draw, 300, 1000)
    rest = locked * (threads - 1) * draw.uniform(0.2, 0.5)  # the lock is never free
    return native("convoy", [f"{work(0, locked)},{work(1, rest)}"] * threads, {0: 1.0, 1: 0.0})


def batches_aside(draw: random.Random) -> Service:
    period, every = by_ratio(draw, 300, 1000), draw.randint(2, 9)
    batch = period * every * draw.uniform(0.2, 0.5)
    return native(f"aside={every}", [work(0, period), work(1, batch)], {0: 1.0, 1: 0.0})


def python(draw: random.Random) -> Service:
    kind, threads, truth = draw.choice([
        ("serial", 1, {"__main__:work_a": 1.0, "__main__:work_b": 1.0}),
        ("mixed", 1, {"__main__:work_a": 1.0, "+libslowlib.so:lib_work": 1.0}),
        ("apart", 2, {"__main__:work_on": 1.0, "__main__:work_off": 0.0}),
        ("pipeline", 2, {"__main__:work_second": 1.0, "__main__:work_first": 0.0}),
    ])
    return Service(["/usr/bin/python3", PYTHON_SERVICE, kind], truth, threads)


KINDS: list[Callable[[random.Random], Service]] = [
    serial, hot_leaf, nested, rare_calls, paced, fork_and_join, pipeline, prefetch, off_the_path,
    pool, convoy, batches_aside, python]


# --- judging


@dataclasses.dataclass
class Tally:
    intervals: int = 0
    held: int = 0
    matter: int = 0
    found: int = 0
    called_hidden: int = 0
    hidden: int = 0
    told: int = 0
    said_to_matter: int = 0
    silent: int = 0
    shams: int = 0
    alarms: int = 0
    half_widths: list[float] = dataclasses.field(default_factory=list)

    def __add__(self, other: "Tally") -> "Tally":
        return Tally(*(getattr(self, field.name) + getattr(other, field.name)
                       for field in dataclasses.fields(self)))

    def add(self, result: dict, truth: float) -> bool:
        """Whether the result is right, as far as it says something."""
        k, verdict, before = result["criticality"], result["verdict"], self.held
        self.intervals += 1
        self.held += k["low"] <= truth <= k["high"]
        self.half_widths.append((k["high"] - k["low"]) / 2)
        self.silent += verdict in ("uncertain", "unknown")
        if truth > PLAIN:
            self.matter += 1
            self.found += verdict == "matters"
            self.called_hidden += verdict == "hidden"
        else:
            self.hidden += 1
            self.told += verdict == "hidden"
            self.said_to_matter += verdict == "matters"
        return self.held > before and verdict != ("hidden" if truth > PLAIN else "matters")

    def __str__(self) -> str:
        covered = self.held / self.intervals if self.intervals else 0
        width = statistics.median(self.half_widths) if self.half_widths else 0
        return (f"{self.intervals:5} {covered:6.3f} {width:6.3f} {self.matter:6} {self.found:6} "
                f"{self.called_hidden:6} {self.hidden:6} {self.told:6} {self.said_to_matter:6} "
                f"{self.silent:6} {self.alarms:4}/{self.shams}")


HEADER = (f"{'':16} {'k':>5} {'cover':>6} {'+-':>6} {'>0.2':>6} {'found':>6} {'hidden':>6} {'0':>6} "
          f"{'found':>6} {'matter':>6} {'silent':>6} {'sham':>6}")


# Ends with the benchmark, however that ends.
BUSY = """
import os
parent = os.getppid()
while os.getppid() == parent:
    for _ in range(1_000_000):
        pass
"""


@contextlib.contextmanager
def other_load(service: int, threads: int) -> Iterator[None]:
    """A process that is always busy, on the last CPU."""
    busy = subprocess.Popen([sys.executable, "-c", BUSY])
    try:
        os.sched_setaffinity(busy.pid, CPUS[-1:])
        if threads < len(CPUS):
            for thread in os.listdir(f"/proc/{service}/task"):
                os.sched_setaffinity(int(thread), CPUS[:-1])
        else:
            os.sched_setscheduler(busy.pid, os.SCHED_IDLE, os.sched_param(0))
        yield
    finally:
        busy.kill()
        busy.wait()


def examine(bench: Bench, programs: str, seed: int, number: int, tallies: dict[str, Tally]) -> None:
    draw = random.Random(seed + number)
    kind = KINDS[number % len(KINDS)]
    service, load = kind(draw), draw.random() < 0.5
    if service.command[0] == "drawn_service":
        service.command[0] = str(pathlib.Path(programs) / "drawn_service")
    else:
        service.command.append(bench.library)
    process = subprocess.Popen(service.command, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                               text=True)
    try:
        assert process.stdout.readline() == "ready\n"
        with other_load(process.pid, service.threads) if load else contextlib.nullcontext():
            document = bench.experiment(
                process, list(service.truth), f"--time={SECONDS}s", f"--seed={seed + number}")
    finally:
        process.kill()
        process.wait()
    tally = tallies.setdefault(kind.__name__, Tally())
    progress = document["results"]["progress"][0]
    if sham := progress.get("sham"):
        tally.shams += 1
        tally.alarms += not sham["low"] <= 0 <= sham["high"]
    for result in progress["targets"]:
        truth = service.truth[result["name"]]
        if not result.get("criticality") or result["criticality"]["low"] is None:
            tally.silent += 1
        elif not tally.add(result, truth):
            k = result["criticality"]
            print(f"{number}: {result['name']} is {truth:.3f}, said {result['verdict']}, "
                  f"{k['value']:.3f} ({k['low']:.3f} to {k['high']:.3f}): "
                  f"{' '.join(service.command[-4:])}{', beside a busy process' if load else ''}",
                  flush=True)


def is_as_promised(total: Tally) -> bool:
    promises = {
        "95 +- 2 % of the intervals": 0.93 <= total.held / total.intervals <= 0.97,
        "sham alarms at most 5 %": total.alarms <= 0.05 * total.shams,
        "none that matters is called hidden": total.called_hidden == 0,
        "at most 2 % of those hidden are said to matter":
            total.said_to_matter <= 0.02 * total.hidden,
    }
    for promise, holds in promises.items():
        if not holds:
            print(f"not as promised: {promise}")
    return all(promises.values())


def main() -> None:
    speedbump, programs, *rest = sys.argv[1:]
    if len(CPUS) < 2:
        sys.exit("needs two CPUs")
    count = int(rest[0]) if rest else 120
    seed = int(rest[1]) if len(rest) > 1 else random.SystemRandom().randrange(1 << 32)
    print(f"{count} services from seed {seed}", flush=True)
    bench, tallies = Bench(speedbump, programs), {}
    for number in range(count):
        examine(bench, programs, seed, number, tallies)
    print(HEADER)
    for kind, tally in sorted(tallies.items()):
        print(f"{kind:16} {tally}")
    total = sum(tallies.values(), Tally())
    print(f"{'all':16} {total}")
    sys.exit(not is_as_promised(total))


if __name__ == "__main__":
    main()
