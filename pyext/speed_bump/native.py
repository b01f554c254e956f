# SPDX-License-Identifier: MIT
"""Slowing native functions of this process and its descendants.

The kernel module does it where it is loaded; else the ``speedbump`` command and its BPF engine.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import IO

SYSFS_ROOT = "/sys/kernel/speed_bump"
SYSFS_TARGETS = SYSFS_ROOT + "/targets"

# (binary, symbol) -> the speedbump command that slows it.
_attached: dict[tuple[str, str], subprocess.Popen[bytes]] = {}


def is_available() -> bool:
    """Tells whether the kernel module is loaded and may be used."""
    return os.path.exists(SYSFS_TARGETS) and os.access(SYSFS_TARGETS, os.W_OK)


def format_add_spec(binary: str, symbol: str, delay_ns: int = 0, pid: int | None = None) -> str:
    """The kernel module's command that adds a probe.

    Args:
        binary: Absolute path of the program or library.
        symbol: Symbol, or 0x and a file offset.
        delay_ns: Delay per call.
        pid: Only this process and its descendants; default: the calling process.
    """
    return f"+{binary}:{symbol} {delay_ns} pid={os.getpid() if pid is None else pid}"


def format_remove_spec(binary: str, symbol: str) -> str:
    """The kernel module's command that removes a probe."""
    return f"-{binary}:{symbol}"


def _write(spec: str) -> None:
    with open(SYSFS_TARGETS, "w") as targets:
        targets.write(spec)


def _attach(binary: str, symbol: str, delay_ns: int, pid: int) -> None:
    command = os.environ.get("SPEEDBUMP") or shutil.which("speedbump")
    if command is None:
        raise FileNotFoundError(
            f"{SYSFS_TARGETS} is not there (no kernel module) and no speedbump command is in PATH"
        )
    if (binary, symbol) in _attached:
        raise FileExistsError(f"{binary}:{symbol} has a probe already")
    with tempfile.NamedTemporaryFile("w", suffix=".txt") as targets:
        quoted = binary.replace("\\", "\\\\").replace('"', '\\"')
        targets.write(f'+"{quoted}":{symbol} delay={delay_ns}ns\n')
        targets.flush()
        process = subprocess.Popen(
            [command, "attach", "--pid", str(pid), "--json", "--missing=error", "--stats=100ms",
             targets.name],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )
        assert process.stdout is not None and process.stderr is not None
        # What matched is its first line, the first sample of what is delayed its second.
        if not process.stdout.readline() or not process.stdout.readline():
            message = process.stderr.read().decode(errors="replace").strip()
            process.wait()
            raise OSError(message or f"speedbump attach ended with status {process.returncode}")
    # The further samples are not wanted, but a full pipe would stop it.
    threading.Thread(target=_drain, args=(process.stdout,), daemon=True).start()
    _attached[binary, symbol] = process


def _drain(stream: IO[bytes]) -> None:
    while stream.read(65536):
        pass


def _detach(process: subprocess.Popen[bytes]) -> None:
    process.send_signal(signal.SIGTERM)
    process.wait()


def add_probe(binary: str, symbol: str, delay_ns: int = 0, pid: int | None = None) -> None:
    """Slows each call of a native function.

    Raises:
        OSError: It can't be done; the errno is the kernel module's.
    """
    spec = format_add_spec(binary, symbol, delay_ns, pid)
    try:
        _write(spec)
    except FileNotFoundError:
        if os.path.exists(SYSFS_ROOT):
            raise
        _attach(binary, symbol, delay_ns, os.getpid() if pid is None else pid)


def remove_probe(binary: str, symbol: str) -> None:
    """Ends what add_probe() began.

    Raises:
        OSError: There is no such probe; the errno is the kernel module's.
    """
    process = _attached.pop((binary, symbol), None)
    if process is not None:
        _detach(process)
    else:
        _write(format_remove_spec(binary, symbol))


@contextmanager
def probe(
    binary: str, symbol: str, delay_ns: int = 0, pid: int | None = None
) -> Iterator[None]:
    """Slows a native function for the length of a with block; see add_probe()."""
    add_probe(binary, symbol, delay_ns, pid)
    try:
        yield
    finally:
        remove_probe(binary, symbol)
