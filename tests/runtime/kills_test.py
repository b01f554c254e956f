# SPDX-License-Identifier: MIT
"""Whatever is killed, and whenever: the target lives, its code does what it did, nothing stays.

What kills: the whole cgroup of the loader, everything that has its name, and the OOM killer, which
takes all that shares the memory; and somebody takes one of its helpers alone, by its PID. When: while it
loads, attaches, hooks Python, is armed, measures in an experiment, detaches.
"""

import contextlib
import os
import pathlib
import random
import shutil
import signal
import struct
import subprocess
import sys
import time
from collections.abc import Callable, Iterable

from harness import (
    MS, SPEEDBUMP, Skip, _leftovers, campaign, changed_bytes, expect_restored, expect_unslowed, main,
    scratch, start_puppet, targets_file, wait_for,
)
from pythons import find as find_pythons

LINES = "+exe:* delay=1ms every=1000\n+libc.so.6:str* delay=0\n__main__:beat delay=1ms\n"
MEASURED = "+exe:work_* delay=1ms\n+libc.so.6:strlen\n__main__:beat\n"  # in an experiment
PHASES = ("load", "attach", "hook", "armed", "experiment", "detach")
LIMITS = pathlib.Path(__file__).parent / "inject" / "limits.py"
GUARD = "sb-guard"  # user/control/guard.cpp
KEEPER = "probe-keeper"  # user/engine/shielded.cpp
CONTROL = pathlib.Path("/run/speedbump")
NAME = f"sbump{os.getpid()}"  # of the loader: nothing else is called that
MIB = 1 << 20
LONG = 60  # s: who is killed waits for the kernel to take its probes out, as all others do that end then


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


def is_called(pid: int, name: str) -> bool:
    """Whether it runs and its name or command line has this, as `pkill` and `pkill -f` see it. One that
    has ended and that init has not looked at yet does not."""
    entry = pathlib.Path(f"/proc/{pid}")
    with contextlib.suppress(OSError):
        shown = (entry / "comm").read_bytes() + (entry / "cmdline").read_bytes()
        state = (entry / "stat").read_text(errors="replace").rpartition(")")[2].split()[0]
        return name.encode() in shown and state != "Z"
    return False


def own_copy() -> pathlib.Path:
    """The program in a file that nothing else runs: by it its helpers are told from those of the tests
    beside this one."""
    program = scratch() / NAME
    shutil.copy(SPEEDBUMP, program)
    owner = os.stat(SPEEDBUMP)
    os.chown(program, owner.st_uid, owner.st_gid)  # whose cores it trusts
    return program


def with_cores() -> dict[str, str]:
    """An environment in which a copy finds the Python cores, as the program does by where it lies
    (user/engine/python/cores.cpp)."""
    own = pathlib.Path(SPEEDBUMP).resolve().parent
    places = ("pyext/python", "../pyext/python", "../../pyext/python", "../lib/speedbump/cores")
    named = [os.environ["SPEEDBUMP_CORES"]] if "SPEEDBUMP_CORES" in os.environ else []
    return {**os.environ, "SPEEDBUMP_CORES": ":".join([*named, *(str(own / place) for place in places)])}


def is_ours(pid: int, program: pathlib.Path) -> bool:
    """Of the program that is tested: sessions of others may run here. One that is ending has no program
    any more and still closes what it had, probes among it: it may be ours as long as it is no zombie."""
    try:
        return os.path.samefile(f"/proc/{pid}/exe", program)
    except OSError:
        return is_called(pid, "")


def processes(name: str) -> list[int]:
    every = [int(entry) for entry in os.listdir("/proc") if entry.isdigit()]
    return [pid for pid in every if is_called(pid, name)]


def helpers(loader: int, name: str) -> list[int]:
    """Those of its children, whichever of its threads has made them."""
    found = []
    for file in pathlib.Path(f"/proc/{loader}/task").glob("*/children"):
        with contextlib.suppress(OSError):
            found += [int(word) for word in file.read_text().split()]
    return [pid for pid in found if is_called(pid, name)]


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

    def kill(self, _: subprocess.Popen) -> None:
        (self.group.path / "cgroup.kill").write_text("1")

    def end(self) -> None:
        self.group.remove()


class ByName:
    """`pkill -9 -f NAME`."""

    def join(self) -> None:
        pass

    def kill(self, _: subprocess.Popen) -> None:
        for pid in processes(NAME):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def end(self) -> None:
        pass


