# SPDX-License-Identifier: MIT
"""Whatever is killed, and whenever: the target lives, its code does what it did, nothing stays.

What kills: the whole cgroup of the loader, everything that has its name, and the OOM killer, which
takes all that shares the memory. When: while it loads, attaches, hooks Python, is armed, detaches.
"""

import contextlib
import os
import pathlib
import random
import signal
import struct
import subprocess
import sys
import time

from harness import (
    MS, SPEEDBUMP, Skip, _leftovers, campaign, changed_bytes, expect_restored, expect_unslowed, main,
    scratch, start_puppet, targets_file, wait_for,
)
from pythons import find as find_pythons

LINES = "+exe:* delay=1ms every=1000\n+libc.so.6:str* delay=0\n__main__:beat delay=1ms\n"
PHASES = ("load", "attach", "hook", "armed", "detach")
LIMITS = pathlib.Path(__file__).parent / "inject" / "limits.py"
KEEPER = "probe-keeper"  # user/engine/shielded.cpp
CONTROL = pathlib.Path("/run/speedbump")
NAME = f"sbump{os.getpid()}"  # of the loader: nothing else is called that
MIB = 1 << 20


def cgroups() -> pathlib.Path:
    """The top of cgroup v2, alone or beside v1."""
    for line in pathlib.Path("/proc/self/mountinfo").read_text().splitlines():
        if " - cgroup2 " in line:
            return pathlib.Path(line.split()[4])
    raise Skip("no cgroup v2 is mounted")


def memory_groups() -> tuple[pathlib.Path, str]:
    """Where groups with a limit of memory are made, and the file of the limit."""
    v1 = pathlib.Path("/sys/fs/cgroup/memory")
    if (v1 / "memory.limit_in_bytes").exists():
        return v1, "memory.limit_in_bytes"
    v2 = cgroups()
    with contextlib.suppress(OSError):
        (v2 / "cgroup.subtree_control").write_text("+memory")
    if "memory" in (v2 / "cgroup.subtree_control").read_text().split():
        return v2, "memory.max"
    raise Skip("no limits of memory here")


def processes(name: str) -> list[int]:
    """Those that run and whose name or command line has it, as `pkill` and `pkill -f` see it. One
    that has ended and that init has not looked at yet is none."""
    found = []
    for entry in pathlib.Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                shown = (entry / "comm").read_bytes() + (entry / "cmdline").read_bytes()
                state = (entry / "stat").read_text(errors="replace").rpartition(")")[2].split()[0]
                if name.encode() in shown and state != "Z":
                    found.append(int(entry.name))
    return found


class Group:
    """A cgroup that is removed at the end, when all that was in it must have ended."""

    def __init__(self, parent: pathlib.Path):
        self.path = parent / f"speedbump-test-{os.getpid()}-{time.monotonic_ns()}"
        try:
            self.path.mkdir()
        except OSError as error:
            raise Skip(f"no cgroup can be made: {error}") from error

    def join(self) -> None:
        (self.path / "cgroup.procs").write_text(str(os.getpid()))

    def remove(self) -> None:
        wait_for(lambda: not (self.path / "cgroup.procs").read_text(), 5, "an empty cgroup")
        self.path.rmdir()


class ByCgroup:
    """cgroup.kill of the loader's cgroup."""

    def __init__(self) -> None:
        self.group = Group(cgroups())

    def join(self) -> None:
        self.group.join()

    def kill(self) -> None:
        (self.group.path / "cgroup.kill").write_text("1")

    def end(self) -> None:
        self.group.remove()


class ByName:
    """`pkill -9 -f NAME`."""

    def join(self) -> None:
        pass

    def kill(self) -> None:
        for pid in processes(NAME):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def end(self) -> None:
        pass


class ByOomKiller:
    """Another process in the loader's memory cgroup takes more than there is, however little the
    loader has yet. The loader is to go first, and the other goes after it."""

    LIMIT = 256 * MIB
    TAKES = 300 * MIB
    HOG = f"import sys; print(flush=True); sys.stdin.read(1); taken = b'x' * {TAKES}; print(flush=True)"

    def __init__(self) -> None:
        parent, file = memory_groups()
        self.group = Group(parent)
        (self.group.path / file).write_text(str(self.LIMIT))
        self.hog = subprocess.Popen(
            [sys.executable, "-c", self.HOG], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            text=True, preexec_fn=self.group.join)
        self.hog.stdout.readline()

    def join(self) -> None:
        self.group.join()
        pathlib.Path("/proc/self/oom_score_adj").write_text("1000")

    def kill(self) -> None:
        self.hog.stdin.write("x")
        self.hog.stdin.flush()
        self.hog.stdout.readline()

    def end(self) -> None:
        self.hog.kill()
        self.hog.wait()
        self.group.remove()


