# SPDX-License-Identifier: MIT
"""The archive, in roots that have nothing but what is slowed.

archive_test.py ARCHIVE SID_ROOT        Status 77: skipped, with the reason.
"""

from __future__ import annotations

import os
import pathlib
import shutil
import socket
import subprocess
import sys
import threading
import time

import roots

ARCHIVE, SID_ROOT = map(pathlib.Path, sys.argv[1:3])
FOLDER = ARCHIVE.name.removesuffix(".tar.gz")
SPEEDBUMP = f"/{FOLDER}/bin/speedbump"


def unpack(root: roots.Root) -> None:
    root.add_program("/bin/busybox")
    shutil.copy(ARCHIVE, root.path)
    root.run("/bin/busybox", "tar", "xzf", f"/{ARCHIVE.name}")


def test_doctor_in_an_empty_root(base: pathlib.Path) -> None:
    root = roots.Root(base / "empty")
    unpack(root)
    names = {entry.name for entry in root.path.iterdir()}
    assert names == {"bin", "proc", "sys", ARCHIVE.name, FOLDER}, names
    assert "for CPython 3." in root.run(SPEEDBUMP, "doctor")
    assert "speed_bump" in root.run(f"/{FOLDER}/bin/sbctl", "--help")


def ask(path: pathlib.Path) -> None:
    """Sends requests to a redis until it ends."""
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(str(path))
        try:
            while connection.send(b"PING\r\n") and connection.recv(64):
                time.sleep(0.001)
        except OSError:
            pass


def test_first_slowed_call_of_redis(base: pathlib.Path) -> None:
    server = "/usr/bin/redis-server"
    if not pathlib.Path(server).exists():
        print("no redis-server here: its first slowed call is not timed")
        return
    root = roots.Root(base / "redis")
    root.add_program(server)
    redis = root.start(server, "--port", "0", "--unixsocket", "/redis.sock", "--save", "",
                       stdout=subprocess.DEVNULL)
    deadline = time.monotonic() + 30
    while not root.inside("redis.sock").exists():
        assert time.monotonic() < deadline and redis.poll() is None
        time.sleep(0.01)
    threading.Thread(target=ask, args=[root.inside("redis.sock")], daemon=True).start()
    begin, before = time.monotonic(), time.process_time() + roots.children_cpu()
    unpack(root)
    unpacking = time.process_time() + roots.children_cpu() - before
    unpacked, waited = time.monotonic(), roots.waited(os.getpid())
    root.inside("targets.txt").write_text("+exe:processCommand delay=20us\n")
    attach = root.start(SPEEDBUMP, "attach", "--json", "--stats=100ms", "--pid", str(redis.pid),
                        "/targets.txt", stdout=subprocess.PIPE, text=True)
    slowed = roots.first_slowed(attach.stdout)
    waited = roots.waited(os.getpid()) - waited
    roots.interrupt(attach)
    print(f"from copying the archive to the first slowed call of redis: {slowed - begin:.2f} s")
    # Judged without the time for which redis, the loader and this wanted a CPU and had none, which is
    # next to nothing where the machine has no other work.
    took = unpacking + slowed - unpacked - waited
    assert took < 5, took


def test_every_python(base: pathlib.Path) -> None:
    tags = []
    for interpreter in roots.interpreters(SID_ROOT):
        root = roots.Root(base / f"python{interpreter.tag}")
        pid = interpreter.start(root)
        unpack(root)
        roots.expect_slowed(root, SPEEDBUMP, pid, "__main__:slowed")
        tags.append(interpreter.tag)
    print("slowed from an archive:", *tags)
    assert tags


MUSL = "/lib/ld-musl-x86_64.so.1"  # the dynamic linker, which is the C library as well
C_PROGRAM = """
#include <unistd.h>
void slowed(void) { usleep(1000); }
int main(void) { for (;;) slowed(); }
"""


def test_in_a_root_of_musl(base: pathlib.Path) -> None:
    """As in Alpine's: a program, musl and busybox; and its functions and those of musl are slowed."""
    if not shutil.which("musl-gcc"):
        print("no musl-gcc here (scripts/setup.sh package): not tried")
        return
    root = roots.Root(base / "musl")
    unpack(root)
    root.inside("lib").mkdir()
    shutil.copy(MUSL, root.inside(MUSL))
    subprocess.run(["musl-gcc", "-g", "-fno-inline", "-x", "c", "-", "-o", root.inside("program")],
                   input=C_PROGRAM, text=True, check=True)
    program = root.start("/program")
    for target in "+program:slowed", f"+{MUSL}:usleep":
        roots.expect_slowed(root, SPEEDBUMP, program.pid, target)


if __name__ == "__main__":
    if os.geteuid() != 0:
        roots.skip("not root")
    if not ARCHIVE.exists():
        roots.skip(f"no {ARCHIVE}: scripts/archive.sh makes it")
    if not pathlib.Path("/bin/busybox").exists():
        roots.skip("no busybox here (scripts/setup.sh package)")
    here = roots.scratch()
    for name, test in list(globals().items()):
        if name.startswith("test_"):
            test(here)
            print(f"{name}: good", flush=True)