class ByOomKiller:
    """Others in the loader's memory cgroup take more than there is. The loader is to go first, however
    little it has yet, and one of the others goes after it.

    The kernel compares what a process has, and adds the thousandths of the limit that oom_score_adj
    states, so the loader is at the limit and a little more. One process that took all of the limit
    would be there too, as it also has pages that others are charged for, and a loader that has just
    started stayed: so there are several, and each is far from it.
    """

    LIMIT = 256 * MIB
    HOGS = 3
    TAKES = 100 * MIB
    # It keeps it: one that ended would leave room for the next.
    HOG = ("import sys; print(flush=True); sys.stdin.read(1); "
           f"taken = b'x' * {TAKES}; print(flush=True); sys.stdin.read(1)")

    def __init__(self) -> None:
        parent, file = memory_groups()
        self.group = Group(parent)
        (self.group.path / file).write_text(str(self.LIMIT))
        self.hogs = [
            subprocess.Popen([sys.executable, "-c", self.HOG], stdin=subprocess.PIPE,
                             stdout=subprocess.PIPE, text=True, preexec_fn=self.group.join)
            for _ in range(self.HOGS)]
        for hog in self.hogs:
            hog.stdout.readline()

    def join(self) -> None:
        self.group.join()
        pathlib.Path("/proc/self/oom_score_adj").write_text("1000")

    def kill(self, _: subprocess.Popen) -> None:
        for hog in self.hogs:
            hog.stdin.write("x")
            hog.stdin.flush()
        for hog in self.hogs:
            hog.stdout.readline()  # nothing when it was taken too

    def taken(self) -> int:
        """How many processes of the group the kernel says that it has taken."""
        events = self.group.path / "memory.events"
        if not events.exists():
            events = self.group.path / "memory.oom_control"  # v1
        lines = dict(line.split() for line in events.read_text().splitlines())
        return int(lines["oom_kill"])

    def end(self) -> None:
        for hog in self.hogs:
            hog.kill()
            hog.wait()
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


def control_files(loader: int) -> list[pathlib.Path]:
    names = str(loader), f".{loader}.new"
    return [CONTROL / name for name in names if (CONTROL / name).exists()]


class Round:
    def __init__(self, targets: Targets, program: pathlib.Path):
        self.targets, self.program, self.environment = targets, program, with_cores()
        self.lines, self.measured = targets_file(LINES), targets_file(MEASURED)
        self.left_behind = 0  # breakpoints of a helper that was killed in the middle of its work

    def start(self, killer, phase: str = "attach") -> subprocess.Popen:
        pids = self.targets.native.pid, self.targets.python.pid
        command = ["attach", self.lines]
        if phase == "experiment":
            command = ["experiment", "--progress=python:__main__:beat", "--time=60s", self.measured]
        return subprocess.Popen(
            [str(self.program), *command, "-q", *(f"--pid={pid}" for pid in pids)],
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=self.environment,
            preexec_fn=killer.join)

    def is_attached(self) -> bool:
        return changed_bytes(self.targets.native.pid) > 0

    def reach(self, phase: str, loader: subprocess.Popen, until_attached: float) -> None:
        """Waits for a random moment of the phase."""
        share = {"load": (0, 0.5), "attach": (0.4, 1.2), "hook": (1, 1.8)}
        if phase in share:
            time.sleep(random.uniform(*share[phase]) * until_attached)
            return
        wait_for(lambda: self.is_attached() or loader.poll() is not None, 30, "attached")
        assert loader.poll() is None, f"the loader ended by itself, with {loader.returncode}"
        time.sleep(random.uniform(0.1, 3) if phase == "experiment" else 0.3)
        if phase == "detach":
            loader.send_signal(signal.SIGINT)
            time.sleep(random.uniform(0, 0.1))

    def run(self, kind: type, phase: str, until_attached: float) -> bool:
        """Kills once. Whether the loader lived until then."""
        killer = kind()
        loader = self.start(killer, phase)
        try:
            self.reach(phase, loader, until_attached)
            alive = loader.poll() is None
            killer.kill(loader)
            loader.wait(timeout=LONG)
        finally:
            loader.kill()
            loader.wait()
            killer.end()
        self.expect_nothing_stays(loader)
        return alive

    def run_without(self, helper: str, phase: str, until_attached: float) -> bool:
        """Kills a helper; the loader goes on, or says what it can't do, and ends when it is asked to.
        Whether there was such a helper."""
        loader = self.start(ByName(), phase)
        try:
            self.reach(phase, loader, until_attached)
            found: list[int] = []
            # Before anything is in place its helpers are still to come, however slow the host is now.
            end = time.monotonic() + (1 if self.is_attached() else 30)
            while not found and loader.poll() is None and time.monotonic() < end:
                found = helpers(loader.pid, helper)
            for pid in found[:1]:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            time.sleep(random.uniform(0, 0.3))
            loader.send_signal(signal.SIGINT)
            status = loader.wait(timeout=LONG)
            assert status in (*range(6), 128 + signal.SIGINT, -signal.SIGINT), status
        finally:
            loader.kill()
            loader.wait()
        self.expect_all_have_ended(loader)
        if helper == KEEPER and found and self.has_breakpoints():
            self.left_behind += 1
            self.attach_and_end()
        self.targets.expect_as_before()
        return bool(found)

    def has_breakpoints(self) -> bool:
        pid = self.targets.native.pid
        return changed_bytes(pid) + changed_bytes(pid, self.targets.libc) > 0

    def attach_and_end(self) -> None:
        """The next session. The kernel leaves breakpoints where it is the task taking them out that is
        killed, and that session takes them out with its own (docs/decisions/0007)."""
        pids = self.targets.native.pid, self.targets.python.pid
        subprocess.run(
            [str(self.program), "attach", self.lines, "-q", "--duration=300ms",
             *(f"--pid={pid}" for pid in pids)], check=True, timeout=LONG, env=self.environment)

    def expect_nothing_stays(self, loader: subprocess.Popen) -> None:
        self.expect_all_have_ended(loader)
        self.targets.expect_as_before()

    def expect_all_have_ended(self, loader: subprocess.Popen) -> None:
        wait_for(lambda: not processes(NAME), LONG, "all of its name have ended")
        wait_for(lambda: not any(is_ours(pid, self.program)
                                 for pid in processes(KEEPER) + processes(GUARD)),
                 LONG, "its helpers have ended")
        wait_for(lambda: not control_files(loader.pid), LONG, "no control files stay")

    def time_an_attach(self) -> float:
        start = time.monotonic()
        loader = self.start(ByName())
        wait_for(self.is_attached, 30, "attached")
        spent = time.monotonic() - start
        loader.send_signal(signal.SIGINT)
        loader.wait()
        return spent


