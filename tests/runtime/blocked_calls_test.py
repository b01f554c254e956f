# SPDX-License-Identifier: MIT
"""Programs that wait for moments in one kind of system call, and look at each result
(tests/programs/blocked_calls): of all that an attach may interrupt, inside of them or at their end."""

import os
import signal
import subprocess
import time

from harness import (
    PROGRAMS, Run, campaign, leave_none, main, need_jumps, one_cpu_for_all, scratch, targets_file,
)

PROGRAM = str(PROGRAMS / "blocked_calls")


class Waiting:
    """A program that waits in calls of this kind."""

    def __init__(self, kind: str):
        self.kind = kind
        self.process = subprocess.Popen([PROGRAM, kind], stdout=subprocess.PIPE, text=True,
                                        cwd=scratch())
        leave_none(lambda: (self.process.kill(), self.process.wait()))
        assert self.process.stdout.readline() == "ready\n", kind

    def end(self) -> tuple[int, int]:
        """How often it has waited, and how often what came was wrong."""
        self.process.terminate()
        rounds, wrong = map(int, self.process.stdout.readline().split())
        assert self.process.wait(timeout=30) == 0, self.kind
        return rounds, wrong


def attach_to_each_kind(times: int) -> None:
    need_jumps()
    targets = targets_file("+exe:step delay=1us")
    kinds = subprocess.run([PROGRAM], stdout=subprocess.PIPE, text=True, check=True).stdout.split()
    longest = 0.0, ""
    for kind in kinds:
        program = Waiting(kind)
        for _ in range(times):
            begun = time.monotonic()
            done = Run("attach", "--json", "--engine=inprocess", "--pid", str(program.process.pid),
                       "--duration=50ms", targets)
            longest = max(longest, (time.monotonic() - begun, kind))
            assert done.status == 0, f"{kind}: {done}"
        rounds, wrong = program.end()
        assert rounds > 0 and wrong == 0, (kind, rounds, wrong)
    print(f"  {len(kinds)} kinds; the longest attach took {longest[0]:.2f} s: {longest[1]}")


def test_what_comes_of_no_call_is_changed() -> None:
    attach_to_each_kind(2)


def test_what_comes_of_no_call_is_changed_on_a_busy_cpu() -> None:
    with one_cpu_for_all(2):
        attach_to_each_kind(1)


@campaign
def test_what_comes_of_no_call_is_changed_on_a_busy_cpu_often() -> None:
    for others in (1, 2, 4):
        with one_cpu_for_all(others):
            attach_to_each_kind(20)


def test_who_waits_for_ever_in_another_call_stops_nobody() -> None:
    """All have to stop for jumps, and those that could do not stand meanwhile."""
    need_jumps()
    program = subprocess.Popen([PROGRAMS / "in_the_way"], stdout=subprocess.PIPE, text=True)
    leave_none(lambda: (program.kill(), program.wait()))
    assert program.stdout.readline() == "ready\n"
    begun = time.monotonic()
    done = Run("attach", "--engine=inprocess", "--pid", str(program.pid), "--duration=50ms",
               targets_file("+exe:step delay=1us"))
    took = time.monotonic() - begun
    assert done.status != 0 and "which a stop would disturb" in done.err, done
    program.terminate()
    stopped = int(program.stdout.readline()) / 1000
    assert stopped < 0.1 * took, (stopped, took)
    print(f"  stopped for {stopped:.3f} s of {took:.1f} s")


def test_a_stop_as_others_make_it_is_seen() -> None:
    """What the program looks at is what a stop changes."""
    program = Waiting("epoll_pwait-time")
    for _ in range(20):
        os.kill(program.process.pid, signal.SIGSTOP)
        os.kill(program.process.pid, signal.SIGCONT)
        time.sleep(0.02)
    rounds, wrong = program.end()
    assert wrong > 0, (rounds, wrong)


if __name__ == "__main__":
    main(globals())
