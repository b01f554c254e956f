# SPDX-License-Identifier: MIT
"""Roots that hold a program, the libraries that it needs, /proc and /sys, and nothing else.

They lie in a tmpfs of their own, in a mount namespace of their own, so that no file and no mount
stays behind.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import json
import os
import pathlib
import re
import resource
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterable

HOST = pathlib.Path("/")
CLONE_NEWNS = 0x20000  # os.unshare() is there from Python 3.12 on
PRIVATE = ctypes.c_ulong(1 << 14 | 1 << 18)  # MS_REC, MS_PRIVATE
CHROOT = shutil.which("chroot") or "/usr/sbin/chroot"
_processes: list[subprocess.Popen] = []


def skip(reason: str) -> None:
    print(f"SKIP: {reason}")
    raise SystemExit(77)


def scratch() -> pathlib.Path:
    """An empty folder, which goes at the end with all that was mounted and started in it.

    From here on the caller, which may have no other thread yet, has a mount namespace of its own.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(CLONE_NEWNS) or libc.mount(b"none", b"/", None, PRIVATE, None):
        skip(f"no mount namespace to be had: {os.strerror(ctypes.get_errno())}")
    folder = pathlib.Path(tempfile.mkdtemp(prefix="speedbump-package-"))
    subprocess.run(["mount", "-t", "tmpfs", "-o", "mode=755", "tmpfs", str(folder)], check=True)

    def remove() -> None:
        for process in _processes:
            process.kill()
            process.wait()
        subprocess.run(["umount", "--lazy", str(folder)], check=True)
        folder.rmdir()

    atexit.register(remove)
    return folder


def _chroot(source: pathlib.Path) -> list[str]:
    return [] if source == HOST else [CHROOT, str(source)]


def libraries(program: str, source: pathlib.Path) -> list[str]:
    """The files that the dynamic linker of `source` would load for a program of it."""
    text = subprocess.run([*_chroot(source), "ldd", program], capture_output=True, text=True).stdout
    return re.findall(r"(?:=> |^\s+)(/\S+) \(", text, re.MULTILINE)


class Root:
    def __init__(self, path: pathlib.Path) -> None:
        self.path = path
        for name in ("proc", "sys"):
            (path / name).mkdir(parents=True)
        subprocess.run(["mount", "-t", "proc", "proc", str(path / "proc")], check=True)
        subprocess.run(["mount", "--rbind", "/sys", str(path / "sys")], check=True)

    def inside(self, name: str) -> pathlib.Path:
        return self.path / name.lstrip("/")

    def add_program(self, name: str, source: pathlib.Path = HOST) -> None:
        for file in (name, *libraries(name, source)):
            to = self.inside(file)
            to.parent.mkdir(parents=True, exist_ok=True)
            if not to.exists():
                shutil.copy2(source / file.lstrip("/"), to)

    def bind(self, name: str, source: pathlib.Path = HOST) -> None:
        self.inside(name).mkdir(parents=True, exist_ok=True)
        subprocess.run(
            ["mount", "--bind", "-o", "ro", str(source / name.lstrip("/")), str(self.inside(name))],
            check=True,
        )

    def start(self, *command: str, **options) -> subprocess.Popen:
        process = subprocess.Popen(
            [CHROOT, str(self.path), *command], env={"PATH": "/bin:/usr/bin"}, **options
        )
        _processes.append(process)
        return process

    def run(self, *command: str) -> str:
        """What it prints. It must end with 0."""
        process = self.start(*command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                             stderr=subprocess.PIPE, text=True)
        output, errors = process.communicate(timeout=120)
        assert process.returncode == 0, (command, process.returncode, output, errors)
        return output


PROGRAM = """
import time
def slowed(): pass
print(flush=True)
while True:
    slowed()
    time.sleep(0.001)
"""


class Interpreter:
    """A Python of `source`, to be put into other roots; `tag` is None where it does not run."""

    def __init__(self, command: str, source: pathlib.Path = HOST) -> None:
        self.command, self.source = command, source
        question = ("import sys, sysconfig as s; print(s.get_path('stdlib'), "
                    "'%d.%d%s' % (*sys.version_info[:2], sys.abiflags))")
        answer = subprocess.run([*_chroot(source), command, "-c", question], capture_output=True,
                                text=True)
        self.library, self.tag = answer.stdout.split() if answer.returncode == 0 else (None, None)

    def start(self, root: Root) -> int:
        """The PID of one that runs PROGRAM in a root."""
        root.add_program(self.command, self.source)
        root.bind(self.library, self.source)
        root.inside("loop.py").write_text(PROGRAM)
        process = root.start(self.command, "-B", "-S", "/loop.py", stdout=subprocess.PIPE)
        assert process.stdout.readline(), f"{self.command} does not start in {root.path}"
        return process.pid


def interpreters(sid_root: pathlib.Path) -> list[Interpreter]:
    """One of each version from 3.10 on that this host has, with and without the GIL."""
    places = [(HOST, str(path.resolve())) for path in
              sorted(pathlib.Path.home().glob(".pyenv/versions/3.1?.*/bin/python3")) +
              sorted(sid_root.parent.glob("python-free-threaded/bin/python3"))]
    for source in (HOST, sid_root):
        places += [(source, f"/usr/bin/python3.{minor}") for minor in range(10, 16)
                   if (source / f"usr/bin/python3.{minor}").exists()]
    found: dict[str, Interpreter] = {}
    for source, command in places:
        interpreter = Interpreter(command, source)
        if interpreter.tag:
            found.setdefault(interpreter.tag, interpreter)
    return [found[tag] for tag in sorted(found)]


def expect_slowed(root: Root, speedbump: str, pid: int, target: str) -> None:
    """Attaches to a process that calls this all the time, until it has been slowed: where others have
    the CPUs, that may not be soon."""
    root.inside("targets.txt").write_text(f"{target} delay=100us\n")
    attach = root.start(speedbump, "attach", "--json", "--stats=50ms", "--pid", str(pid),
                        "/targets.txt", stdout=subprocess.PIPE, text=True)
    first_slowed(attach.stdout)
    final = json.loads(interrupt(attach).splitlines()[-1])
    assert final["type"] == "final" and final["all"]["delays"] > 0, final
    assert final["all"]["measured_ns"] >= 0.9 * final["all"]["requested_ns"] > 0, final["all"]


def interrupt(attach: subprocess.Popen) -> str:
    """Ends it as Ctrl-C does: what it still writes."""
    attach.send_signal(signal.SIGINT)
    output, _ = attach.communicate(timeout=120)
    assert attach.returncode == 0, (attach.args, attach.returncode)
    return output


def children_cpu() -> float:
    """Seconds of CPU time of the children that have ended."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def waited(pid: int) -> float:
    """Seconds that the threads of a process and of its living descendants have waited for a CPU."""
    total = 0.0
    for task in pathlib.Path(f"/proc/{pid}/task").glob("*"):
        with contextlib.suppress(OSError):  # it has ended
            total += int((task / "schedstat").read_text().split()[1]) / 1e9
            total += sum(waited(int(child)) for child in (task / "children").read_text().split())
    return total


def first_slowed(lines: Iterable[str]) -> float:
    """When the first sample of an attach in JSON tells of a delay, by the monotonic clock."""
    deadline = time.monotonic() + 60
    for line in lines:
        assert time.monotonic() < deadline, "no delay was told of in 60 s"
        document = json.loads(line)
        if document["type"] in ("sample", "final") and document["all"]["delays"] > 0:
            return time.monotonic()
    raise AssertionError("the attach ended before it told of a delay")