def in_phases(phases: Iterable[str], times: int, kill: Callable[[Round, str, float], bool]) -> None:
    random.seed(int(os.environ.get("SPEEDBUMP_SEED", "4")))
    one = Round(Targets(), own_copy())
    one.time_an_attach()  # the first of a machine's day takes longer
    # The least: what is slower later is met early, and its helper is waited for.
    until_attached = min(one.time_an_attach() for _ in range(3))
    midway = {phase: sum(kill(one, phase, until_attached) for _ in range(times))
              for phase in phases}
    print(f"  of {times} in each phase, killed before they had ended: {midway}")
    print(f"  {sum(midway.values())} kills; breakpoints were left for the next session by "
          f"{one.left_behind} of them")
    assert all(midway.values()), midway


def kill_in_every_phase(kind: type, times: int) -> None:
    in_phases(PHASES, times, lambda one, *moment: one.run(kind, *moment))


def kill_a_helper(helper: str, phases: Iterable[str], times: int) -> None:
    in_phases(phases, times, lambda one, *moment: one.run_without(helper, *moment))


def test_the_whole_cgroup_is_killed() -> None:
    kill_in_every_phase(ByCgroup, 4)


def test_all_of_its_name_are_killed() -> None:
    kill_in_every_phase(ByName, 4)


def test_the_oom_killer_takes_it() -> None:
    kill_in_every_phase(ByOomKiller, 4)


def test_the_guard_alone_is_killed() -> None:
    kill_a_helper(GUARD, ("attach", "hook", "armed"), 4)


def test_a_keeper_alone_is_killed() -> None:
    """It puts probes in place and takes them out, and lives for some ms."""
    kill_a_helper(KEEPER, ("load", "attach", "detach"), 8)


def test_the_oom_killer_takes_what_has_just_started() -> None:
    """And so a loader in whatever phase; the others that it takes are those who asked for too much."""
    killer = ByOomKiller()
    small = subprocess.Popen(["sleep", "1000"], preexec_fn=killer.join)
    try:
        killer.kill(small)
        taken = [small.wait(timeout=LONG), *(hog.poll() for hog in killer.hogs)]
        assert taken[0] == -signal.SIGKILL, taken
        assert killer.taken() >= 1
    finally:
        small.kill()
        small.wait()
        killer.end()


@campaign
def test_the_cgroup_is_killed_many_times() -> None:
    kill_in_every_phase(ByCgroup, 40)


@campaign
def test_all_of_its_name_are_killed_many_times() -> None:
    kill_in_every_phase(ByName, 40)


@campaign
def test_the_oom_killer_takes_it_many_times() -> None:
    kill_in_every_phase(ByOomKiller, 40)


@campaign
def test_the_guard_is_killed_many_times() -> None:
    kill_a_helper(GUARD, ("attach", "hook", "armed"), 40)


@campaign
def test_a_keeper_is_killed_many_times() -> None:
    kill_a_helper(KEEPER, ("load", "attach", "detach"), 40)


if __name__ == "__main__":
    main(globals())
