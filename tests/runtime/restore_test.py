# SPDX-License-Identifier: MIT
"""However a session ends, the target's code is what it was, and as fast."""

import fcntl
import os
import random
import signal
import subprocess
import time

from harness import (
    LIBRARY, MS, PROGRAMS, SPEEDBUMP, Session, campaign, changed_bytes, expect_restored,
    expect_slowed, expect_unslowed, leave_none, main, scratch, start_puppet, targets_file, wait_for,
)

WORK = ("work_push", "work_nop", "work_step", "work_late")


def expect_as_fast_as_before(target) -> None:
    """As fast as a program that nothing was ever attached to, measured in turns with it."""
    other = start_puppet()
    for name in WORK:
        turns = [(target.call(name, 20_000), other.call(name, 20_000)) for _ in range(25)]
        now, plain = (min(one) for one in zip(*turns))
        assert now < plain * 1.5 + 1, f"{name}: {now} ns a call, {plain} ns in another process"


def attach_quietly(target, path: str) -> subprocess.Popen:
    return subprocess.Popen(
        [SPEEDBUMP, "attach", "-q", "--pid", str(target.pid), path],
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )


def test_every_way_to_end() -> None:
    for how in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGKILL):
        target = start_puppet()
        target.ask(f"load {LIBRARY}")
        library = os.path.realpath(LIBRARY)
        targets = "+exe:work_* delay=1ms\n+libslowlib.so:lib_work delay=1ms"
        with Session(targets, pid=target.pid) as session:
            time.sleep(0.5)
            child = target.offspring("child")
            time.sleep(0.2)
            assert changed_bytes(target.pid) >= len(WORK) and changed_bytes(target.pid, library)
            expect_slowed(target, "work_push", MS)
            if how == signal.SIGKILL:
                session.kill()
            else:
                session.stop(how)
        for one in (target, child):
            expect_restored(one.pid)
            expect_restored(one.pid, library)
        expect_as_fast_as_before(target)
        expect_unslowed(child, "lib_work", MS)


def test_code_is_restored_when_the_command_returns() -> None:
    target = start_puppet()
    with Session("+exe:work_* delay=1us", pid=target.pid) as session:
        session.stop()
        assert changed_bytes(target.pid) == 0


def test_a_doubled_ctrl_c_is_one() -> None:
    """As a launcher passes on what a terminal has sent to both: the session ends in order."""
    target = start_puppet()
    with Session("+exe:work_* delay=1ms", pid=target.pid) as session:
        session.process.send_signal(signal.SIGINT)
        session.process.send_signal(signal.SIGINT)
        session.wait()
    expect_restored(target.pid)


def test_second_ctrl_c_leaves_at_once_and_nothing_behind() -> None:
    target = start_puppet()
    out, unread = os.pipe()
    fcntl.fcntl(unread, fcntl.F_SETPIPE_SZ, 4096)
    os.write(unread, bytes(4096))  # it can't write its table, and waits
    loader = subprocess.Popen(
        [SPEEDBUMP, "attach", "--pid", str(target.pid), targets_file("+exe:work_* delay=1ms")],
        stdout=unread, stderr=subprocess.DEVNULL)
    leave_none(lambda: (loader.kill(), loader.wait()))
    wait_for(lambda: changed_bytes(target.pid) >= len(WORK), 30, "attached")
    loader.send_signal(signal.SIGINT)
    time.sleep(1)  # one that comes within half a second is the same
    assert loader.poll() is None, loader.returncode
    loader.send_signal(signal.SIGINT)
    assert loader.wait(timeout=10) == 128 + signal.SIGINT
    os.close(out)
    os.close(unread)
    expect_restored(target.pid)
    expect_unslowed(target, "work_push", MS)


def kill_at_random_moments(kills: int) -> None:
    """SIGKILL during load, attach, arming and later: the code is the file's again, at once."""
    target = start_puppet()
    path = targets_file("+exe:* delay=10ms every=1000")
    random.seed(int(os.environ.get("SPEEDBUMP_SEED", "1")))
    attached = 0
    # As long as an attach takes here and now, and as long again; what it takes changes meanwhile.
    start = time.monotonic()
    loader = attach_quietly(target, path)
    wait_for(lambda: changed_bytes(target.pid) > 0, 30, "attached")
    longest = 2 * (time.monotonic() - start)
    loader.kill()
    loader.wait()
    expect_restored(target.pid)
    for _ in range(kills):
        loader = attach_quietly(target, path)
        time.sleep(random.uniform(0, longest))
        is_attached = changed_bytes(target.pid) > 0
        attached += is_attached
        longest *= 0.9 if is_attached else 1.1
        loader.kill()
        loader.wait()
        expect_restored(target.pid)
    print(f"  {attached} of {kills} were attached when killed")
    assert 0 < attached < kills
    expect_as_fast_as_before(target)


