# SPDX-License-Identifier: MIT
"""Python and native targets in one session: a Flask application over SQLite under gunicorn."""

import contextlib
import json
import os
import pathlib
import signal
import socket
import statistics
import subprocess
import sys
import threading
import time

import services
from harness import (
    LIBRARY, MS, Session, Skip, calls, calls_by_pid, calls_now, children, cpu_ns, delays, look,
    main, scratch, wait_for,
)

PYTHON_DELAY = 6 * MS
NATIVE_DELAY = 5 * MS
TARGETS = """
*:price_of delay={python}
+libsqlite3.so*:sqlite3_step delay={native}
"""


def targets(python: int = 0, native: int = 0) -> str:
    return TARGETS.format(python=python, native=native)


class Shop:
    """gunicorn with two workers, which were forked before anything is attached."""

    def __init__(self):
        self._running = contextlib.ExitStack()
        service = self._running.enter_context(services.shop())
        self.pid, self.port = service.pid, service.port
        wait_for(lambda: len(self.workers()) == 2, 30, "two workers")

    def workers(self) -> set[int]:
        return set(children(self.pid))

    def answers(self) -> bool:
        try:
            return self.buy(1) in self.workers()
        except OSError:
            return False

    def buy(self, number: int) -> int:
        """One request, whose answer is checked; the worker that gave it."""
        item, count = number % 100, 1 + number % 13
        answer = json.loads(services.buy(self.port, item, count))
        cents = (100 + 7 * item) * count * (90 if count >= 10 else 100) // 100
        assert (answer["name"], answer["cents"]) == (f"item {item}", cents), answer
        return answer["worker"]

    def times(self, requests: int, first: int = 0) -> list[int]:
        """The ns of each request, one after the other."""
        times = []
        for number in range(first, first + requests):
            start = time.monotonic_ns()
            self.buy(number)
            times.append(time.monotonic_ns() - start)
        return times

    def end(self) -> None:
        self._running.close()


@contextlib.contextmanager
def shop_open():
    shop = Shop()
    try:
        yield shop
    finally:
        shop.end()


def attach(text: str, shop: Shop) -> Session:
    try:
        return Session(text, pid=shop.pid)
    except AssertionError as error:
        if "no core is built" in str(error):
            raise Skip(str(error)) from error
        raise


def test_each_world_slows_alone_and_both_together() -> None:
    requests, block = 60, 6
    with shop_open() as shop:
        def cost() -> tuple[list[int], float]:
            """The ns of each request, and the ns of the workers' CPU time for one: the median of blocks,
            as a stall of the host is charged as CPU time, too."""
            times, cpu = [], []
            for first in range(0, requests, block):
                before = cpu_ns(*shop.workers())
                times += shop.times(block, first)
                cpu.append((cpu_ns(*shop.workers()) - before) / block)
            return times, statistics.median(cpu)

        cost()  # what is imported and cached by the first requests
        _, plain = cost()
        for python, native in ((PYTHON_DELAY, 0), (0, NATIVE_DELAY), (PYTHON_DELAY, NATIVE_DELAY)):
            with attach(targets(python, native), shop) as session:
                times, cpu = cost()
                final = session.stop()
            steps = calls(final, "sqlite3_step")
            assert calls(final, "price_of") == requests, final
            assert steps >= requests and steps % requests == 0, (steps, requests)
            assert set(calls_by_pid(final, "price_of")) <= shop.workers(), final
            asked = python + steps / requests * native
            print(f"  {plain / MS:.1f} ms of CPU before; {statistics.median(times) / MS:.1f} ms, "
                  f"{cpu / MS:.1f} ms of CPU, with {python / MS:.0f} ms in Python and "
                  f"{native / MS:.0f} ms in each of {steps // requests} native calls")
            assert min(times) > asked * 0.97, (min(times), asked)
            assert final["all"]["measured_ns"] > asked * requests * 0.97, (final["all"], asked)
            assert cpu < plain + asked * 1.5, (cpu, asked, plain)  # not twice
        _, after = cost()
        assert after < plain + min(PYTHON_DELAY, NATIVE_DELAY) / 2, (after, plain)


def test_every_request_is_answered_under_load_throughout() -> None:
    with shop_open() as shop:
        stop = threading.Event()
        errors: list[str] = []
        served: list[int] = []

        def load(first: int) -> None:
            number = first
            try:
                while not stop.is_set():
                    served.append(shop.buy(number))
                    number += 1
            except Exception as error:
                errors.append(repr(error))

        threads = [threading.Thread(target=load, args=(number * 1000,)) for number in range(4)]
        for thread in threads:
            thread.start()
        try:
            for _ in range(3):
                time.sleep(0.3)
                with attach(targets(2 * MS, MS), shop) as session:
                    start = len(served)
                    wait_for(lambda: len(served) >= start + 100 or errors, 60, "100 requests")
                    final = session.stop()
                assert calls(final, "price_of") >= 90, final
                assert set(calls_by_pid(final, "price_of")) == shop.workers(), final
                assert delays(final, "sqlite3_step") >= calls(final, "price_of"), final
            time.sleep(0.3)
        finally:
            stop.set()
            for thread in threads:
                thread.join()
        assert not errors, errors


