# SPDX-License-Identifier: MIT
"""Python and native targets in one session: a Flask application over SQLite under gunicorn."""

import contextlib
import http.client
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

from harness import *

SHOP = pathlib.Path(__file__).parents[1] / "programs" / "flask_shop"
sys.path.insert(0, str(SHOP))

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
        gunicorn = need("gunicorn")
        try:
            import shop
        except ImportError as error:
            raise Skip(f"no Flask: {error}") from error
        folder = scratch()
        database = str(folder / "shop.db")
        shop.stock_up(database)
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = probe.getsockname()[1]
        self.process = subprocess.Popen(
            [gunicorn, "--workers=2", f"--bind=127.0.0.1:{self.port}", f"--chdir={SHOP}",
             "--log-level=warning", f"--worker-tmp-dir={folder}", "shop:app"],
            env={**os.environ, "SHOP_DATABASE": database},
        )
        wait_for(lambda: len(self.workers()) == 2 and self.answers(), 30, "gunicorn")

    @property
    def pid(self) -> int:
        return self.process.pid

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
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=20)
        with contextlib.closing(connection):
            connection.request("GET", f"/buy/{item}/{count}")
            response = connection.getresponse()
            answer = response.read()
        assert response.status == 200, (response.status, answer)
        answer = json.loads(answer)
        cents = (100 + 7 * item) * count * (90 if count >= 10 else 100) // 100
        assert (answer["name"], answer["cents"]) == (f"item {item}", cents), answer
        return answer["worker"]

    def latency(self, requests: int = 60) -> float:
        """The median ns of a request, one after the other."""
        times = []
        for number in range(requests):
            start = time.monotonic_ns()
            self.buy(number)
            times.append(time.monotonic_ns() - start)
        return statistics.median(times)

    def end(self) -> None:
        self.process.terminate()
        try:
            self.process.wait(timeout=20)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


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


def measure_with(shop: Shop, python: int, native: int) -> tuple[float, dict, int]:
    requests = 60
    with attach(targets(python, native), shop) as session:
        during = shop.latency(requests)
        return during, session.stop(), requests


def test_each_world_slows_alone_and_both_together() -> None:
    with shop_open() as shop:
        def measure() -> None:
            before = shop.latency()
            for python, native in ((PYTHON_DELAY, 0), (0, NATIVE_DELAY),
                                   (PYTHON_DELAY, NATIVE_DELAY)):
                during, final, requests = measure_with(shop, python, native)
                steps = calls(final, "sqlite3_step")
                assert calls(final, "price_of") == requests, final
                assert steps >= requests and steps % requests == 0, (steps, requests)
                assert set(calls_by_pid(final, "price_of")) <= shop.workers(), final
                asked = python + steps / requests * native
                measured = final["all"]["measured_ns"] / requests
                print(f"  {before / MS:.1f} ms before, {during / MS:.1f} ms with {python / MS:.0f} "
                      f"ms in Python and {native / MS:.0f} ms in each of "
                      f"{steps // requests} native calls, {measured / MS:.1f} ms measured")
                assert during - before > asked * 0.9, (before, during, asked)
                expect_ratio(during - before, measured, 0.8, 1.4, "ns more for a request")
            after = shop.latency()
            assert after < before * 1.5 + MS, (before, after)

        repeat(3, measure)


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
    with shop_open() as shop:
        old = shop.workers()
        with attach(targets(PYTHON_DELAY, NATIVE_DELAY), shop) as session:
            os.kill(shop.pid, signal.SIGHUP)
            wait_for(lambda: len(shop.workers()) == 2 and not shop.workers() & old, 60, "restart")
            wait_for(shop.answers, 30, "an answer")
            new = shop.workers()
            during = shop.latency(40)
            final = session.stop()
        assert set(calls_by_pid(final, "price_of")) >= new, (final, new)
        assert set(calls_by_pid(final, "sqlite3_step")) >= new, (final, new)
        assert during > PYTHON_DELAY + NATIVE_DELAY, during
        assert shop.latency() < during / 1.5


STEPPER = """
import time
def step():
    pass
while True:
    step()
    time.sleep(0.01)
"""


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
                time.sleep(2)
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
    # When the last run of slow calls began, for each kind.
    slow, runs = [0, 0], [0, 0]
    def note(kind, begin, end):
        if end - begin < 150_000:
            runs[kind] = 0
            return
        if not runs[kind]:
            slow[kind] = begin
        runs[kind] += 1
    while min(runs) < 5:
        begin = clock()
        step()
        between = clock()
        native()
        end = clock()
        note(0, begin, between)
        note(1, between, end)
    print(*slow, flush=True)
"""


def test_a_change_reaches_python_and_native_within_a_millisecond() -> None:
    script = scratch() / "alternator.py"
    script.write_text(ALTERNATOR)
    process = subprocess.Popen([sys.executable, script, LIBRARY], text=True,
                               stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    try:
        assert process.stdout.readline() == "ready\n"
        targets = "*:step delay=0\n+libslowlib.so:lib_work delay=0"
        with Session(targets, pid=process.pid) as session, socket.socket(socket.AF_UNIX) as control:
            control.connect(f"/run/speedbump/{session.process.pid}")
            answers = control.makefile()

            def change(request: str) -> int:
                begin = time.monotonic_ns()
                control.sendall(request.encode() + b"\n")
                answer = json.loads(answers.readline())
                assert answer["ok"], answer
                return begin

            def measure() -> None:
                taken: list[tuple[int, int]] = []
                for _ in range(20):
                    change("set * delay=0")
                    process.stdin.write("watch\n")
                    process.stdin.flush()
                    time.sleep(0.02)
                    begin = change("set * delay=200us")
                    slow = [int(word) for word in process.stdout.readline().split()]
                    taken.append((slow[0] - begin, slow[1] - begin))
                python, native = (statistics.median(each) / 1000 for each in zip(*taken))
                print(f"  a change reaches Python in {python:.0f} us, native code in {native:.0f} us")
                assert -100 < python < 1000 and -100 < native < 1000, taken

            wait_for(lambda: "step" in json.dumps(session.documents), 5, "step is matched")
            repeat(3, measure)
    finally:
        process.kill()
        process.wait()


if __name__ == "__main__":
    main(globals())
