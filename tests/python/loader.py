# SPDX-License-Identifier: MIT
"""The loader's side of pyext/src/serve.h, as far as the tests need it."""

from __future__ import annotations

import array
import ctypes
import fcntl
import json
import mmap
import os
import pathlib
import re
import socket
import struct
import threading
from typing import Any

_ABI = (pathlib.Path(__file__).parents[2] / "bpf" / "abi.h").read_text()
_VERSION = int(re.search(r"#define SB_TABLE_VERSION (\d+)u", _ABI)[1])
_SETTINGS = struct.Struct("<7I36x")
_TARGET = struct.Struct("<5Q2I")
_COUNTS = struct.Struct("<4Q")
_OWNER_AT = 16
_SLOTS = 64
_SYS_SET_ROBUST_LIST = 273 if os.uname().machine == "x86_64" else 99


def _sealed(name: str, size: int, seals: int) -> tuple[int, mmap.mmap]:
    """A memfd, and a mapping that was made before it was sealed."""
    fd = os.memfd_create(name, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    os.ftruncate(fd, size)
    memory = mmap.mmap(fd, size)
    fcntl.fcntl(fd, fcntl.F_ADD_SEALS, seals)
    return fd, memory


class Table:
    """The shared table of a session: bpf/abi.h."""

    def __init__(self, target_count: int) -> None:
        self.target_count = target_count
        self.slot_bytes = (64 + 32 * target_count + 63) & ~63
        self.slots_at = 64 + 64 * target_count
        size = self.slots_at + _SLOTS * self.slot_bytes
        fixed = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW
        future_write = 0x10
        self.counters_fd, self.counters = _sealed("counters", size, fixed)
        self.settings_fd, self.settings = _sealed(
            "settings", (64 + 48 * target_count + 63) & ~63, fixed | future_write
        )
        _SETTINGS.pack_into(self.settings, 0, 0x62707362, _VERSION, 0, 0, 0, target_count, _SLOTS)

    def set_target(self, index: int, delay_ns: int, every: int = 1, enabled: int = 1,
                   start_ns: int = 0, end_ns: int = 0, root_mask: int = 2**64 - 1) -> None:
        _TARGET.pack_into(self.settings, 64 + 48 * index, delay_ns, every, start_ns,
                          end_ns, root_mask, enabled, 0)

    def arm(self, armed: bool = True, grouping: int = 0) -> None:
        """For those that tell functions apart by the grouping of this number."""
        struct.pack_into("<I", self.settings, 8, grouping + 1 if armed else 0)

    def close(self) -> None:
        struct.pack_into("<I", self.settings, 12, 1)

    def own(self) -> None:
        """The kernel writes into the settings when the calling thread dies."""
        struct.pack_into("<I", self.settings, _OWNER_AT, threading.get_native_id())
        word = ctypes.addressof(ctypes.c_uint32.from_buffer(self.settings, _OWNER_AT))
        self.robust = (ctypes.c_uint64 * 4)()  # next, offset, pending; and the entry's next
        head = ctypes.addressof(self.robust)
        entry = head + 24
        self.robust[:] = entry, (word - entry) % 2**64, 0, head
        libc = ctypes.CDLL(None, use_errno=True)
        assert libc.syscall(_SYS_SET_ROBUST_LIST, ctypes.c_void_p(head), ctypes.c_size_t(24)) == 0

    def counts(self, index: int) -> dict[int, tuple[int, int, int, int]]:
        """(hits, delays, requested, measured) per process; 0: in no slot of its own."""
        sums: dict[int, tuple[int, int, int, int]] = {}
        for slot in range(_SLOTS):
            place = self.slots_at + slot * self.slot_bytes
            (pid,) = struct.unpack_from("<I", self.counters, place)
            counts = _COUNTS.unpack_from(self.counters, place + 64 + 32 * index)
            if pid or any(counts):
                have = sums.get(pid, (0, 0, 0, 0))
                sums[pid] = tuple(a + b for a, b in zip(have, counts))  # type: ignore[assignment]
        return sums

    def hits(self, index: int = 0) -> int:
        return sum(counts[0] for counts in self.counts(index).values())


def text_file(message: Any) -> int:
    """A memfd of the message."""
    fd = os.memfd_create("text", os.MFD_CLOEXEC)
    os.write(fd, json.dumps(message).encode())
    return fd


class Channel:
    """The loader's end of the socket to one interpreter."""

    def __init__(self) -> None:
        self.socket, self.other = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.socket.settimeout(30)

    def send(self, message: Any, *descriptors: int) -> None:
        data = message if isinstance(message, bytes) else json.dumps(message).encode()
        rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", descriptors))]
        self.socket.sendmsg([data], rights if descriptors else [])

    def begin(self, table: Table, targets: str, lines: list[int] | None = None,
              session: str = "s1", **more: Any) -> dict[str, Any]:
        lines = list(range(table.target_count)) if lines is None else lines
        self.send({"op": "begin", "session": session, "lines": lines, "targets": targets, **more},
                  table.settings_fd, table.counters_fd)
        return self.receive()

    def groups(self, number: int, lines: list[int], groups: list[list[Any]]) -> None:
        """Has the functions of these lines told apart: [module, glob, name, glob, target or None]."""
        fd = text_file({"lines": lines, "groups": groups})
        self.send({"op": "groups", "number": number}, fd)
        os.close(fd)

    def receive(self) -> dict[str, Any]:
        data = self.socket.recv(65536)
        return json.loads(data) if data else {}

    def close(self) -> None:
        self.socket.close()
