# SPDX-License-Identifier: MIT
"""Whose cores are loaded into other processes: none that somebody else could have changed."""

from __future__ import annotations

import os
import pathlib
import shutil
import subprocess
import sys
import tempfile

SPEEDBUMP, PYTHON, CORE = map(pathlib.Path, sys.argv[1:4])
NOBODY = 65534

if os.geteuid() != 0:
    print("SKIP: not root")
    sys.exit(77)


class Installed:
    """A copy of the program with one core, as `cmake --install` lays them out."""

    def __init__(self, base: pathlib.Path) -> None:
        self.prefix = pathlib.Path(tempfile.mkdtemp(dir=base))
        self.prefix.chmod(0o755)
        self.cores = self.prefix / "lib/speedbump/cores"
        self.cores.mkdir(parents=True)
        (self.prefix / "bin").mkdir()
        self.program = shutil.copy(SPEEDBUMP, self.prefix / "bin/speedbump")
        self.core = pathlib.Path(shutil.copy(CORE, self.cores / CORE.name))

    def doctor(self, user: int = 0, **environment: str) -> str:
        answer = subprocess.run(
            [self.program, "doctor"], capture_output=True, text=True, user=user, group=user,
            extra_groups=[], env={**os.environ, **environment}, timeout=60,
        )
        return next(line for line in answer.stdout.splitlines() if "Python cores" in line)

    def attach(self, base: pathlib.Path) -> tuple[int, str, bool]:
        """Status and messages of an attach, and whether the core was loaded."""
        targets = base / "targets.txt"
        targets.write_text("__main__:f delay=1us\n")
        process = subprocess.Popen(
            [PYTHON, "-Sc", "import time\ndef f(): pass\nprint(flush=True)\nwhile 1: f(); time.sleep(.01)"],
            stdout=subprocess.PIPE,
        )
        try:
            process.stdout.readline()
            answer = subprocess.run(
                [self.program, "attach", "--duration=200ms", "--pid", str(process.pid), targets],
                capture_output=True, text=True, timeout=60,
            )
            maps = pathlib.Path(f"/proc/{process.pid}/maps").read_text()
            return answer.returncode, answer.stderr, "_core.cpython" in maps
        finally:
            process.kill()
            process.wait()


def refused(installed: Installed, base: pathlib.Path, why: str) -> None:
    line = installed.doctor()
    assert why in line, line
    status, messages, loaded = installed.attach(base)
    assert status != 0 and why in messages and not loaded, (status, messages, loaded)


with tempfile.TemporaryDirectory() as folder:
    base = pathlib.Path(folder)
    base.chmod(0o755)

    good = Installed(base)
    assert "for CPython 3." in good.doctor(), good.doctor()
    status, messages, loaded = good.attach(base)
    assert status == 0 and loaded, (status, messages)

    for place in ("core", "cores", "prefix"):
        for mode in (0o777, 0o775):
            installed = Installed(base)
            getattr(installed, place).chmod(mode)
            refused(installed, base, "others may write to")
        installed = Installed(base)
        os.chown(getattr(installed, place), NOBODY, NOBODY)
        refused(installed, base, f"belongs to user {NOBODY}")
    print("changed by others: refused")

    # a link is judged by where it leads to
    linked = Installed(base)
    shutil.rmtree(linked.cores)
    (base / "elsewhere").mkdir()
    (base / "elsewhere").chmod(0o777)
    shutil.copy(CORE, base / "elsewhere")
    linked.cores.symlink_to(base / "elsewhere")
    refused(linked, base, "others may write to")
    print("behind a link: refused")

    # the user's own, by the user; never in a program with more rights than the user
    mine = base / "mine"
    mine.mkdir()
    shutil.copy(CORE, mine / CORE.name.replace("cpython-3", "cpython-399"))
    for path in (mine, *mine.iterdir()):
        os.chown(path, NOBODY, NOBODY)
    installed = Installed(base)
    line = installed.doctor(NOBODY, SPEEDBUMP_CORES=str(mine))
    assert "3.99" in line, line
    os.chmod(installed.program, 0o4755)
    line = installed.doctor(NOBODY, SPEEDBUMP_CORES=str(mine))
    assert "3.99" not in line and "for CPython 3." in line, line
    print("SPEEDBUMP_CORES with more rights than the caller: ignored")
