# SPDX-License-Identifier: MIT
"""speedbump experiment --ab: two builds side by side, whose difference is known.

Both share one CPU: whatever else the host does, the scheduler gives both alike of it.
"""

import json
import os
import pathlib
import signal
import subprocess
import xml.etree.ElementTree

from experiment_test import PROGRESS, start
from harness import (
    SPEEDBUMP, Run, alone, changed_bytes, cpu_ns, expect_restored, leave_none, main, scratch,
    wait_for,
)

# As long as this host's noise makes necessary.
UNTIL_KNOWN = ("--precision=8%", "--time=120s")


def pair(a: int, b: int) -> tuple[subprocess.Popen, subprocess.Popen]:
    """Services that take so many steps of a loop for a unit."""
    services = tuple(start("counted", f"loops={loops}") for loops in (a, b))
    cpu = min(os.sched_getaffinity(0))
    for service in services:
        for task in pathlib.Path(f"/proc/{service.pid}/task").iterdir():
            os.sched_setaffinity(int(task.name), {cpu})
    return services


class Compared(Run):
    def __init__(self, services, *arguments: str, progress: str = PROGRESS, **options):
        self.json_path = scratch() / "ab.json"
        options.setdefault("timeout", 180)
        super().__init__(
            "experiment", "--ab", *(str(service.pid) for service in services),
            "--progress", progress, f"--output={self.json_path}", *arguments, **options)

    @property
    def document(self) -> dict:
        return json.loads(self.json_path.read_text())

    def change(self, what: str) -> dict:
        found = [one for one in self.document["changes"] if one["what"] == what]
        assert found, f"{what} is not in {self}"
        return found[0]["change"]


@alone
def test_a_slower_build_is_worse() -> None:
    services = pair(40000, 50000)
    junit_path = scratch() / "junit.xml"
    done = Compared(services, *UNTIL_KNOWN, "--fail-if-worse=5%", f"--junit={junit_path}")
    assert done.status == 6, done
    assert f"{PROGRESS}: time per unit is worse by" in done.out, done
    pace, cpu = done.change("time per unit"), done.change("CPU per unit")
    # That the interval holds the truth in 95 % of runs is for unit.simulated.pairs to show.
    assert abs(pace["value"] - 0.25) < 0.16 and pace["low"] > 0.05, pace
    assert abs(cpu["value"] - 0.25) < 0.08, cpu
    document = done.document
    assert document["schema"] == "speedbump/ab/1" and document["judgement"] == "worse"
    assert document["pids"] == [service.pid for service in services]
    total = [sum(one["progress"][0][side] for one in document["slices"]) for side in (0, 2)]
    assert total[0] > total[1] > 0, total
    junit = xml.etree.ElementTree.parse(junit_path).getroot()
    assert any("time per unit" in case.get("name") and case.find("failure") is not None
               for case in junit.iter("testcase")), junit
    for service in services:
        expect_restored(service.pid)


@alone
def test_the_same_build_is_not_worse() -> None:
    done = Compared(pair(40000, 40000), *UNTIL_KNOWN, "--fail-if-worse=20%")
    assert done.status == 0 and "not worse: b does not take 20%" in done.out, done


@alone
def test_a_faster_build_is_not_worse() -> None:
    done = Compared(pair(50000, 40000), *UNTIL_KNOWN, "--fail-if-worse=5%")
    assert done.status == 0 and done.change("time per unit")["high"] < 0, done


@alone
def test_percentiles_of_both() -> None:
    services = start("serial", "a=100", "b=100"), start("serial", "a=900", "b=100")
    done = Compared(services, "--time=5s", progress="latency:exe:work_a")
    # The clock is the service's own work: a unit takes four times as long or more, on any host.
    assert done.change("p50")["low"] > 1, done


def begin(services, *arguments: str) -> subprocess.Popen:
    """A comparison that has begun to measure: each of the two has worked for a while since it was
    probed."""
    experiment = subprocess.Popen(
        [SPEEDBUMP, "experiment", "--ab", *(str(one.pid) for one in services), "--progress",
         PROGRESS, *arguments],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    leave_none(lambda: (experiment.kill(), experiment.wait()))
    wait_for(lambda: all(changed_bytes(one.pid) for one in services), 60, "probes in both")
    before = [cpu_ns(one.pid) for one in services]
    wait_for(lambda: all(cpu_ns(one.pid) - ns > 2e9 for one, ns in zip(services, before)), 120,
             "two seconds of work of each")
    return experiment


def test_one_that_ends_is_doubted() -> None:
    services = pair(40000, 40000)
    experiment = begin(services, "--time=300s", "--fail-if-worse=1%")
    services[1].kill()
    services[1].wait()
    out, err = experiment.communicate(timeout=60)
    assert experiment.returncode == 7, out + err
    assert "doubt: it was cut short: b: its processes ended" in out, out + err
    expect_restored(services[0].pid)


def test_interrupted() -> None:
    services = pair(40000, 40000)
    experiment = begin(services)
    experiment.send_signal(signal.SIGINT)
    out, err = experiment.communicate(timeout=20)
    assert experiment.returncode == 1 and "ended by: interrupted" in out, out + err
    for service in services:
        expect_restored(service.pid)


def test_what_does_not_tell_them_apart_is_refused() -> None:
    services = pair(40000, 40000)
    done = Compared(services, progress="command:echo 1")
    assert done.status == 2 and "does not tell the two of --ab apart" in done.err, done
    done = Compared(services, progress="python:app:f")
    assert done.status == 2 and "cannot be counted with --ab yet" in done.err, done
    done = Compared(services, progress="syscall:listen")
    assert done.status == 1 and "did not tick within 5 s in a and b" in done.err, done


if __name__ == "__main__":
    main(globals())
