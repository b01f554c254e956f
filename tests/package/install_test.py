# SPDX-License-Identifier: MIT
"""`cmake --install`: all is there, and the installed program finds its cores and slows a Python."""

from __future__ import annotations

import json
import os
import pathlib
import re
import signal
import socket
import subprocess
import sys
import tempfile
import time

BUILD = pathlib.Path(sys.argv[1])
SOURCE = pathlib.Path(__file__).resolve().parents[2]
EXPECTED = """
usr/bin/sbctl
usr/bin/speedbump
usr/include/speedbump/device_abi.h
usr/share/bash-completion/completions/speedbump
usr/share/doc/speedbump/control.md
usr/share/doc/speedbump/copyright
usr/share/doc/speedbump/install.md
usr/share/doc/speedbump/json.md
usr/share/doc/speedbump/python.md
usr/share/doc/speedbump/security.md
usr/share/doc/speedbump/sysfs-interface.md
usr/share/doc/speedbump/targets-file.md
usr/share/fish/vendor_completions.d/speedbump.fish
usr/share/man/man1/sbctl.1
usr/share/man/man1/speedbump.1
usr/share/speedbump/control.schema.json
usr/share/zsh/vendor-completions/_speedbump
usr/src/speed-bump-VERSION/Kbuild
usr/src/speed-bump-VERSION/Makefile
usr/src/speed-bump-VERSION/dkms.conf
""".split()
CALLS, DELAY_MS = 20, 1
PROGRAM = f"""
import sys, time
def slowed(): pass
for line in sys.stdin:
    begin = time.monotonic_ns()
    for _ in range({CALLS}): slowed()
    print(time.monotonic_ns() - begin, flush=True)
"""


def expected_files() -> set[str]:
    module = {path.name for path in (SOURCE / "kmod").glob("*.[ch]")}
    tags = {line.split("\t")[2] for line in (BUILD / "pyext/interpreters.tsv").read_text().splitlines()}
    cores = {path.name for tag in tags for path in pathlib.Path(tag).glob("speed_bump/_core*.so")}
    return {
        *EXPECTED,
        *(f"usr/src/speed-bump-VERSION/{name}" for name in module if not name.endswith(".mod.c")),
        *(f"usr/lib/speedbump/cores/{name}" for name in cores),
    }


def doctors_cores(program: pathlib.Path) -> set[str]:
    lines = subprocess.run([program, "doctor"], capture_output=True, text=True).stdout.splitlines()
    return set(re.findall(r"\b3\.[0-9]+t?\b", next(line for line in lines if "Python cores" in line)))


def system_python() -> str:
    for line in (BUILD / "pyext/interpreters.tsv").read_text().splitlines():
        _, command, _ = line.split("\t")
        if not command.startswith(str(SOURCE)):
            return command
    print("SKIP: no Python of this host has a core")
    raise SystemExit(77)


def answers(pid: int) -> list[dict]:
    """What the session of a speedbump says over its socket: one answer of each kind."""
    address = pathlib.Path(f"/run/speedbump/{pid}")
    deadline = time.monotonic() + 60
    while not address.exists():
        assert time.monotonic() < deadline, f"no {address}"
        time.sleep(0.01)
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(str(address))
        connection.sendall(b"status\nset * delay=1ms\npause\nresume\nset nothing\nset x delay=1ms\n")
        lines = connection.makefile()
        return [json.loads(lines.readline()) for _ in range(6)]


def expect_schema(answer: dict, schema: dict) -> None:
    branch = schema["then" if answer["ok"] else "else"]
    assert set(schema["required"]) | set(branch["required"]) <= set(answer), answer
    assert set(answer) <= set(schema["properties"]), answer
    for name, value in answer.items():
        assert value in schema["properties"][name].get("enum", [value]), (name, value)


def slow_a_python(root: pathlib.Path) -> None:
    program = subprocess.Popen([system_python(), "-Sc", PROGRAM], stdin=subprocess.PIPE,
                               stdout=subprocess.PIPE, text=True)

    def batch_ms() -> float:
        program.stdin.write("\n")
        program.stdin.flush()
        return int(program.stdout.readline()) / 1e6

    session = None
    try:
        assert min(batch_ms() for _ in range(5)) < CALLS * DELAY_MS
        targets = root / "targets.txt"
        targets.write_text(f"__main__:slowed delay={DELAY_MS}ms\n")
        session = subprocess.Popen([root / "usr/bin/speedbump", "attach", "--quiet", "--pid",
                                    str(program.pid), targets], stdout=subprocess.DEVNULL)
        deadline = time.monotonic() + 60
        # Five in a row: one alone may have waited for a CPU as long.
        while (slowed := min(batch_ms() for _ in range(5))) < CALLS * DELAY_MS:
            assert session.poll() is None and time.monotonic() < deadline, "it is not slowed"
        schema = json.loads((root / "usr/share/speedbump/control.schema.json").read_text())
        for answer in answers(session.pid):
            expect_schema(answer, schema)
        session.send_signal(signal.SIGINT)
        assert session.wait(60) == 0
        after = min(batch_ms() for _ in range(5))
        assert after < CALLS * DELAY_MS, after
        print(f"{CALLS} calls slowed by {DELAY_MS} ms each: {slowed:.1f} ms, then {after:.3f} ms")
    finally:
        for process in (session, program):
            if process:
                process.kill()
                process.wait()


if os.geteuid() != 0:
    print("SKIP: not root")
    raise SystemExit(77)
with tempfile.TemporaryDirectory() as stage:
    os.chmod(stage, 0o755)
    subprocess.run(
        ["cmake", "--install", str(BUILD), "--prefix", "/usr"],
        env={**os.environ, "DESTDIR": stage}, check=True, stdout=subprocess.DEVNULL,
    )
    root = pathlib.Path(stage)
    names = {str(path.relative_to(root)) for path in root.rglob("*") if not path.is_dir()}
    plain = {re.sub(r"speed-bump-[0-9.]+/", "speed-bump-VERSION/", name) for name in names}
    expected = expected_files()
    assert plain == expected, f"lacks {expected - plain}, has besides {plain - expected}"
    cores = {f"3.{match[1]}" for match in (re.search(r"cpython-3(\d+t?)-", name) for name in names)
             if match}
    assert doctors_cores(root / "usr/bin/speedbump") == cores, cores
    print("cores for CPython", *sorted(cores))
    slow_a_python(root)
