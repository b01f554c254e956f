# SPDX-License-Identifier: MIT
"""Whoever belongs to the tree is hooked, counted under its own PID, and in the window that was
asked for: forks at the moment of the attach, PID and time namespaces."""

import mmap
import os
import pathlib
import subprocess
import sys
import time

from harness import (
    MS, Session, Until, _leftovers, calls, calls_by_pid, children, delays, expect_unslowed, main, need,
    program_below, scratch, start_puppet, wait_for,
)

DELAY = 5 * MS

# Forks a worker each few ms, of which 16 live at a time; each writes what its last call took.
FORKING = """
import mmap, os, random, struct, sys, time
slots, pause, workers = 64, float(sys.argv[2]), {}
with open(sys.argv[1], "r+b") as file:
    shared = mmap.mmap(file.fileno(), slots * 16)
def work(): pass
def serve(slot):
    end = time.monotonic() + random.uniform(8, 12)
    while time.monotonic() < end:
        begin = time.monotonic_ns()
        work()
        struct.pack_into("<QQ", shared, slot * 16, os.getpid(), time.monotonic_ns() - begin)
        time.sleep(0.001)
    os._exit(0)
while True:
    for slot, pid in list(workers.items()):
        if os.waitpid(pid, os.WNOHANG)[0]:
            del workers[slot]
    free = next((slot for slot in range(16) if slot not in workers), None)
    if free is not None:
        workers[free] = os.fork() or serve(free)
    time.sleep(pause)
"""

CALLING = """
import time
def work(): pass
open(__file__ + ".calls", "w").close()
while True:
    work()
    time.sleep(0.001)
"""


def start(program: str, *arguments: str, before: list[str] = []) -> subprocess.Popen:
    path = scratch() / "program.py"
    path.write_text(program)
    process = subprocess.Popen([*before, sys.executable, str(path), *arguments])
    _leftovers.append(lambda: (process.kill(), process.wait()))
    return process


def below(process: subprocess.Popen) -> int:
    """The PID of the program that a wrapper has forked."""
    pid = program_below(process.pid, sys.executable)
    _leftovers.append(lambda: os.path.exists(f"/proc/{pid}") and os.kill(pid, 9))
    (program,) = (word for word in process.args if word.endswith("program.py"))
    wait_for(lambda: os.path.exists(program + ".calls"), 20, "the program calls")
    return pid


def test_workers_forked_at_the_moment_of_the_attach() -> None:
    path = scratch() / "slots"
    path.write_bytes(bytes(64 * 16))
    for attach in range(6):
        master = start(FORKING, str(path), "0.003")
        wait_for(lambda: len(children(master.pid)) >= 4, 20, "workers")  # of 16
        with open(path, "r+b") as file, mmap.mmap(file.fileno(), 64 * 16) as shared:
            def unslowed() -> list[int]:
                living = set(children(master.pid))
                words = memoryview(shared).cast("Q")
                rows = {words[i]: words[i + 1] for i in range(0, len(words), 2)}
                return [pid for pid, took in rows.items() if pid in living and took < DELAY]

            with Session(f"*:work delay={DELAY}ns\n", pid=master.pid) as session:
                # One that was missed stays so for its 8 s or more; how soon the others are slowed
                # is a matter of the host.
                seen: dict[int, float] = {}  # since when it has been seen unslowed
                end = time.monotonic() + 2
                while seen or time.monotonic() < end:
                    now = time.monotonic()
                    seen = {pid: seen.get(pid, now) for pid in unslowed()}
                    late = {pid: now - since for pid, since in seen.items() if now - since > 6}
                    assert not late, f"attach {attach}: workers unslowed for long: {late}"
                    time.sleep(0.01)
                session.stop()
        master.kill()
        master.wait()
        for pid in {int(name) for name in os.listdir("/proc") if name.isdigit()}:
            try:
                if str(path).encode() in pathlib.Path(f"/proc/{pid}/cmdline").read_bytes():
                    os.kill(pid, 9)
            except OSError:
                pass


def test_a_container_is_counted_under_its_pids_here() -> None:
    wrapper = start(CALLING, before=[need("unshare"), "--pid", "--fork", "--mount-proc"])
    pid = below(wrapper)
    with Session("*:work delay=0\n", pid=wrapper.pid) as session:
        wait_for(lambda: calls(session.documents[-1], "work") > 10, 30, "calls")
        final = session.stop()
    counted = calls_by_pid(final, "work")
    assert set(counted) == {pid} and counted[pid] > 10, (pid, counted)


def expect_window(session: Session, name: str, start_ns: int, end_ns: int) -> None:
    """Calls of a program that makes them all the time are delayed from the one on until the other, since
    the session was armed, and not after."""

    def samples() -> list[tuple[int, int, int]]:
        """When, and how many calls and delays there were by then, a little later."""
        return [(one["since_armed_ns"], calls(one, name), delays(one, name))
                for one in session.documents if one["type"] == "sample"]

    def after() -> list[tuple[int, int, int]]:
        return [one for one in samples() if one[0] > end_ns + 100 * MS]

    wait_for(lambda: len(after()) > 1 and after()[-1][1] > after()[0][1] + 20, 30,
             "calls after the window")
    seen, late = samples(), after()
    within = [one for one, following in zip(seen, seen[1:])
              if one[0] > start_ns and following[0] < end_ns]
    made, delayed = (within[-1][i] - within[0][i] for i in (1, 2))
    assert made > 20 and abs(made - delayed) <= 1, seen  # one may be under way
    assert late[-1][2] - late[0][2] <= 1, seen


def test_windows_hold_in_a_time_namespace() -> None:
    elsewhere = [need("unshare"), "--time", "--monotonic", "100000", "--fork"]
    wrapper = start(CALLING, before=elsewhere)
    pid = below(wrapper)
    with Session("*:work delay=1ms start=100ms duration=1s\n", pid=pid) as session:
        expect_window(session, "work", 100 * MS, 1100 * MS)
        session.stop()


def test_a_loader_in_a_time_namespace_has_windows_too() -> None:
    puppet = start_puppet()
    elsewhere = [need("unshare"), "--time", "--monotonic", "100000", "--fork"]
    with Session("+exe:work_push delay=1ms duration=2s\n", pid=puppet.pid, before=elsewhere) as session:
        calling = Until(lambda _: puppet.call("work_push", 1))
        try:
            expect_window(session, "work_push", 0, 2000 * MS)
        finally:
            calling.end()
        expect_unslowed(puppet, "work_push", MS)
        loader = children(session.process.pid)[0]
        os.kill(loader, 2)
        final = session.wait()
    assert final["all"]["measured_ns"] > final["all"]["delays"] * MS * 0.97, final["all"]


def test_the_commands_duration_holds_in_a_time_namespace() -> None:
    """Of the loader, of the target, of both: the same calls are slowed as without one."""
    elsewhere = [need("unshare"), "--time", "--monotonic", "100000", "--fork"]
    for of_target, of_loader in ((elsewhere, []), ([], elsewhere), (elsewhere, elsewhere)):
        program = start(CALLING, before=of_target)
        pid = below(program) if of_target else program.pid
        session = Session("*:work delay=5ms\n", "--duration=2s", pid=pid, before=of_loader)
        final = session.wait()
        assert final["reason"] == "duration", final
        assert 20 < delays(final, "work") <= 400, (of_target, of_loader, delays(final, "work"))


if __name__ == "__main__":
    main(globals())
