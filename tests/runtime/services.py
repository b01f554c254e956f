# SPDX-License-Identifier: MIT
"""Starts services of the distribution, for tests, benchmarks and the demo: redis, nginx, PostgreSQL,
and the Flask shop under gunicorn. Each has a folder and a port of its own, and needs nothing that is
configured on the host.

    services.py NAME... (redis, nginx, shop)

prints "NAME PID PORT" for each as soon as all of them answer, and ends them when it gets SIGTERM.
"""

import contextlib
import dataclasses
import http.client
import os
import pathlib
import pwd
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator

SHOP = pathlib.Path(__file__).resolve().parents[1] / "programs" / "flask_shop"
PYTHON = "/usr/bin/python3"  # the one that the distribution's Flask and gunicorn are for


class Missing(Exception):
    """This host lacks what is needed; says what."""


@dataclasses.dataclass
class Service:
    process: subprocess.Popen
    folder: pathlib.Path
    port: int

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def log(self) -> str:
        return (self.folder / "log").read_text(errors="replace")


def need(program: str) -> str:
    """The path of a program that the caller cannot do without."""
    path = shutil.which(program, path=os.environ.get("PATH", "") + ":/usr/sbin:/sbin")
    if path is None:
        raise Missing(f"{program} is not installed")
    return path


def children(pid: int) -> list[int]:
    """Those of its main thread, alive or not yet waited for."""
    names = pathlib.Path(f"/proc/{pid}/task/{pid}/children").read_text()
    return [int(word) for word in names.split()]


def program_below(wrapper: int, program: str) -> int:
    """The child of a wrapper that forks, once it runs that program: its command line names it before."""
    executable = os.path.realpath(shutil.which(program) or program)

    def those_that_run_it() -> list[int]:
        found = []
        for pid in children(wrapper):
            with contextlib.suppress(OSError):
                if os.readlink(f"/proc/{pid}/exe") == executable:
                    found.append(pid)
        return found

    wait_for(lambda: bool(those_that_run_it()), 10, f"{program} is executed")
    return those_that_run_it()[0]


def wait_for(condition: Callable[[], bool], timeout: float, what: str) -> float:
    """Waits until the condition holds; the seconds that it took."""
    start = time.monotonic()
    while not condition():
        if time.monotonic() - start > timeout:
            raise AssertionError(f"{what}: not within {timeout} s")
        time.sleep(0.002)
    return time.monotonic() - start


@contextlib.contextmanager
def _folder() -> Iterator[pathlib.Path]:
    with tempfile.TemporaryDirectory(prefix="speedbump-service-", ignore_cleanup_errors=True) as it:
        os.chmod(it, 0o755)
        yield pathlib.Path(it)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def is_open(port: int) -> bool:
    with contextlib.suppress(OSError):
        socket.create_connection(("127.0.0.1", port), timeout=1).close()
        return True
    return False


@contextlib.contextmanager
def running(command: list, folder: pathlib.Path, port: int, answers: Callable[[], bool],
            how_to_end: int = signal.SIGTERM, **options) -> Iterator[Service]:
    """The service, from its first answer until the block ends. It must not end by itself."""
    with (folder / "log").open("w") as log:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                                   **options)
    service = Service(process, folder, port)

    def is_up() -> bool:
        if process.poll() is not None:
            raise AssertionError(f"{command[0]} ended with {process.returncode}: {service.log}")
        return answers()

    try:
        wait_for(is_up, 60, f"an answer of {command[0]}")
        yield service
        assert process.poll() is None, (
            f"{command[0]} ended with {process.returncode}: {service.log}")
    finally:
        process.send_signal(how_to_end)
        try:
            process.wait(timeout=30)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


@contextlib.contextmanager
def redis(*options: str) -> Iterator[Service]:
    port = free_port()
    with _folder() as folder, running(
        [need("redis-server"), "--port", str(port), "--bind", "127.0.0.1", "--save", "",
         "--appendonly", "no", "--dir", str(folder), *options], folder, port, lambda: is_open(port),
    ) as service:
        yield service


