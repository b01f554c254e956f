#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Experiments on services whose answer is known.

  experiment.py SPEEDBUMP PROGRAMS [PART]...    as root; PROGRAMS: folder of known_service

  truth         estimate, interval and shape against the truth, native, Python and mixed
  coverage      of the 95 % interval in 20 live runs, and alarms of their sham targets
  gain          what the experiment predicts against what is gained when the function is made faster
  restarts      time to an interval, against restarting the service once per delay
  interference  the same experiment beside a load that comes and goes
  overhead      what speedbump uses itself in 60 s
"""

import contextlib
import json
import math
import pathlib
import statistics
import subprocess
import sys
import tempfile
import threading
import time

PYTHON_SERVICE = str(pathlib.Path(__file__).parents[1] / "programs" / "known_service.py")
TIME = "--time=20s"
# Of Student's t, by degrees of freedom: two-sided 95 %.
T95 = [math.nan, 12.71, 4.30, 3.18, 2.78, 2.57, 2.45, 2.36, 2.31, 2.26, 2.23, 2.20, 2.18, 2.16,
       2.14, 2.13, 2.12, 2.11, 2.10, 2.09, 2.09]


class Bench:
    def __init__(self, speedbump: str, programs: str):
        self.speedbump = speedbump
        self.native = str(pathlib.Path(programs) / "known_service")
        self.library = str(pathlib.Path(programs) / "libslowlib.so")

    @contextlib.contextmanager
    def service(self, kind: str, *times: str):
        """A running service. KIND/python is the one of known_service.py."""
        name, _, language = kind.partition("/")
        command = [self.native, name, *times]
        if language == "python":
            command = ["/usr/bin/python3", PYTHON_SERVICE, name, self.library]
        process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert process.stdout.readline() == "ready\n"
        try:
            yield process
        finally:
            process.kill()
            process.wait()

    def experiment(self, process, lines: list[str], *arguments: str) -> dict:
        is_python = PYTHON_SERVICE in process.args
        progress = "python:__main__:unit_done" if is_python else "native:exe:unit_done"
        with tempfile.NamedTemporaryFile("w", suffix=".txt") as targets:
            targets.write("\n".join(lines) + "\n")
            targets.flush()
            done = subprocess.run(
                [self.speedbump, "experiment", "--pid", str(process.pid), "--progress", progress,
                 "--json", "-q", "--max-slowdown=300%", "--max-cpu=2", *arguments, targets.name],
                capture_output=True, text=True,
            )
        if not done.stdout:
            sys.exit(f"speedbump ended with {done.returncode}: {done.stderr}")
        return json.loads(done.stdout)


def units(process) -> int:
    process.stdin.write("\n")
    process.stdin.flush()
    return int(process.stdout.readline())


def period_ns(process, seconds: float) -> float:
    """Of a unit, over so long."""
    start, before = time.monotonic_ns(), units(process)
    time.sleep(seconds)
    return (time.monotonic_ns() - start) / (units(process) - before)


def only_target(document: dict) -> dict:
    return document["results"]["progress"][0]["targets"][0]


def show(estimate: dict, digits: int = 3) -> str:
    return (f"{estimate['value']:.{digits}f} ({estimate['low']:.{digits}f} to "
            f"{estimate['high']:.{digits}f})")


# Kind, and for each targets line its truth: criticality, and slack in us (None: no hinge), up to
# which it is 0.
TRUTH = [
    ("serial", {"+exe:work_a": (1, None), "+exe:work_b": (1, None)}),
    ("paths", {"+exe:work_both": (1, None)}),
    ("leaf", {"+exe:work_leaf": (1, None), "+exe:work_a": (1, None)}),
    ("late", {"+exe:work_a": (1, None)}),
    ("apart", {"+exe:work_on": (1, None), "+exe:work_off": (0, None)}),
    ("slack", {"+exe:work_short": (1, 400)}),
    ("pipeline", {"+exe:work_second": (1, None), "+exe:work_first": (1, 300)}),
    ("convoy", {"+exe:work_locked": (5.3, None)}),
    ("serial/python", {"__main__:work_a": (1, None), "__main__:work_b": (1, None)}),
    ("mixed/python", {"__main__:work_a": (1, None), "+libslowlib.so:lib_work": (1, None)}),
    ("apart/python", {"__main__:work_on": (1, None), "__main__:work_off": (0, None)}),
    ("pipeline/python", {"__main__:work_second": (1, None), "__main__:work_first": (1, 300)}),
]


def truth(bench: Bench) -> None:
    print(f"{'service':16} {'target':24} {'truth':>14} {'criticality':>24} {'shape':8} "
          f"{'slack':>10} {'verdict'}")
    for kind, lines in TRUTH:
        with bench.service(kind) as process:
            document = bench.experiment(process, list(lines), TIME)
        for result in document["results"]["progress"][0]["targets"]:
            k, slack = lines[result["name"]]
            wanted = f"{k}" if slack is None else f"{k} after {slack} us"
            shown, shape, hinge = "nothing measured", "", ""
            if "criticality" in result:
                shown, shape = show(result["criticality"]), result["shape"]
                hinge = f"{result['slack_ns']['value'] / 1000:.0f} us" if "slack_ns" in result else "-"
            print(f"{kind:16} {result['name']:24} {wanted:>14} {shown:>24} {shape:8} {hinge:>10} "
                  f"{result.get('verdict', '')}", flush=True)


def coverage(bench: Bench, runs: int = 20) -> None:
    covered = alarms = 0
    with bench.service("serial") as process:
        for run in range(runs):
            document = bench.experiment(
                process, ["+exe:work_a"], "--time=10s", f"--seed={run}")
            found = only_target(document)["criticality"]
            covered += found["low"] <= 1 <= found["high"]
            alarms += not document["results"]["valid"]
    print(f"live coverage of the 95 % interval: {covered} of {runs}; runs that a sham target made "
          f"invalid: {alarms}")


# Kind, targets line, and what the function takes before and after it is made faster, in us.
FASTER = [
    ("serial", "+exe:work_a", 200, 150),
    ("paths", "+exe:work_both", 100, 80),
    ("leaf", "+exe:work_leaf", 3, 2),
    ("pipeline", "+exe:work_second", 600, 500),
    ("pipeline", "+exe:work_first", 300, 200),
    ("slack", "+exe:work_short", 500, 300),
    ("apart", "+exe:work_off", 300, 200),
]


def gain(bench: Bench, pairs: int = 6) -> None:
    print(f"{'service':10} {'target':18} {'made faster':>12} {'predicted gain, us a unit':>26} "
          f"{'real gain':>24}")
    for kind, line, before, after in FASTER:
        name = line.split("work_")[1]
        with bench.service(kind, f"{name}={before}") as process:
            result = only_target(bench.experiment(process, [line], TIME))
        predicted = "none"
        if result.get("gain_ns_per_us") is not None:
            one = result["gain_ns_per_us"]
            predicted = show({key: one[key] * (before - after) / 1000
                              for key in ("value", "low", "high")}, 1)
        gains = []
        for _ in range(pairs):
            periods = []
            for us in (before, after):
                with bench.service(kind, f"{name}={us}") as process:
                    time.sleep(0.3)
                    periods.append(period_ns(process, 1.5))
            gains.append((periods[0] - periods[1]) / 1000)
        half = T95[pairs - 1] * statistics.stdev(gains) / math.sqrt(pairs)
        mean = statistics.mean(gains)
        real = show({"value": mean, "low": mean - half, "high": mean + half}, 1)
        print(f"{kind:10} {line:18} {before - after:9} us {predicted:>26} {real:>24}", flush=True)


def restarts(bench: Bench) -> None:
    with bench.service("serial") as process:
        start = time.monotonic()
        document = bench.experiment(process, ["+exe:work_a"], "--precision=1%", "--time=300s")
        took = time.monotonic() - start
    found = only_target(document)["criticality"]
    wanted = (found["high"] - found["low"]) / 2
    print(f"experiment: {show(found)} after {took:.0f} s")
    # One cycle: the service started once for each delay, the delay built in, 0.5 s to warm up.
    slopes, delays = [], (0, 50, 100, 200)
    start = time.monotonic()
    half = math.inf
    while half > wanted and len(slopes) < len(T95) - 1:
        periods = []
        for delay in delays:
            with bench.service("serial", f"a={200 + delay}") as process:
                time.sleep(0.5)
                periods.append(period_ns(process, 2) / 1000)
        slopes.append(statistics.linear_regression(delays, periods).slope)
        if len(slopes) > 1:
            half = T95[len(slopes) - 1] * statistics.stdev(slopes) / math.sqrt(len(slopes))
    mean = statistics.mean(slopes)
    shown = show({"value": mean, "low": mean - half, "high": mean + half})
    print(f"restarts:   {shown} after {time.monotonic() - start:.0f} s, {len(slopes)} cycles of "
          f"{len(delays)} starts")


@contextlib.contextmanager
def load_that_comes_and_goes():
    """A busy process per CPU, 1.5 s on and 1.5 s off."""
    ended = threading.Event()

    def run() -> None:
        while not ended.is_set():
            busy = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(2)]
            ended.wait(1.5)
            for one in busy:
                one.kill()
                one.wait()
            ended.wait(1.5)

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def interference(bench: Bench) -> None:
    for label, load in (("alone", contextlib.nullcontext()), ("beside", load_that_comes_and_goes())):
        with bench.service("serial") as process, load:
            document = bench.experiment(process, ["+exe:work_a"], TIME)
        state = "valid" if document["results"]["valid"] else "INVALID"
        print(f"{label:7} {show(only_target(document)['criticality'])}, {state}; "
              f"{'; '.join(document['warnings']) or 'no warning'}", flush=True)


def overhead(bench: Bench) -> None:
    sizes = []
    ended = threading.Event()

    def watch() -> None:
        while not ended.wait(1):
            for status in pathlib.Path("/proc").glob("[0-9]*/status"):
                with contextlib.suppress(OSError, ValueError):
                    text = status.read_text()
                    if text.startswith("Name:\tspeedbump\n") and "VmRSS:" in text:
                        sizes.append(int(text.split("VmRSS:")[1].split()[0]))

    with bench.service("serial") as process:
        watcher = threading.Thread(target=watch)
        watcher.start()
        document = bench.experiment(process, ["+exe:work_a", "+exe:work_b"],
                                    "--time=60s")
        ended.set()
        watcher.join()
    large = [size for size in sizes if size > max(sizes) / 2]  # not its small guard process
    early, late = statistics.median(large[5:15]), statistics.median(large[-10:])
    print(f"60 s: {100 * document['tool_cpu']:.2f} % of a CPU; memory {early / 1024:.1f} MiB after "
          f"10 s, {late / 1024:.1f} MiB at the end; {len(document['sliced']['units'][0])} slices")


PARTS = {part.__name__: part
         for part in (truth, coverage, gain, restarts, interference, overhead)}


def main() -> None:
    speedbump, programs, *parts = sys.argv[1:]
    for part in parts or PARTS:
        if part not in PARTS:
            sys.exit(f"unknown part '{part}': {', '.join(PARTS)}")
        print(f"-- {part}", flush=True)
        PARTS[part](Bench(speedbump, programs))


if __name__ == "__main__":
    main()