def kill_while_it_takes_probes_out(kills: int) -> None:
    """The kernel leaves breakpoints when the task that removes them is killed: not from us."""
    target = start_puppet()
    path = targets_file("+exe:* delay=10ms every=1000\n+libc.so.6:str* delay=0")
    random.seed(int(os.environ.get("SPEEDBUMP_SEED", "2")))
    midway = 0
    for _ in range(kills):
        loader = attach_quietly(target, path)
        wait_for(lambda: changed_bytes(target.pid) > 0, 10, "attached")
        time.sleep(0.1)
        loader.send_signal(signal.SIGINT)
        time.sleep(random.uniform(0, 0.08))
        midway += loader.poll() is None
        loader.kill()
        loader.wait()
        expect_restored(target.pid)
    print(f"  {midway} of {kills} were killed before they had ended")
    assert midway > 0


class MarkedService:
    """A service with a USDT mark that has a semaphore, and an experiment that counts it."""

    def __init__(self) -> None:
        self.process = subprocess.Popen([PROGRAMS / "known_service", "serial"], text=True,
                                        stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        leave_none(lambda: (self.process.kill(), self.process.wait()))
        assert self.process.stdout.readline() == "ready\n"
        self.targets = targets_file("+exe:work_a")
        self.output = scratch() / "result.json"

    def semaphore(self) -> int:
        self.process.stdin.write("s")
        self.process.stdin.flush()
        return int(self.process.stdout.readline())

    def experiment(self) -> subprocess.Popen:
        loader = subprocess.Popen(
            [SPEEDBUMP, "experiment", "--pid", str(self.process.pid),
             "--progress=usdt:exe:known:watched", f"--output={self.output}", self.targets],
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        leave_none(lambda: (loader.kill(), loader.wait()))
        return loader

    def wait_until_counted(self, loader: subprocess.Popen) -> None:
        wait_for(lambda: self.semaphore() > 0 or loader.poll() is not None, 30, "a counted mark")
        assert loader.poll() is None, loader.returncode


class Moment:
    """Aims at the moment at which something changes, whatever the machine does beside: too early the
    last time, later the next time; in long steps until it has been on both sides of it."""

    def __init__(self, first_guess: float):
        self.guess = first_guess
        self.early = self.late = 0

    def wait(self) -> None:
        time.sleep(self.guess * random.uniform(0.97, 1.03))

    def learn(self, has_changed: bool) -> None:
        self.early += not has_changed
        self.late += has_changed
        step = 1.07 if self.early and self.late else 2
        self.guess *= 1 / step if has_changed else step


def kill_while_a_mark_is_counted(kills: int) -> None:
    """A mark's semaphore is down again and its breakpoint gone, whether the loader is killed as it
    begins to count or as it lets go."""
    random.seed(int(os.environ.get("SPEEDBUMP_SEED", "3")))
    service = MarkedService()
    start = time.monotonic()
    loader = service.experiment()
    service.wait_until_counted(loader)
    attach = Moment(time.monotonic() - start)
    start = time.monotonic()
    loader.send_signal(signal.SIGINT)
    wait_for(lambda: service.semaphore() == 0, 30, "the mark let go")
    detach = Moment(time.monotonic() - start)
    loader.wait()
    for number in range(kills):
        loader = service.experiment()
        if number % 2:
            attach.wait()
            attach.learn(service.semaphore() > 0)
        else:
            service.wait_until_counted(loader)
            loader.send_signal(signal.SIGINT)
            detach.wait()
            detach.learn(service.semaphore() == 0)
        loader.kill()
        loader.wait()
        expect_restored(service.process.pid)
        wait_for(lambda: service.semaphore() == 0, 5, "the semaphore as before")
    print(f"  killed before and after it counted: {attach.early}, {attach.late}; before and after "
          f"it had let go: {detach.early}, {detach.late}")
    assert attach.early and attach.late and detach.early and detach.late


def test_loader_killed_while_a_mark_is_counted() -> None:
    kill_while_a_mark_is_counted(60)


def test_loader_killed_at_random_moments() -> None:
    kill_at_random_moments(50)


def test_loader_killed_while_it_takes_probes_out() -> None:
    kill_while_it_takes_probes_out(50)


@campaign
def test_loader_killed_a_thousand_times() -> None:
    kill_at_random_moments(1000)
    kill_while_it_takes_probes_out(1000)
    kill_while_a_mark_is_counted(1000)


def test_target_goes_on_when_attached_and_detached_while_it_calls() -> None:
    """A busy function, attached to 30 times: no call is lost, no crash."""
    target = start_puppet()
    target.send("threads 2 work_step 3000000")
    for _ in range(30):
        with Session("+exe:work_* delay=0", pid=target.pid) as session:
            session.stop()
        assert target.process.poll() is None
    target.hear()
    expect_restored(target.pid)
    assert target.end() == 0


if __name__ == "__main__":
    main(globals())
