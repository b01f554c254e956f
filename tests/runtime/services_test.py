# SPDX-License-Identifier: MIT
"""redis-server, nginx and PostgreSQL from the distribution, under load: slower by what was asked,
restored."""

import contextlib
import http.client
import os
import pathlib
import pwd
import signal
import socket
import subprocess
import threading
import time

from harness import (
    Session, Skip, children, delays, expect_ratio, expect_restored, main, need,
    need_idle_cpus, repeat, scratch, wait_for,
)

CYCLES = int(os.environ.get("SPEEDBUMP_TEST_CYCLES", "40"))


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def _answers(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), timeout=1).close()
        return True
    except OSError:
        return False


@contextlib.contextmanager
def _service(command: list[str], port: int):
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        wait_for(lambda: _answers(port), 20, command[0])
        yield process
        assert process.poll() is None, f"{command[0]} ended with {process.returncode}"
    finally:
        process.terminate()
        process.wait(timeout=20)


@contextlib.contextmanager
def redis():
    port = _free_port()
    with _service(
        [need("redis-server"), "--port", str(port), "--save", "", "--appendonly", "no",
         "--dir", str(scratch())], port,
    ) as process:
        yield process, port


@contextlib.contextmanager
def nginx():
    port, folder = _free_port(), scratch()
    (folder / "index.html").write_text("hello\n")
    (folder / "nginx.conf").write_text(
        f"""daemon off; worker_processes 2; pid {folder}/pid; error_log {folder}/error.log;
user root;
events {{ worker_connections 64; }}
http {{ access_log off; keepalive_requests 1000000;
        client_body_temp_path {folder}/a; proxy_temp_path {folder}/b; fastcgi_temp_path {folder}/c;
        uwsgi_temp_path {folder}/d; scgi_temp_path {folder}/e;
        server {{ listen 127.0.0.1:{port}; root {folder}; }} }}
"""
    )
    with _service([need("nginx"), "-c", str(folder / "nginx.conf"), "-p", str(folder)], port) as it:
        yield it, port


