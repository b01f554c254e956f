# SPDX-License-Identifier: MIT
"""CPUs that are little or go away: a quota, nested cgroups, one that is taken off and comes back. Each
call is delayed and counted all the same."""

import contextlib
import os
import pathlib
import subprocess
import time
from collections.abc import Iterator

from blocked_calls_test import Waiting
from harness import (
    MS, PROGRAMS, Run, Session, Skip, alone, calls, calls_now, children, expect_restored,
    expect_unslowed, leave_none, main, need_jumps, start_puppet, targets_file, wait_for,
)

PUSH = "+exe:work_push delay=1ms"
CALLS = 20
SECOND_CPU = pathlib.Path("/sys/devices/system/cpu/cpu1/online")


def mounted(kind: str, option: str = "") -> pathlib.Path | None:
    """Where a hierarchy of cgroups is, in v1 the one of a controller."""
    for line in pathlib.Path("/proc/mounts").read_text().splitlines():
        _, place, its_kind, options, *_ = line.split()
        if its_kind == kind and (not option or option in options.split(",")):
            return pathlib.Path(place)
    return None


def make_group(parent: pathlib.Path) -> pathlib.Path:
    group = parent / f"speedbump-test-{os.getpid()}-{time.monotonic_ns()}"
    try:
        group.mkdir()
    except OSError as error:
        raise Skip(f"no cgroup can be made: {error}") from error

    def remove() -> None:
        for pid in (group / "cgroup.procs").read_text().split():
            with contextlib.suppress(OSError):
                (parent / "cgroup.procs").write_text(pid)
        with contextlib.suppress(OSError):
            group.rmdir()
    leave_none(remove)
    return group


def group_with_a_tenth() -> pathlib.Path:
    """A cgroup whose processes have a tenth of a CPU."""
    v1 = mounted("cgroup", "cpu")
    if v1:
        group = make_group(v1)
        (group / "cpu.cfs_period_us").write_text("100000")
        (group / "cpu.cfs_quota_us").write_text("10000")
        return group
    v2 = mounted("cgroup2")
    if not v2:
        raise Skip("no cgroups are mounted")
    with contextlib.suppress(OSError):
        (v2 / "cgroup.subtree_control").write_text("+cpu")
    group = make_group(v2)
    if not (group / "cpu.max").exists():
        raise Skip("no quota of CPU time here")
    (group / "cpu.max").write_text("10000 100000")
    return group


def expect_each_delayed(puppet, session: Session) -> None:
    """Every call of them, and no other, is counted and takes its delay."""
    assert min(puppet.each("work_push", CALLS)) > 0.97 * MS
    assert calls(session.stop(), "work_push") == CALLS
    expect_restored(puppet.pid)


@alone
def test_quota() -> None:
    """Of a target, and of the loader."""
    group = group_with_a_tenth()
    target = start_puppet()
    (group / "cgroup.procs").write_text(str(target.pid))
    with Session(PUSH, pid=target.pid) as session:
        expect_each_delayed(target, session)
    (group.parent / "cgroup.procs").write_text(str(target.pid))
    with Session(PUSH, pid=target.pid) as session:
        (group / "cgroup.procs").write_text(str(session.process.pid))
        expect_each_delayed(target, session)
    expect_unslowed(target, "work_push", MS)


@alone
def test_quota_of_a_crowd() -> None:
    """All its threads have to stop for jumps, and each needs a CPU for that, which eight of them for
    each CPU use up ten times over."""
    need_jumps()
    group = group_with_a_tenth()
    target = start_puppet(str(PROGRAMS / "tormented"))
    target.ask("begin crowd")
    (group / "cgroup.procs").write_text(str(target.pid))
    for _ in range(2):
        with Session("+exe:hot_mix delay=1us", "--engine=inprocess", pid=target.pid) as session:
            wait_for(lambda: calls_now(session, "hot_mix") > 0, 20, "calls")
            session.stop()
        expect_restored(target.pid)
    verdict, count = target.ask("check").split()
    assert verdict == "right" and int(count) > 0


@alone
def test_quota_of_what_waits_in_epoll() -> None:
    """Whoever asks it to stop, and gives up before it has a CPU to stand with, has its wait fail with
    EINTR, which no signal has brought."""
    need_jumps()
    group = group_with_a_tenth()
    busy = [subprocess.Popen(["sh", "-c", "while :; do :; done"]) for _ in range(4)]
    leave_none(lambda: [(one.kill(), one.wait()) for one in busy])
    for kind in ("epoll_pwait", "epoll_pwait2", "rt_sigtimedwait"):
        program = Waiting(kind)
        for pid in (program.process.pid, *children(program.process.pid), *(one.pid for one in busy)):
            (group / "cgroup.procs").write_text(str(pid))
        for _ in range(3):
            done = Run("attach", "--json", "--engine=inprocess", "--pid", str(program.process.pid),
                       "--duration=50ms", targets_file("+exe:step delay=1us"))
            assert done.status == 0, (kind, done)
        rounds, wrong = program.end()
        assert rounds > 0 and wrong == 0, (kind, rounds, wrong)


@alone
def test_nested_cgroups() -> None:
    """Who is in a cgroup below belongs to it, at whatever depth and also when it comes there later."""
    v2 = mounted("cgroup2")
    if not v2:
        raise Skip("no cgroup v2 is mounted")
    outer = make_group(v2)
    inner = make_group(make_group(outer))
    target, joins = start_puppet(), start_puppet()
    (inner / "cgroup.procs").write_text(str(target.pid))
    with Session(PUSH, "--cgroup", str(outer)) as session:
        assert min(target.each("work_push", CALLS)) > 0.97 * MS
        (inner / "cgroup.procs").write_text(str(joins.pid))
        assert joins.ask(f"first work_push {MS * 9 // 10} 10000").isdigit()
        deepest = make_group(inner)
        (deepest / "cgroup.procs").write_text(str(target.pid))
        assert min(target.each("work_push", CALLS)) > 0.97 * MS
        session.stop()
    for one in target, joins:
        expect_restored(one.pid)


@contextlib.contextmanager
def without_the_second_cpu() -> Iterator[None]:
    if not SECOND_CPU.exists():
        raise Skip("no second CPU that can be taken off")
    try:
        SECOND_CPU.write_text("0")
    except OSError as error:
        raise Skip(f"no CPU can be taken off: {error}") from error
    try:
        yield
    finally:
        SECOND_CPU.write_text("1")


@alone
def test_a_cpu_goes_and_comes() -> None:
    """While a session runs, and while one attaches: what was counted on a CPU that has gone stays."""
    target = start_puppet()
    with Session(PUSH, pid=target.pid) as session:
        target.ask(f"threads 4 work_push {CALLS}")
        with without_the_second_cpu():
            target.ask(f"threads 4 work_push {CALLS}")
        target.ask(f"threads 4 work_push {CALLS}")
        assert calls(session.stop(), "work_push") == 3 * 4 * CALLS
    with without_the_second_cpu():
        session = Session(PUSH, pid=target.pid)
        target.ask(f"threads 4 work_push {CALLS}")
    with session:
        target.ask(f"threads 4 work_push {CALLS}")
        assert calls(session.stop(), "work_push") == 2 * 4 * CALLS
    expect_restored(target.pid)


if __name__ == "__main__":
    main(globals())
