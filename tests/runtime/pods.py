# SPDX-License-Identifier: MIT
"""Pods that are namespaces, and a kubectl for them (kubectl.py) that is the first in PATH."""

import json
import os
import pathlib
import shutil
import subprocess

from harness import leave_none, need, program_below, scratch


class Pods:
    """What there is until the end of the test."""

    def __init__(self) -> None:
        self.folder = scratch()
        self.pids: dict[str, int] = {}  # here, of the first process of each
        self._listed: list[dict] = []
        self._file = self.folder / "pods.json"
        self._write()
        programs = self.folder / "bin"
        programs.mkdir()
        shutil.copy(pathlib.Path(__file__).with_name("kubectl.py"), programs / "kubectl")
        before = os.environ["PATH"]
        os.environ["PATH"] = f"{programs}:{before}"
        os.environ["SPEEDBUMP_TEST_PODS"] = str(self._file)
        leave_none(lambda: os.environ.update(PATH=before))

    def _write(self) -> None:
        self._file.write_text(json.dumps(self._listed))

    def add(self, name: str, program: str, phase: str = "Running", **labels: str) -> None:
        """A pod that runs a program, which is a copy of its own."""
        pod = {"namespace": "default", "name": name, "phase": phase, "labels": labels}
        if phase == "Running":
            folder = self.folder / name
            folder.mkdir()
            copy = shutil.copy(program, folder)
            process = subprocess.Popen(
                [need("unshare"), "--pid", "--fork", "--kill-child", "--mount-proc", "--uts", "--net",
                 "sh", "-c", f"hostname {name}; exec {copy}"],
                start_new_session=True)
            leave_none(lambda: (process.kill(), process.wait()))
            pod["pid"] = self.pids[name] = program_below(process.pid, copy)
        self._listed.append(pod)
        self._write()
