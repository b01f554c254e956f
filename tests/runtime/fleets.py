# SPDX-License-Identifier: MIT
"""Experiments on many hosts: to their end, or so that a test can do something to them meanwhile."""

import contextlib
import json
import os
import pathlib
import re
import signal
import subprocess
import urllib.request

from harness import (
    PROGRAMS, SPEEDBUMP, children, environment, leave_none, lives, scratch, targets_file, wait_for,
)
from hosts import Hosts, at, pid_of
from known_experiments import WithDocument

SERVICE = str(PROGRAMS / "pulse")
SHORT = ("--max-slowdown=400%", "--seed=7")
AHEAD = 50_000_000  # ns, of a clock in tests


def serving(count: int) -> tuple[Hosts, list[int]]:
    """Hosts with a service each, and the PIDs of these here."""
    hosts = Hosts(count)
    return hosts, [pid_of(hosts.start(name, hosts.copy(name, SERVICE))) for name in hosts.names]


def words_of(hosts: Hosts | list[str], **ahead: dict) -> list[str]:
    """Of the command line: which hosts."""
    if isinstance(hosts, Hosts):
        return at(hosts, **ahead)
    is_named = any(word.startswith("--at-binary") for word in hosts)
    return [*([] if is_named else [f"--at-binary={SPEEDBUMP}"]), *hosts]


class Fleet(WithDocument):
    """An experiment on many hosts to its end. `hosts`: or what the command line has for them."""

    def __init__(self, hosts: Hosts | list[str], targets: str, *arguments: str, ahead: dict = {},
                 slice_ms: int = 5, **options):
        options.setdefault("timeout", 240)
        super().__init__("experiment", *words_of(hosts, **ahead), f"--slice={slice_ms}ms", *SHORT,
                         *arguments, targets_file(targets), **options)


class Started:
    """An experiment that runs on; its launchers."""

    def __init__(self, hosts: Hosts | list[str], targets: str, *arguments: str, slice_ms: int = 5):
        self.json_path = scratch() / "result.json"
        self.process = subprocess.Popen(
            [SPEEDBUMP, "experiment", *words_of(hosts), f"--output={self.json_path}",
             f"--slice={slice_ms}ms", *SHORT,
             *arguments, "--live=0", targets_file(targets)],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment())
        leave_none(self._kill)
        self._said = ""  # so far
        while (address := re.search(r"http://127\.0\.0\.1:\d+/[0-9a-f]{32}/", self._said)) is None:
            assert (line := self.process.stderr.readline()), self._said
            self._said += line
        self._address = address[0]

    def _shown(self) -> dict:
        with contextlib.suppress(OSError, ValueError):  # nothing is shown yet
            with urllib.request.urlopen(self._address + "data", timeout=10) as answer:
                return json.loads(answer.read())
        return {}

    def measured(self) -> int:
        return self._shown().get("slices", 0)

    def verdicts(self) -> dict[str, str]:
        """Of each target, as far as is known by now."""
        progress = self._shown().get("experiment", {}).get("results", {}).get("progress", [])
        return {one["name"]: one["verdict"] for point in progress[:1] for one in point["targets"]}

    def wait_for_slices(self, count: int) -> None:
        def has_measured() -> bool:
            if self.measured() >= count:
                return True
            assert self.process.poll() is None, f"it has ended before {count} slices: {self.end()[:2]}"
            return False

        wait_for(has_measured, 90, f"{count} slices")

    def _kill(self) -> None:
        for child in children(self.process.pid) if lives(self.process.pid) else []:
            with contextlib.suppress(ProcessLookupError):
                os.kill(child, signal.SIGCONT)
        self.process.kill()
        self.process.wait()

    def launchers(self) -> list[int]:
        return children(self.process.pid)

    def end(self) -> tuple[int, str, dict]:
        out, err = self.process.communicate(timeout=120)
        document = json.loads(self.json_path.read_text()) if self.json_path.exists() else {}
        return self.process.returncode, out + self._said + err, document


def agents(hosts: Hosts) -> dict[str, list[int]]:
    """The agents that live, by host."""
    found = {name: [] for name in hosts.names}
    spaces = {os.readlink(f"/proc/{pid}/ns/pid"): name for name, pid in hosts.pids.items()}
    for entry in pathlib.Path("/proc").iterdir():
        with contextlib.suppress(OSError):
            words = (entry / "cmdline").read_bytes().split(b"\0")
            if words[:2] == [SPEEDBUMP.encode(), b"agent"]:
                name = spaces.get(os.readlink(entry / "ns/pid"))
                if name:
                    found[name].append(int(entry.name))
    return found
