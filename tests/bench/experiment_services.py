#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Ranked reports of experiments on loaded services of the distribution.

  experiment_services.py SPEEDBUMP FOLDER [redis|nginx|flask]...    as root

Prints each report's table; FOLDER gets NAME.json and NAME.html.
"""

import contextlib
import pathlib
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request

SHOP = pathlib.Path(__file__).parents[1] / "programs" / "flask_shop"


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@contextlib.contextmanager
def running(command: list, **options):
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
                               **options)
    try:
        yield process
    finally:
        process.terminate()
        try:
            process.wait(timeout=10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def wait_for_port(port: int) -> None:
    for _ in range(200):
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port)):
            return
        time.sleep(0.1)
    sys.exit(f"nobody listens on port {port}")


def load_of(url: str, clients: int) -> list[str]:
    return ["wrk", "-t1", f"-c{clients}", "-d1h", url]


@contextlib.contextmanager
def redis(folder: str):
    port = free_port()
    with running(["redis-server", "--port", str(port), "--save", "", "--dir", folder]) as server:
        wait_for_port(port)
        load = ["redis-benchmark", "-p", str(port), "-c", "8", "-n", "1000000000", "-t", "get",
                "-d", "100", "-r", "10000"]
        fill = ["redis-benchmark", "-p", str(port), "-q", "-t", "set", "-d", "100", "-r", "10000"]
        subprocess.run(fill, stdout=subprocess.DEVNULL, check=True)
        with running(load):
            yield server.pid, "native:exe:processCommand", """
+exe:lookupKey
+exe:writeToClient
+exe:serverCron
"""


@contextlib.contextmanager
def nginx(folder: str):
    port = free_port()
    root = pathlib.Path(folder)
    (root / "index.html").write_text("hello\n")
    (root / "nginx.conf").write_text(f"""
daemon off; worker_processes 1; pid {folder}/pid; error_log {folder}/error.log; user root;
events {{ worker_connections 64; }}
http {{ access_log off; keepalive_requests 1000000000; client_body_temp_path {folder}/a;
        proxy_temp_path {folder}/b; fastcgi_temp_path {folder}/c; uwsgi_temp_path {folder}/d;
        scgi_temp_path {folder}/e; server {{ listen 127.0.0.1:{port}; root {folder}; }} }}
""")
    with running(["nginx", "-c", f"{folder}/nginx.conf", "-p", folder]) as server:
        wait_for_port(port)
        with running(load_of(f"http://127.0.0.1:{port}/", 8)):
            yield server.pid, "syscall:writev", """
+libc.so.6:open64
+libc.so.6:writev
+libc.so.6:recv
+libc.so.6:epoll_wait
+libc.so.6:sigsuspend
"""


@contextlib.contextmanager
def flask(folder: str):
    sys.path.insert(0, str(SHOP))
    import shop

    database = f"{folder}/shop.db"
    shop.stock_up(database)
    port = free_port()
    command = ["gunicorn", "--workers=2", f"--bind=127.0.0.1:{port}", f"--chdir={SHOP}",
               f"--worker-tmp-dir={folder}", "shop:app"]
    with running(command, env={"SHOP_DATABASE": database, "PATH": "/usr/bin:/bin"}) as server:
        wait_for_port(port)
        url = f"http://127.0.0.1:{port}/buy/7/2"
        urllib.request.urlopen(url).read()
        with running(load_of(url, 4)):
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
        with tempfile.TemporaryDirectory() as folder, SERVICES[name](folder) as (pid, progress, lines):
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
