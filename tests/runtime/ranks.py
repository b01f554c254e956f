# SPDX-License-Identifier: MIT
"""A bulk-synchronous MPI job (tests/programs/bsp), each rank on a host of its own (hosts.py)."""

import contextlib
import os
import pathlib
import signal
import subprocess

from fleets import Fleet, Started
from harness import PROGRAMS, Skip, leave_none, need, wait_for
from hosts import Hosts

_PYTHON = "/usr/bin/python3"  # the one that the distribution's mpi4py is for
_SCRIPT = str(pathlib.Path(__file__).parents[1] / "programs" / "bsp" / "bsp.py")


class Ranks:
    """So many ranks as there are times of a step in us, until the end of the test."""

    def __init__(self, *times_us: int, python: bool = False, seconds: int = 600):
        if not (PROGRAMS / "bsp").exists():
            raise Skip("Open MPI is not installed")
        if python and subprocess.run([_PYTHON, "-c", "import mpi4py"], capture_output=True).returncode:
            raise Skip("mpi4py is not installed")
        self.times_us = times_us
        self._exe = os.path.realpath(_PYTHON) if python else str(PROGRAMS / "bsp")
        self.hosts = hosts = Hosts(len(times_us))
        program = [_PYTHON, _SCRIPT] if python else [self._exe]
        job = subprocess.Popen(
            [need("mpirun"), "--allow-run-as-root", "--oversubscribe", "--bind-to", "none",
             "-np", str(len(times_us)), "--host", ",".join(hosts.names), "--map-by", "node",
             "--mca", "plm_rsh_agent", " ".join(hosts.ssh), "--mca", "plm_rsh_no_tree_spawn", "1",
             "--mca", "btl", "tcp,self", "--mca", "pml", "ob1",
             "--mca", "btl_tcp_if_include", f"{hosts.net}.0/24",
             "--mca", "oob_tcp_if_include", f"{hosts.net}.0/24",
             *program, str(seconds), *map(str, times_us)],
            start_new_session=True, stdout=subprocess.DEVNULL)
        leave_none(lambda: (job.send_signal(signal.SIGTERM), job.wait()))
        wait_for(lambda: all(self.pids().values()), 60, "a rank on each host")
        self.where = "__main__:work_step" if python else "+exe:work_step"
        self.progress = "python:__main__:step_done" if python else "native:exe:step_done"

    @property
    def exe(self) -> str:
        """What --exe takes."""
        return pathlib.Path(self._exe).name

    def pids(self) -> dict[str, list[int]]:
        found: dict[str, list[int]] = {name: [] for name in self.hosts.names}
        spaces = {os.readlink(f"/proc/{pid}/ns/pid"): name for name, pid in self.hosts.pids.items()}
        for entry in pathlib.Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                if os.readlink(entry / "exe") == self._exe:
                    found.get(spaces.get(os.readlink(entry / "ns/pid")), []).append(int(entry.name))
        return found

    def experiment(self, seconds: int, slice_ms: int = 50, **options) -> Fleet:
        """One rank slowed at a time; the job goes as fast as its slowest."""
        return Fleet(self.hosts, self.where + "\n", *self._words(seconds), slice_ms=slice_ms,
                     timeout=seconds + 120, **options)

    def begin(self, seconds: int, slice_ms: int = 50) -> Started:
        """The same, to be ended before."""
        return Started(self.hosts, self.where + "\n", *self._words(seconds), slice_ms=slice_ms)

    def _words(self, seconds: int) -> tuple[str, ...]:
        return (f"--exe={self.exe}", "--where=each", f"--progress=min:{self.progress}",
                f"--time={seconds}s", "--precision=1%", f"--doses={max(self.times_us) * 8 // 10}us",
                "--max-cpu=8")

    def slacks(self, done: Fleet) -> list[tuple[str, int, dict]]:
        """Of each rank: its host, its true slack in us, and what was found of it."""
        return [(name, max(self.times_us) - time_us, done.target(f"{self.where} @ {name}"))
                for name, time_us in zip(self.hosts.names, self.times_us)]


def slack_us(found: dict) -> float:
    """Of a call, as found; of a unit there may be several."""
    return found["slack_ns"]["value"] / found["calls_per_unit"] / 1000
