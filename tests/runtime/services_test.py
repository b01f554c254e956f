# SPDX-License-Identifier: MIT
"""redis-server, nginx and PostgreSQL from the distribution, under load: slower by what was asked,
restored."""

import contextlib
import http.client
import os
import pathlib
import signal
import socket
import statistics
import subprocess
import threading
import time
from collections.abc import Callable

from harness import (
    Session, campaign, children, cpu_ns, delays, expect_restored, main, need, wait_for,
)
from services import nginx, postgres, redis


class RedisLoad:
    """Requests over connections of their own until the block ends; every answer is checked."""

    def __init__(self, port: int, connections: int = 4):
        self.requests = 0
        self.errors: list[str] = []
        self._stop = threading.Event()
        self._threads = [
            threading.Thread(target=self._work, args=(port, index)) for index in range(connections)
        ]

    def _work(self, port: int, index: int) -> None:
        try:
            with socket.create_connection(("127.0.0.1", port), timeout=10) as connection:
                stream = connection.makefile("rwb")
                for number in range(1 << 40):
                    if self._stop.is_set():
                        return
                    value = f"{index}-{number}".encode()
                    stream.write(b"SET k%d %s\r\nGET k%d\r\n" % (index, value, index))
                    stream.flush()
                    said = stream.readline(), stream.readline(), stream.readline()
                    if said != (b"+OK\r\n", b"$%d\r\n" % len(value), value + b"\r\n"):
                        self.errors.append(repr(said))
                        return
                    self.requests += 2
        except OSError as error:
            self.errors.append(repr(error))

    def __enter__(self) -> "RedisLoad":
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, kind, *_) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join()
        if kind is None:
            assert not self.errors, self.errors


def median_of(blocks: int, cost: Callable[[], tuple[float, float]]) -> tuple[float, float]:
    """What a request takes, and its CPU time, as in most blocks of requests: a stall of the host is
    charged as CPU time, too."""
    spent, cpu = zip(*(cost() for _ in range(blocks)))
    return statistics.median(spent), statistics.median(cpu)


def benchmark(port: int, requests: int) -> float:
    """redis-benchmark GET with 20 clients: seconds per request."""
    done = subprocess.run(
        [need("redis-benchmark"), "-p", str(port), "-t", "get", "-n", str(requests), "-c", "20",
         "--csv"], capture_output=True, text=True, timeout=60, check=True,
    )
    assert "error" not in (done.stdout + done.stderr).lower(), done
    row = done.stdout.splitlines()[-1].replace('"', "").split(",")
    return 1 / float(row[1])


def test_redis_gets_slower_by_hits_times_delay() -> None:
    """The server has one thread: each command takes what it took, and one delay; afterwards none. What
    it took is 4.5 to 13 us of CPU, as many as the server finds waiting whenever it is woken."""
    blocks, requests = 10, 1000
    with redis() as server:
        def cost() -> tuple[float, float]:
            """us, and us of the server's CPU time, of a request."""
            before = cpu_ns(server.pid)
            spent = benchmark(server.port, requests)
            return spent * 1e6, (cpu_ns(server.pid) - before) / requests / 1000

        _, plain = median_of(blocks, cost)
        for delay_us in (50, 200):
            with Session(f"+exe:processCommand delay={delay_us}us", pid=server.pid) as session:
                spent, cpu = median_of(blocks, cost)
                final = session.stop()
            count = delays(final, "processCommand")
            assert count >= blocks * requests, count
            print(f"  {plain:.1f} us of CPU a request before; {spent:.1f} us, {cpu:.1f} of CPU, "
                  f"at {delay_us} us")
            assert spent > delay_us, (spent, delay_us)
            assert cpu < plain + delay_us * 1.5, (cpu, delay_us, plain)
            assert final["all"]["measured_ns"] > count * delay_us * 1000 * 0.99, final["all"]
        _, after = median_of(blocks, cost)
        assert after < plain + 50 / 2, (after, plain)
        expect_restored(server.pid)


def attach_and_detach(cycles: int) -> None:
    with redis() as server:
        with RedisLoad(server.port) as load:
            for _ in range(cycles):
                before = load.requests
                with Session("+exe:process* delay=10us\n+exe:lookup*", pid=server.pid) as session:
                    wait_for(lambda: load.requests > before, 10, "answers while attached")
                    session.stop()
            served = load.requests
        print(f"  {cycles} cycles, {served} answers, no error")
        expect_restored(server.pid)


def test_redis_attach_and_detach_under_load_without_an_error() -> None:
    attach_and_detach(40)


@campaign
def test_redis_attach_and_detach_a_thousand_times() -> None:
    attach_and_detach(1000)


def test_redis_killed_loaders_under_load_without_an_error() -> None:
    with redis() as server:
        with RedisLoad(server.port) as load:
            for _ in range(10):
                with Session("+exe:* delay=1us every=100", pid=server.pid) as session:
                    session.kill()
                expect_restored(server.pid)
                before = load.requests
                wait_for(lambda: load.requests > before, 10, "answers after the kill")


