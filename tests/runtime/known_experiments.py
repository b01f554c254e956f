# SPDX-License-Identifier: MIT
"""Services whose answer is known (tests/programs/known_service), and experiments on them."""

import contextlib
import json
import pathlib
import re
import signal
import subprocess
import urllib.request

from harness import (
    EMULATED, LIBRARY, PROGRAMS, SPEEDBUMP, Patience, Run, Skip, _leftovers, children, cpu_ns, leave_none,
    lives, need, scratch, targets_file, wait_for,
)

PROGRESS = "native:exe:unit_done"
# As many blocks as this host's noise makes necessary; one look at a stalled host is no slow service.
UNTIL_KNOWN = ("--precision=15%", "--time=90s", "--max-slowdown=400%")
PYTHON_SERVICE = pathlib.Path(__file__).parents[1] / "programs" / "known_service.py"


def start(kind: str, *times: str) -> subprocess.Popen:
    return start_service(str(PROGRAMS / "known_service"), kind, *times)


def start_service(*command: str) -> subprocess.Popen:
    service = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    _leftovers.append(service.kill)
    assert service.stdout.readline() == "ready\n"
    return service


def start_python(kind: str) -> subprocess.Popen:
    python = need("/usr/bin/python3")
    service = start_service(python, str(PYTHON_SERVICE), kind, LIBRARY)
    if not EMULATED:  # there a list takes minutes, and its test knows where a core is
        done = Run("list", "--pid", str(service.pid), "__main__:unit_done")
        if "no core is built" in done.err:
            raise Skip(done.err)
    return service


class WithDocument(Run):
    """A run that writes a document and an HTML report."""

    def __init__(self, command: str, *arguments: str, **options):
        folder = scratch()
        folder.chmod(0o777)  # whoever runs it
        self.json_path, self.html_path = folder / "result.json", folder / "report.html"
        super().__init__(command, f"--output={self.json_path}", f"--html={self.html_path}",
                         *arguments, **options)

    @property
    def document(self) -> dict:
        return json.loads(self.json_path.read_text())

    def target(self, name: str) -> dict:
        found = [one for one in self.document["results"]["progress"][0]["targets"]
                 if one["name"] == name]
        assert found, f"{name} is not in {self}"
        return found[0]


class Experiment(WithDocument):
    """An experiment to its end, with its document and HTML report. `crowding` is how much longer
    the service's work took by the clock than by its CPU time, for others that had the CPUs: a delay
    costs it that much more too; of a service that has ended, in part or whole, nothing is known."""

    def __init__(self, pid: int, targets: str, *arguments: str, progress: str = PROGRESS,
                 **options):
        options.setdefault("timeout", 180)
        service = (pid, *children(pid))
        self.crowding: float | None = None
        waiting, worked = Patience(*service), cpu_ns(*service)
        super().__init__(
            "experiment", "--pid", str(pid), "--progress", progress, "--seed=7", *arguments,
            targets_file(targets), **options,
        )
        waited, worked = waiting.ns(), cpu_ns(*service) - worked
        if all(lives(one) for one in service):
            self.crowding = 1 + waited / max(1, worked)


class Measuring:
    """An experiment that runs on. Its live page tells how much it has measured."""

    def __init__(self, pid: int, targets: str, *arguments: str, progress: str = PROGRESS):
        self.process = subprocess.Popen(
            [SPEEDBUMP, "experiment", "--pid", str(pid), "--progress", progress, "--live=0",
             "--max-slowdown=400%",  # one look at a stalled host is no slow service
             *arguments, targets_file(targets)],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        leave_none(self._kill)
        said = self.process.stderr.readline()
        found = re.search(r"http://127\.0\.0\.1:\d+/[0-9a-f]{32}/", said)
        assert found, said + self.process.stderr.read()
        self.address = found[0]

    def _kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def data(self) -> dict:
        with urllib.request.urlopen(self.address + "data", timeout=10) as answer:
            return json.loads(answer.read())

    def measured(self) -> int:
        """Slices, or blocks of arms, of which something has been concluded."""
        with contextlib.suppress(OSError, ValueError):  # nothing is shown yet
            data = self.data()
            progress = data.get("experiment", {}).get("results", {}).get("progress", [])
            blocks = [one["blocks"] for point in progress for one in point["targets"]]
            return data.get("slices") or max(blocks, default=0)
        return 0

    def wait_for(self, count: int) -> None:
        wait_for(lambda: self.measured() >= count or self.process.poll() is not None, 120,
                 f"{count} slices or blocks")

    def end(self, how: signal.Signals | None = None) -> tuple[int, str, str]:
        """Its status, and what it wrote on stdout and stderr, after a signal or by itself."""
        if how is not None:
            self.process.send_signal(how)
        out, err = self.process.communicate(timeout=60)
        return self.process.returncode, out, err


def expect_times(experiment: Experiment) -> None:
    """When units are done has nothing to do with the edges of slices: in the middle of them, on average."""
    sliced = experiment.document["sliced"]
    units, since = sliced["units"][0], sliced["units_since_ns"][0]
    assert all(0 <= time <= count * sliced["slice_ns"] for count, time in zip(units, since)), experiment
    middle = sum(since) / sum(units) / sliced["slice_ns"]
    assert 0.45 < middle < 0.55, (middle, experiment)


def expect_k(experiment: Experiment, name: str, low: float, high: float) -> None:
    """The criticality may be between these two, as far as the experiment says that it knows."""
    k = experiment.target(name)["criticality"]
    assert k["high"] - k["low"] < 0.6, f"{name}: {k} says nothing: {experiment}"
    assert experiment.crowding is not None, f"the service ended: {experiment}"
    high *= experiment.crowding
    assert k["low"] <= high and low <= k["high"], (
        f"{name} has criticality {k}, not {low} to {high}: {experiment}")