@contextlib.contextmanager
def nginx(workers: int = 2) -> Iterator[Service]:
    """Answers / with "hello\\n"."""
    port = free_port()
    with _folder() as folder:
        (folder / "index.html").write_text("hello\n")
        places = " ".join(f"{kind}_temp_path {folder}/{kind};"
                          for kind in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi"))
        (folder / "nginx.conf").write_text(
            f"daemon off; worker_processes {workers}; pid {folder}/pid; "
            f"error_log {folder}/error.log; user root;\n"
            "events { worker_connections 64; }\n"
            f"http {{ access_log off; keepalive_requests 1000000000; {places}\n"
            f"server {{ listen 127.0.0.1:{port}; root {folder}; }} }}\n")
        with running(
            [need("nginx"), "-c", f"{folder}/nginx.conf", "-p", str(folder)], folder, port,
            lambda: is_open(port),
        ) as service:
            wait_for(lambda: len(children(service.pid)) == workers, 10, "all workers of nginx")
            yield service


@contextlib.contextmanager
def postgres() -> Iterator[tuple[Service, list]]:
    """A server with the tables of pgbench, and the pgbench command for it."""
    programs = sorted(pathlib.Path("/usr/lib/postgresql").glob("*/bin"))
    if not programs:
        raise Missing("PostgreSQL is not installed")
    nobody = pwd.getpwnam("nobody")  # it refuses to run as root
    as_nobody = ["setpriv", f"--reuid={nobody.pw_uid}", f"--regid={nobody.pw_gid}",
                 "--clear-groups"]
    with _folder() as folder:
        data = folder / "data"
        data.mkdir()
        os.chown(data, nobody.pw_uid, nobody.pw_gid)
        subprocess.run([*as_nobody, programs[-1] / "initdb", "-D", data, "-A", "trust",
                        "-U", "tester", "--no-sync"], check=True, stdout=subprocess.DEVNULL,
                       cwd=data)
        pgbench = [programs[-1] / "pgbench", "-h", str(data), "-U", "tester", "-n"]
        with running(
            [*as_nobody, programs[-1] / "postgres", "-D", data, "-k", data,
             "-c", "listen_addresses=", "-c", "fsync=off"], folder, 0,
            lambda: subprocess.run([programs[-1] / "pg_isready", "-h", str(data)],
                                   stdout=subprocess.DEVNULL).returncode == 0,
            how_to_end=signal.SIGINT, cwd=data,
        ) as service:
            subprocess.run([*pgbench, "-i", "-q", "postgres"], check=True, capture_output=True)
            yield service, pgbench


def buy(port: int, item: int = 7, count: int = 2) -> bytes:
    """The shop's answer to one request."""
    with contextlib.closing(http.client.HTTPConnection("127.0.0.1", port, timeout=30)) as shop:
        shop.request("GET", f"/buy/{item}/{count}")
        response = shop.getresponse()
        answer = response.read()
    assert response.status == 200, (response.status, answer)
    return answer


@contextlib.contextmanager
def shop(workers: int = 2) -> Iterator[Service]:
    """The Flask shop: its PID is gunicorn's arbiter, which forks the workers."""
    port = free_port()

    def answers() -> bool:
        with contextlib.suppress(OSError, http.client.HTTPException):
            return bool(buy(port))
        return False

    with _folder() as folder:
        environment = {**os.environ, "SHOP_DATABASE": str(folder / "shop.db"),
                       "PYTHONDONTWRITEBYTECODE": "1"}
        gunicorn = need("gunicorn")
        filled = subprocess.run(
            [PYTHON, "-c", "import shop, os; shop.stock_up(os.environ['SHOP_DATABASE'])"],
            cwd=SHOP, env=environment, capture_output=True, text=True)
        if filled.returncode:
            raise Missing(f"no Flask: {filled.stderr.strip()}")
        with running(
            [gunicorn, f"--workers={workers}", f"--bind=127.0.0.1:{port}", f"--chdir={SHOP}",
             "--log-level=warning", f"--worker-tmp-dir={folder}", "shop:app"], folder, port,
            answers, env=environment,
        ) as service:
            yield service


def main() -> None:
    # As sys.exit() does, so that the blocks are left.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    known = {service.__name__: service for service in (redis, nginx, shop)}
    with contextlib.ExitStack() as stack:
        services = [(name, stack.enter_context(known[name]())) for name in sys.argv[1:]]
        for name, service in services:
            print(name, service.pid, service.port, flush=True)
        signal.pause()


if __name__ == "__main__":
    main()
