#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Ranked reports of experiments on loaded services of the distribution.

  experiment_services.py SPEEDBUMP FOLDER [redis|nginx|flask]...    as root

Prints each report's table; FOLDER gets NAME.json and NAME.html.
"""

import contextlib
import pathlib
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "runtime"))
import services  # noqa: E402


@contextlib.contextmanager
def loaded(*command: str) -> Iterator[None]:
    load = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        yield
    finally:
        load.kill()
        load.wait()


def wrk(url: str, clients: int) -> list[str]:
    return [services.need("wrk"), "-t1", f"-c{clients}", "-d1h", url]


@contextlib.contextmanager
def redis() -> Iterator[tuple[int, str, str]]:
    with services.redis() as server:
        benchmark = [services.need("redis-benchmark"), "-p", str(server.port), "-d", "100",
                     "-r", "10000"]
        subprocess.run([*benchmark, "-q", "-t", "set"], stdout=subprocess.DEVNULL, check=True)
        with loaded(*benchmark, "-c", "8", "-n", "1000000000", "-t", "get"):
            yield server.pid, "native:exe:processCommand", """
+exe:lookupKey
+exe:processInputBuffer
+exe:addReplyBulk
+exe:writeToClient
+exe:serverCron
"""


@contextlib.contextmanager
def nginx() -> Iterator[tuple[int, str, str]]:
    with services.nginx(workers=1) as server:
        with loaded(*wrk(f"http://127.0.0.1:{server.port}/", 8)):
            yield server.pid, "syscall:writev", """
+libc.so.6:open64
+libc.so.6:writev
+libc.so.6:recv
+libc.so.6:epoll_wait
+libc.so.6:sigsuspend
"""


@contextlib.contextmanager
def flask() -> Iterator[tuple[int, str, str]]:
    with services.shop() as server:
        with loaded(*wrk(f"http://127.0.0.1:{server.port}/buy/7/2", 4)):
            yield server.pid, "python:shop:buy", """
shop:price_of
flask.app:Flask.make_response
+libsqlite3.so*:sqlite3_step
+libsqlite3.so*:sqlite3_open_v2
+libc.so.6:accept4
"""


SERVICES = {service.__name__: service for service in (redis, nginx, flask)}


def main() -> None:
    speedbump, out, *names = sys.argv[1:]
    pathlib.Path(out).mkdir(parents=True, exist_ok=True)
    for name in names or SERVICES:
        print(f"-- {name}", flush=True)
        with tempfile.TemporaryDirectory() as folder, SERVICES[name]() as (pid, progress, lines):
            targets = pathlib.Path(folder) / "targets.txt"
            targets.write_text(lines)
            time.sleep(2)
            subprocess.run(
                [speedbump, "experiment", "-q", "--pid", str(pid), "--progress", progress,
                 "--time=90s", "--seed=1", "--max-cpu=2", "--max-slowdown=100%",
                 "--output", f"{out}/{name}.json", "--html", f"{out}/{name}.html", str(targets)],
                stdin=subprocess.DEVNULL,
            )


if __name__ == "__main__":
    main()