class Targets:
    """A native and a Python program."""

    def __init__(self) -> None:
        self.native = start_puppet()
        self.libc = next(
            line.split()[5] for line in
            pathlib.Path(f"/proc/{self.native.pid}/maps").read_text().splitlines()
            if line.endswith("libc.so.6"))
        self.file = scratch() / "beats"
        self.file.write_bytes(bytes(8))
        python = find_pythons()[0]
        self.python = subprocess.Popen([*python.command, str(LIMITS), "none", str(self.file)])
        _leftovers.append(lambda: (self.python.kill(), self.python.wait()))
        wait_for(lambda: self.beats() > 1, 10, "a Python program")

    def beats(self) -> int:
        return struct.unpack("<Q", self.file.read_bytes())[0]

    def expect_as_before(self) -> None:
        expect_restored(self.native.pid)
        expect_restored(self.native.pid, self.libc)
        assert self.native.process.poll() is None
        expect_unslowed(self.native, "work_push", MS)
        beats = self.beats()
        wait_for(lambda: self.beats() > beats + 1, 5, "the Python program to go on")
        assert self.python.poll() is None


def control_files() -> set[str]:
    return {str(path) for path in CONTROL.rglob("*") if path.name != "attach.lock"}


class Round:
    def __init__(self, targets: Targets, program: pathlib.Path, path: str):
        self.targets, self.program, self.path = targets, program, path

    def start(self, killer) -> subprocess.Popen:
        pids = self.targets.native.pid, self.targets.python.pid
        return subprocess.Popen(
            [str(self.program), "attach", "-q", *(f"--pid={pid}" for pid in pids), self.path],
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, preexec_fn=killer.join)

    def is_attached(self) -> bool:
        return changed_bytes(self.targets.native.pid) > 0

    def reach(self, phase: str, loader: subprocess.Popen, until_attached: float) -> None:
        """Waits for a random moment of the phase."""
        share = {"load": (0, 0.5), "attach": (0.4, 1.2), "hook": (1, 1.8)}
        if phase in share:
            time.sleep(random.uniform(*share[phase]) * until_attached)
            return
        wait_for(self.is_attached, 30, "attached")
        time.sleep(0.3)
        if phase == "detach":
            loader.send_signal(signal.SIGINT)
            time.sleep(random.uniform(0, 0.1))

    def run(self, kind: type, phase: str, until_attached: float) -> bool:
        """Kills once. Whether the loader lived until then."""
        before = control_files()
        killer = kind()
        loader = self.start(killer)
        try:
            self.reach(phase, loader, until_attached)
            alive = loader.poll() is None
            killer.kill()
            loader.wait(timeout=10)
        finally:
            loader.kill()
            loader.wait()
            killer.end()
        self.targets.expect_as_before()
        wait_for(lambda: not processes(NAME) and not processes(KEEPER), 2, "all of it has ended")
        wait_for(lambda: control_files() <= before, 2, "no control files stay")
        return alive

    def time_an_attach(self) -> float:
        start = time.monotonic()
        loader = self.start(ByName())
        wait_for(self.is_attached, 30, "attached")
        spent = time.monotonic() - start
        loader.send_signal(signal.SIGINT)
        loader.wait()
        return spent


def kill_in_every_phase(kind: type, times: int) -> None:
    random.seed(4)
    program = scratch() / NAME
    program.symlink_to(SPEEDBUMP)
    one = Round(Targets(), program, targets_file(LINES))
    one.time_an_attach()  # the first of a machine's day takes longer
    until_attached = one.time_an_attach()
    midway = {phase: sum(one.run(kind, phase, until_attached) for _ in range(times))
              for phase in PHASES}
    print(f"  of {times} in each phase, killed before they had ended: {midway}")
    assert all(midway.values()), midway


def test_the_whole_cgroup_is_killed() -> None:
    kill_in_every_phase(ByCgroup, 4)


def test_all_of_its_name_are_killed() -> None:
    kill_in_every_phase(ByName, 4)


def test_the_oom_killer_takes_it() -> None:
    kill_in_every_phase(ByOomKiller, 4)


@campaign
def test_killed_in_all_ways_many_times() -> None:
    for kind in ByCgroup, ByName, ByOomKiller:
        kill_in_every_phase(kind, 40)


if __name__ == "__main__":
    main(globals())
