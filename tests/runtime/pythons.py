# SPDX-License-Identifier: MIT
"""The Python interpreters of this host that tests can start."""

import os
import pathlib
import subprocess
import sys

from harness import _leftovers

SOURCE = pathlib.Path(__file__).resolve().parent.parent.parent
CACHE = pathlib.Path.home() / ".cache" / "speedbump"


class Python:
    """An interpreter, perhaps inside a Debian root of its own."""

    def __init__(self, name: str, command: list[str], root: pathlib.Path | None = None) -> None:
        self.name = name  # "3.12", "3.14t"
        self.command = command
        self.root = root

    def start(self, code: str, *arguments: str, ready: bool = True) -> subprocess.Popen[str]:
        """Runs the code as a program named trees.py; waits until it prints a line."""
        loader = (
            "import sys; from pathlib import Path; length = int(sys.argv[1]);"
            "code = sys.stdin.buffer.read(length).decode(); sys.argv[:2] = ['trees.py'];"
            "exec(compile(code, 'trees.py', 'exec'))"
        )
        data = code.encode()
        process = subprocess.Popen(
            [*self.command, "-c", loader, str(len(data)), *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1"},
        )
        _leftovers.append(lambda: (process.kill(), process.wait()))
        assert process.stdin is not None and process.stdout is not None
        process.stdin.write(data)
        process.stdin.flush()
        if ready:
            assert process.stdout.readline() == b"ready\n"
        return process


def _version(command: list[str]) -> str | None:
    question = "import sys; print('%d.%d%s' % (*sys.version_info[:2], sys.abiflags))"
    try:
        answer = subprocess.run(
            [*command, "-c", question], capture_output=True, text=True, timeout=20
        )
    except OSError:
        return None
    return answer.stdout.strip() if answer.returncode == 0 else None


def find(least: str = "3.10") -> list[Python]:
    """One of each version from `least` on, in the order of versions."""
    commands: list[tuple[list[str], pathlib.Path | None]] = [([sys.executable], None)]
    patterns = [
        pathlib.Path.home().glob(".pyenv/versions/3.1[0-9]*/bin/python3"),
        pathlib.Path("/usr/bin").glob("python3.1[0-9]"),
        pathlib.Path("/usr/local/bin").glob("python3.1[0-9]*"),
        (SOURCE / "build").glob("python-free-threaded/bin/python3.*t"),
    ]
    commands += [([str(path)], None) for pattern in patterns for path in sorted(pattern)]
    for root in (CACHE / "sid-root", SOURCE / "build" / "sid-root"):
        for path in sorted(root.glob("usr/bin/python3.1[0-9]")):
            commands.append((["chroot", str(root), "/usr/bin/" + path.name], root))
    found: dict[str, Python] = {}
    for command, root in commands:
        name = _version(command)
        if name is not None and name not in found:
            found[name] = Python(name, command, root)

    def key(name: str) -> tuple[int, ...]:
        return tuple(int(part) for part in name.rstrip("td").split("."))

    return [found[name] for name in sorted(found, key=key) if key(name) >= key(least)]