def _request(port: int, count: int) -> float:
    """Seconds a request, over one connection."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=20)
    start = time.monotonic()
    for _ in range(count):
        connection.request("GET", "/")
        response = connection.getresponse()
        assert response.status == 200 and response.read() == b"hello\n"
    spent = time.monotonic() - start
    connection.close()
    return spent / count


def test_nginx_workers_are_slowed_and_restored() -> None:
    """A stripped program: its functions are named by what it calls in libc, or by its dynamic
    symbols. One request is one open file; the workers are the master's children."""
    with nginx() as master:
        wait_for(lambda: len(children(master.pid)) == 2, 10, "two workers")
        workers = children(master.pid)
        blocks, requests, delay_us = 10, 10, 3000

        def cost() -> tuple[float, float]:
            """us, and us of the workers' CPU time, of a request."""
            before = cpu_ns(*workers)
            spent = _request(master.port, requests)
            return spent * 1e6, (cpu_ns(*workers) - before) / requests / 1000

        _, plain = median_of(blocks, cost)
        # writev sends each response.
        with Session(f"+libc.so.6:writev delay={delay_us}us", pid=master.pid) as session:
            spent, cpu = median_of(blocks, cost)
            final = session.stop()
        per_request = final["all"]["delays"] / (blocks * requests)
        assert per_request >= 1, final
        print(f"  {plain:.0f} us of CPU a request before; {spent:.0f} us, {cpu:.0f} of CPU, with "
              f"{per_request:.2f} delays of {delay_us} us")
        assert spent > per_request * delay_us, (spent, per_request)
        assert cpu < plain + per_request * delay_us * 1.5, (cpu, per_request, plain)
        _, after = median_of(blocks, cost)
        assert after < plain + delay_us / 2, (after, plain)
        for pid in [master.pid, *workers]:
            expect_restored(pid)


def test_nginx_attach_and_detach_under_load_without_an_error() -> None:
    cycles = 10
    with nginx() as master:
        stop, errors, served = threading.Event(), [], [0]

        def load() -> None:
            try:
                while not stop.is_set():  # a connection each: a reload ends idle ones
                    _request(master.port, 1)
                    served[0] += 1
            except Exception as error:
                errors.append(repr(error))

        threads = [threading.Thread(target=load) for _ in range(2)]
        for thread in threads:
            thread.start()
        try:
            for cycle in range(cycles):
                with Session("+exe:ngx_* delay=5us\n+libc.so.6:writev delay=20us",
                             "--missing=ignore", pid=master.pid) as session:
                    if cycle == 2:  # new workers while attached, as on a reload
                        master.process.send_signal(signal.SIGHUP)
                        time.sleep(0.5)
                    session.stop()
        finally:
            stop.set()
            for thread in threads:
                thread.join()
        assert not errors, errors
        print(f"  {cycles} cycles, {served[0]} answers, no error")


def test_postgres_backends_are_slowed_and_restored() -> None:
    """Each connection is a process that the server forks while attached."""
    with postgres() as (server, pgbench):
        blocks, count, delay_us = 5, 100, 3000

        def has_backend() -> bool:
            """Also one that has ended, and has not been waited for: it has no command line."""
            for pid in children(server.pid):
                with contextlib.suppress(OSError):
                    name = pathlib.Path(f"/proc/{pid}/cmdline").read_bytes()
                    if not name or name.startswith(b"postgres: tester"):
                        return True
            return False

        def backends_us() -> float:
            """CPU time of the server's children that have ended."""
            fields = pathlib.Path(f"/proc/{server.pid}/stat").read_text().rpartition(")")[2].split()
            return (int(fields[13]) + int(fields[14])) * 1e6 / os.sysconf("SC_CLK_TCK")

        def cost() -> tuple[float, float]:
            """us, and us of the backend's CPU time, of a query."""
            before = backends_us()
            done = subprocess.run([*pgbench, "-S", "-t", str(count), "postgres"], timeout=120,
                                  check=True, capture_output=True, text=True)
            assert f"{count}/{count}" in done.stdout, done.stdout
            spent = float(done.stdout.partition("latency average = ")[2].split()[0]) * 1000
            wait_for(lambda: not has_backend(), 10, "the backend has ended")
            return spent, (backends_us() - before) / count

        _, plain = median_of(blocks, cost)
        with Session(f"+exe:ExecutorRun delay={delay_us}us", pid=server.pid) as session:
            spent, cpu = median_of(blocks, cost)
            final = session.stop()
        queries = blocks * count
        assert queries <= delays(final, "ExecutorRun") <= queries + 20, final
        measured = final["all"]["measured_ns"] / final["all"]["delays"] / 1000
        print(f"  {plain:.0f} us of CPU a query before; {spent:.0f} us, {cpu:.0f} of CPU, with a "
              f"delay of {delay_us} us, measured {measured:.0f} us")
        assert spent > delay_us and measured > delay_us * 0.99, (spent, measured)
        # The time of processes that have ended comes in steps; others than backends end, too.
        assert cpu < plain + delay_us * 1.5, (cpu, plain)
        _, after = median_of(blocks, cost)
        assert after < plain + delay_us / 2, (after, plain)
        expect_restored(server.pid)


if __name__ == "__main__":
    main(globals())