@contextlib.contextmanager
def postgres():
    """A server with the tables of pgbench; the socket's folder is its address."""
    programs = sorted(pathlib.Path("/usr/lib/postgresql").glob("*/bin"))
    if not programs:
        raise Skip("PostgreSQL is not installed")
    folder = scratch()
    nobody = pwd.getpwnam("nobody")  # it refuses to run as root
    as_nobody = ["setpriv", f"--reuid={nobody.pw_uid}", f"--regid={nobody.pw_gid}",
                 "--clear-groups"]
    folder.chmod(0o755)
    data = folder / "data"
    data.mkdir()
    os.chown(data, nobody.pw_uid, nobody.pw_gid)
    subprocess.run([*as_nobody, programs[-1] / "initdb", "-D", data, "-A", "trust", "-U", "tester",
                    "--no-sync"], check=True, stdout=subprocess.DEVNULL, cwd=data)
    server = subprocess.Popen(
        [*as_nobody, programs[-1] / "postgres", "-D", data, "-k", data, "-c", "listen_addresses=",
         "-c", "fsync=off"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, cwd=data)
    pgbench = [programs[-1] / "pgbench", "-h", str(data), "-U", "tester", "-n"]
    try:
        wait_for(lambda: subprocess.run([programs[-1] / "pg_isready", "-h", str(data)],
                                        stdout=subprocess.DEVNULL).returncode == 0, 20, "postgres")
        subprocess.run([*pgbench, "-i", "-q", "postgres"], check=True, capture_output=True)
        yield server, pgbench
        assert server.poll() is None, f"postgres ended with {server.returncode}"
    finally:
        server.send_signal(signal.SIGINT)
        server.wait(timeout=20)


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
    """The server has one thread: each command takes what it took, and the delay."""
    need_idle_cpus()
    with redis() as (server, port):
        def measure() -> None:
            before = benchmark(port, 40_000)
            for delay_us in (50, 200):
                with Session(f"+exe:processCommand delay={delay_us}us", pid=server.pid) as session:
                    during = benchmark(port, 10_000)
                    final = session.stop()
                count = delays(final, "processCommand")
                assert count >= 10_000, count
                print(f"  {1 / before:.0f}/s before, {1 / during:.0f}/s at {delay_us} us")
                # Between requests that are ready the server spends no time but the delay's.
                expect_ratio(during * 1e6, delay_us, 1.0, 1.0 + before * 1e6 / delay_us + 0.6,
                             f"us a request at {delay_us} us")
                expect_ratio(
                    final["all"]["measured_ns"], count * delay_us * 1000, 0.99, 1.1, "ns measured"
                )
            after = benchmark(port, 40_000)
            expect_ratio(after * 1e9, before * 1e9, 0.6, 1.35, "ns a request after, as before")

        repeat(4, measure)
        expect_restored(server.pid)


def test_redis_attach_and_detach_under_load_without_an_error() -> None:
    with redis() as (server, port):
        with RedisLoad(port) as load:
            for _ in range(CYCLES):
                before = load.requests
                with Session("+exe:process* delay=10us\n+exe:lookup*", pid=server.pid) as session:
                    wait_for(lambda: load.requests > before, 10, "answers while attached")
                    session.stop()
            served = load.requests
        print(f"  {CYCLES} cycles, {served} answers, no error")
        expect_restored(server.pid)


def test_redis_killed_loaders_under_load_without_an_error() -> None:
    with redis() as (server, port):
        with RedisLoad(port) as load:
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
    need_idle_cpus()
    with nginx() as (master, port):
        wait_for(lambda: len(children(master.pid)) == 2, 10, "two workers")
        workers = children(master.pid)
        delay_us = 3000

        def measure() -> None:
            before = _request(port, 100)
            # writev sends each response.
            with Session(f"+libc.so.6:writev delay={delay_us}us", pid=master.pid) as session:
                during = _request(port, 100)
                final = session.stop()
            per_request = final["all"]["delays"] / 100
            assert per_request >= 1, final
            print(f"  {before * 1e6:.0f} us a request, {during * 1e6:.0f} us with "
                  f"{per_request:.2f} delays of {delay_us} us")
            expect_ratio((during - before) * 1e6, per_request * delay_us, 0.9, 1.3, "us added")
            after = _request(port, 100)
            expect_ratio(after * 1e6, before * 1e6, 0.3, 2.0, "us a request after, as before")

        repeat(3, measure)
        for pid in [master.pid, *workers]:
            expect_restored(pid)


def test_nginx_attach_and_detach_under_load_without_an_error() -> None:
    with nginx() as (master, port):
        stop, errors, served = threading.Event(), [], [0]

        def load() -> None:
            try:
                while not stop.is_set():  # a connection each: a reload ends idle ones
                    _request(port, 1)
                    served[0] += 1
            except Exception as error:
                errors.append(repr(error))

        threads = [threading.Thread(target=load) for _ in range(2)]
        for thread in threads:
            thread.start()
        try:
            for cycle in range(CYCLES // 4):
                with Session("+exe:ngx_* delay=5us\n+libc.so.6:writev delay=20us",
                             "--missing=ignore", pid=master.pid) as session:
                    if cycle == 2:  # new workers while attached, as on a reload
                        master.send_signal(signal.SIGHUP)
                        time.sleep(0.5)
                    session.stop()
        finally:
            stop.set()
            for thread in threads:
                thread.join()
        assert not errors, errors
        print(f"  {CYCLES // 4} cycles, {served[0]} answers, no error")


def test_postgres_backends_are_slowed_and_restored() -> None:
    """Each connection is a process that the server forks while attached."""
    need_idle_cpus()
    with postgres() as (server, pgbench):
        count, delay_us = 300, 3000

        def latency_us() -> float:
            done = subprocess.run([*pgbench, "-S", "-t", str(count), "postgres"], timeout=60,
                                  check=True, capture_output=True, text=True)
            assert f"{count}/{count}" in done.stdout, done.stdout
            return float(done.stdout.partition("latency average = ")[2].split()[0]) * 1000

        def measure() -> None:
            before = latency_us()
            with Session(f"+exe:ExecutorRun delay={delay_us}us", pid=server.pid) as session:
                during = latency_us()
                final = session.stop()
            assert count <= delays(final, "ExecutorRun") <= count + 20, final
            measured = final["all"]["measured_ns"] / final["all"]["delays"] / 1000
            print(f"  {before:.0f} us a query, {during:.0f} us with a delay of {delay_us} us, "
                  f"measured {measured:.0f} us")
            expect_ratio(measured, delay_us, 0.99, 1.1, "us measured")
            # The client sleeps meanwhile: waking it comes on top, up to 1 ms in virtual machines.
            expect_ratio(during - before, delay_us, 0.95, 1.5, "us added")
            expect_ratio(latency_us(), before, 0.3, 2.0, "us a query after, as before")

        repeat(3, measure)
        expect_restored(server.pid)


if __name__ == "__main__":
    main(globals())