def test_workers_that_are_restarted_are_slowed() -> None:
    """From a worker's first answer on, whichever of them it is."""
    with shop_open() as shop:
        old = shop.workers()
        with attach(targets(PYTHON_DELAY, NATIVE_DELAY), shop) as session:
            os.kill(shop.pid, signal.SIGHUP)
            wait_for(lambda: len(shop.workers()) == 2 and not shop.workers() & old, 60, "restart")
            wait_for(shop.answers, 30, "an answer")
            new, answered, least = shop.workers(), set(), time.monotonic_ns()
            while not new <= answered:  # the kernel chooses who answers
                start = time.monotonic_ns()
                answered.add(shop.buy(1))
                least = min(least, time.monotonic_ns() - start)
            probed = set()
            while not new <= probed:
                before = calls_now(session, "sqlite3_step")
                worker = shop.buy(1)
                if calls_now(session, "sqlite3_step") > before:
                    probed.add(worker)
            final = session.stop()
        # Where a program beside it maps the library, a new process is probed as soon as the session
        # has heard of it.
        is_late = any("libsqlite3" in path for path in final["late_files"])
        assert least > (PYTHON_DELAY + (0 if is_late else NATIVE_DELAY)) * 0.97, (least, final)
        assert set(calls_by_pid(final, "price_of")) >= new, (final, new)
        assert set(calls_by_pid(final, "sqlite3_step")) >= new, (final, new)
        assert min(shop.times(40)) < PYTHON_DELAY + NATIVE_DELAY


STEPPER = """
import time
def step():
    pass
while True:
    step()
    time.sleep(0.01)
"""


def are_counted(session: Session, processes: int) -> bool:
    """Whether so many, less those that nothing can be counted in, have called step() more than 20 times."""
    calls = calls_by_pid(look(session), "step")
    lack = sum("no core is built" in line for line in session.warnings)
    return len(calls) >= processes - lack and min(calls.values(), default=0) > 20


def test_pythons_of_several_versions_in_one_tree() -> None:
    versions: dict[str, str] = {}  # by the version, such as 3.12
    own = sorted(pathlib.Path.home().glob(".pyenv/versions/3.1[0-9].*/bin/python3"))
    for python in [sys.executable, *map(str, own)]:
        told = subprocess.run([python, "-c", "import sys; print(*sys.version_info[:2], sep='.')"],
                              capture_output=True, text=True)
        versions.setdefault(told.stdout.strip(), python)
    if len(versions) < 2:
        raise Skip("only one Python is installed")
    script = scratch() / "stepper.py"
    script.write_text(STEPPER)
    line = "".join(f"{python} {script} & " for python in versions.values()) + "wait"
    parent = subprocess.Popen(["sh", "-c", line], start_new_session=True)
    try:
        time.sleep(1)  # so that all of them run already
        try:
            with Session("*:step delay=2ms", pid=parent.pid) as session:
                # However seldom each of them has a CPU.
                wait_for(lambda: are_counted(session, len(versions)), 60, "calls of all")
                final = session.stop()
        except AssertionError as error:
            if "no core is built" in str(error):
                raise Skip(str(error)) from error
            raise
        counted = calls_by_pid(final, "step")
        cores_lack = sum("no core is built" in line for line in session.warnings)
        print(f"  {', '.join(versions)}: {sorted(counted.values())} calls")
        assert len(counted) == len(versions) - cores_lack >= 1, (counted, session.warnings)
        assert all(calls > 20 for calls in counted.values()), counted
    finally:
        os.killpg(parent.pid, signal.SIGKILL)
        parent.wait()


ALTERNATOR = """
import ctypes, sys, time
native = ctypes.CDLL(sys.argv[1]).lib_work
clock = time.monotonic_ns
def step():
    pass
print("ready", flush=True)
for line in sys.stdin:
    times = []
    for call in (step, native):
        for _ in range(10):
            begin = clock()
            call()
            times.append(clock() - begin)
    print(*times, flush=True)
"""


def test_a_change_reaches_the_next_call_in_python_and_native() -> None:
    """When it is answered it is done, in both."""
    script = scratch() / "alternator.py"
    script.write_text(ALTERNATOR)
    process = subprocess.Popen([sys.executable, script, LIBRARY], text=True,
                               stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    try:
        assert process.stdout.readline() == "ready\n"

        def times() -> list[int]:
            process.stdin.write("\n")
            process.stdin.flush()
            return [int(word) for word in process.stdout.readline().split()]

        text = "*:step delay=0\n+libslowlib.so:lib_work delay=0"
        with Session(text, pid=process.pid) as session, socket.socket(socket.AF_UNIX) as control:
            control.connect(f"/run/speedbump/{session.process.pid}")
            answers = control.makefile()

            def change(request: str) -> None:
                control.sendall(request.encode() + b"\n")
                answer = json.loads(answers.readline())
                assert answer["ok"], answer

            wait_for(lambda: "step" in json.dumps(session.documents), 5, "step is matched")
            for _ in range(20):
                change("set * delay=300us")
                slow = times()
                assert min(slow) > 300_000 * 0.97, slow
                change("set * delay=0")
                fast = times()
                assert statistics.median(fast) < 100_000, fast
    finally:
        process.kill()
        process.wait()


if __name__ == "__main__":
    main(globals())
