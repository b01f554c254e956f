# SPDX-License-Identifier: MIT
"""Runs code under the interpreters that cores were built for, each in a process of its own."""

from __future__ import annotations

import json
import os
import pathlib
import subprocess
import sys
import textwrap
from typing import Any

import pytest

sys.dont_write_bytecode = True
SOURCE_ROOT = pathlib.Path(__file__).resolve().parents[2]


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--interpreters", default=str(SOURCE_ROOT / "build/pyext/interpreters.tsv"))
    parser.addoption("--interpreter", action="append", help="only these (default: all)")


class Target:
    """One interpreter with its package folder, and a scratch folder for one test."""

    def __init__(self, name: str, command: str, package: str, folder: pathlib.Path) -> None:
        self.name = name
        self.command = command
        self.package = package
        self.folder = folder
        self.version = _version(name)

    def environment(self, variables: dict[str, str]) -> dict[str, str]:
        inherited = ("PATH", "HOME", "LANG", "ASAN_OPTIONS", "TSAN_OPTIONS", "UBSAN_OPTIONS")
        environment = {key: os.environ[key] for key in inherited if key in os.environ}
        if "SPEEDBUMP_TEST_PRELOAD" in os.environ:  # scripts/sanitize-core.sh
            environment["LD_PRELOAD"] = os.environ["SPEEDBUMP_TEST_PRELOAD"]
        environment.update(PYTHONPATH=self.package, PYTHONDONTWRITEBYTECODE="1")
        environment.update(variables)
        return environment

    def file(self, name: str, text: str) -> str:
        path = self.folder / name
        path.write_text(textwrap.dedent(text))
        return str(path)

    def start(self, *arguments: str, **variables: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [self.command, *arguments],
            env=self.environment(variables),
            cwd=self.folder,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def run(self, *arguments: str, status: int = 0, **variables: str) -> tuple[str, str]:
        """Runs to the end; (stdout, stderr)."""
        process = self.start(*arguments, **variables)
        try:
            out, err = process.communicate(timeout=120)
        except subprocess.TimeoutExpired:
            process.kill()
            out, err = process.communicate()
            pytest.fail(f"hung; stdout: {out}; stderr: {err}")
        assert process.returncode == status, f"status {process.returncode}: {out}{err}"
        return out, err

    def script(self, code: str, **variables: str) -> Any:
        """Runs code; what its last line of output is as JSON."""
        path = self.file("program.py", code)
        out, err = self.run(path, **variables)
        lines = out.splitlines()
        assert lines, f"no output; stderr: {err}"
        return json.loads(lines[-1])

    def installed(self) -> dict[str, str]:
        """Variables under which the package is installed as pip would (a user site folder)."""
        base = self.folder / "userbase"
        major_minor = ".".join(map(str, self.version))
        suffix = "t" if self.name.endswith("t") else ""
        site = base / f"lib/python{major_minor}{suffix}/site-packages"
        if not site.exists():
            site.mkdir(parents=True)
            (site / "speed_bump").symlink_to(pathlib.Path(self.package) / "speed_bump")
            (site / "speed_bump.pth").symlink_to(pathlib.Path(self.package) / "speed_bump.pth")
        return {"PYTHONUSERBASE": str(base), "PYTHONPATH": ""}


def _version(name: str) -> tuple[int, int]:
    numbers = name.removeprefix("sid-").rstrip("t").split(".")
    return int(numbers[0]), int(numbers[1])


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "row" in metafunc.fixturenames:
        table = pathlib.Path(metafunc.config.getoption("--interpreters"))
        wanted = metafunc.config.getoption("--interpreter")
        rows = [line.split("\t") for line in table.read_text().splitlines()]
        rows = [row for row in rows if not wanted or row[0] in wanted]
        assert rows, f"no interpreter {wanted} in {table}"
        metafunc.parametrize("row", rows, ids=[row[0] for row in rows])


def pytest_sessionfinish(session: pytest.Session) -> None:
    """A test that every interpreter skips is a skipped one to ctest."""
    reporter = session.config.pluginmanager.get_plugin("terminalreporter")
    if session.exitstatus == 0 and reporter and not reporter.stats.get("passed"):
        session.exitstatus = 77


@pytest.fixture
def python(row: list[str], tmp_path: pathlib.Path) -> Target:
    return Target(row[0], row[1], row[2], tmp_path)
