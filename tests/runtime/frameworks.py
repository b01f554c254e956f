# SPDX-License-Identifier: MIT
"""Small programs on frameworks of the distribution (tests/programs/frameworks), each with a way to ask
it for one unit of its work. What this host lacks raises `Missing`."""

import contextlib
import dataclasses
import http.client
import os
import pathlib
import socket
import subprocess
from collections.abc import Callable, Iterator

import torch_root
from harness import children, leave_none, scratch
from services import (
    PYTHON, Missing, free_port, is_open, need, nginx, postgres, redis, running, wait_for,
)

PROGRAMS = pathlib.Path(__file__).resolve().parents[1] / "programs" / "frameworks"
IN_ITS_ROOT = """
for place in proc sys dev; do mount --rbind /$place "$1/$place"; done
mount --bind "$2" "$1/mnt"
PYTHONPATH=/mnt exec chroot "$1" /usr/bin/python3 -c 'from shop import model; model.main()'
"""


@dataclasses.dataclass
class Framework:
    pid: int
    unit: Callable[[], object]  # returns when one unit of work is done
    requests: int = 1  # in a unit


def _need_module(*names: str) -> None:
    asked = subprocess.run([PYTHON, "-c", "import " + ", ".join(names)], text=True,
                           stderr=subprocess.PIPE)
    if asked.returncode:
        raise Missing(asked.stderr.strip().splitlines()[-1])


def _environment(**more: str) -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(PROGRAMS), "PYTHONDONTWRITEBYTECODE": "1", **more}


class _Rounds:
    """A program that does a round of work for each line that it reads."""

    def __init__(self, *command: str, **more: str):
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=scratch(),
            env=_environment(**more))
        leave_none(self._kill)
        self.pid = self._process.pid
        self._hear()

    def _hear(self) -> None:
        if not self._process.stdout.readline():
            raise AssertionError(f"{self._process.args} ended with {self._process.wait()}")

    def unit(self) -> None:
        self._process.stdin.write("round\n")
        self._process.stdin.flush()
        self._hear()

    def _kill(self) -> None:
        self._process.kill()
        self._process.wait()


def _python(module: str, *arguments: str, **more: str) -> Framework:
    """A module of shop, imported so that its functions have its name."""
    program = _Rounds(PYTHON, "-c", f"from shop import {module}; {module}.main()", *arguments, **more)
    return Framework(program.pid, program.unit)


def _get(port: int, *paths: str) -> None:
    """One request for each path, over one connection."""
    with contextlib.closing(http.client.HTTPConnection("127.0.0.1", port, timeout=60)) as client:
        for path in paths:
            client.request("GET", path)
            response = client.getresponse()
            answer = response.read()
            assert response.status == 200, (path, response.status, answer)


@contextlib.contextmanager
def _server(command: list[str], port: int, *paths: str, **more: str) -> Iterator[Framework]:
    """A web server; a unit is a request for each of the paths."""
    with running(command, scratch(), port, lambda: is_open(port), env=_environment(**more)) as it:
        _get(port, *paths)  # what only a first request does is done
        yield Framework(it.pid, lambda: _get(port, *paths), len(paths))


def _gunicorn(port: int, application: str) -> list[str]:
    return [need("gunicorn"), "--workers=1", f"--bind=127.0.0.1:{port}", "--log-level=warning",
            f"--worker-tmp-dir={scratch()}", application]


@contextlib.contextmanager
def flask() -> Iterator[Framework]:
    _need_module("flask")
    port = free_port()
    with _server(_gunicorn(port, "shop.web:app"), port, "/item/3?member=1", "/page/3") as it:
        yield it


@contextlib.contextmanager
def django() -> Iterator[Framework]:
    _need_module("django")
    port, database = free_port(), str(scratch() / "shop.db")
    subprocess.run([PYTHON, "-c", "import shop.site; shop.site.stock_up()"], check=True,
                   env=_environment(SHOP_DATABASE=database))
    with _server(_gunicorn(port, "shop.site:application"), port, "/item/3", "/page/3",
                 SHOP_DATABASE=database) as it:
        yield it


@contextlib.contextmanager
def fastapi() -> Iterator[Framework]:
    _need_module("fastapi", "uvicorn")
    port = free_port()
    with _server([PYTHON, "-m", "uvicorn", "--port", str(port), "--loop=asyncio",
                  "--log-level=warning", "shop.api:app"], port, "/item/3?name=me", "/report/3") as it:
        yield it


@contextlib.contextmanager
def celery() -> Iterator[Framework]:
    """The worker forks one process for tasks; who asks is none of its tree."""
    _need_module("celery", "redis")
    with redis() as broker:
        address = f"redis://127.0.0.1:{broker.port}/0"
        with running(
            [PYTHON, "-m", "celery", "-A", "shop.tasks", "worker", "--pool=prefork",
             "--concurrency=1", "--loglevel=warning", "--without-gossip", "--without-mingle"],
            scratch(), 0, lambda: True, env=_environment(SHOP_BROKER=address),
        ) as worker:
            yield Framework(worker.pid, _python("tasks", SHOP_BROKER=address).unit)


@contextlib.contextmanager
def numpy() -> Iterator[Framework]:
    _need_module("numpy")
    yield _python("steps")


@contextlib.contextmanager
def database_client() -> Iterator[Framework]:
    _need_module("psycopg2")
    with postgres() as (_, pgbench):
        yield _python("store", f"host={pgbench[2]} user=tester dbname=postgres")


@contextlib.contextmanager
def database_server() -> Iterator[Framework]:
    """A unit is a query over a connection that stays: the server's process for it is there."""
    _need_module("psycopg2")
    with postgres() as (server, pgbench):
        client = _python("store", f"host={pgbench[2]} user=tester dbname=postgres")
        yield Framework(server.pid, client.unit)


@contextlib.contextmanager
def pytorch() -> Iterator[Framework]:
    """In the root that has it."""
    program = _Rounds("unshare", "--mount", "sh", "-c", IN_ITS_ROOT, "sh", str(torch_root.root()),
                      str(PROGRAMS))
    yield Framework(program.pid, program.unit)


@contextlib.contextmanager
def asyncio() -> Iterator[Framework]:
    yield _python("feed")


@contextlib.contextmanager
def openssl() -> Iterator[Framework]:
    folder = scratch()
    subprocess.run(
        [need("openssl"), "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-subj", "/CN=shop",
         "-keyout", folder / "key", "-out", folder / "certificate"],
        check=True, stderr=subprocess.DEVNULL)
    yield _python("sealed", str(folder / "certificate"), str(folder / "key"))


@contextlib.contextmanager
def libc() -> Iterator[Framework]:
    yield _python("files")


@contextlib.contextmanager
def nginx_server() -> Iterator[Framework]:
    with nginx(workers=1) as master:
        wait_for(lambda: len(children(master.pid)) == 1, 10, "a worker")
        yield Framework(master.pid, lambda: _get(master.port, "/"))


@contextlib.contextmanager
def redis_server() -> Iterator[Framework]:
    with redis() as server:
        with socket.create_connection(("127.0.0.1", server.port), timeout=60) as client:
            stream = client.makefile("rwb")

            def ask() -> None:
                stream.write(b"SET k v\r\n")
                stream.flush()
                assert stream.readline() == b"+OK\r\n"

            yield Framework(server.pid, ask)
