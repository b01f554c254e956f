# SPDX-License-Identifier: MIT
"""The loader's side of pyext/src/serve.h, as far as the tests need it."""

from __future__ import annotations

import array
import ctypes
import json
import mmap
import os
import socket
import struct
from typing import Any

_HEADER = struct.Struct("<4I64s4I6Q")
_TARGET = struct.Struct("<5Q2I")
_COUNTS = struct.Struct("<4Q")
_OWNER_AT = 16
_MUTEX_ROBUST = 1
_MUTEX_SHARED = 1


def _up(value: int) -> int:
    return (value + 63) & ~63


class Table:
    """The shared table of a session."""

    def __init__(self, target_count: int, slot_count: int = 64) -> None:
        self.target_count = target_count
        self.slot_count = slot_count
        self.slot_bytes = _up(64 + 32 * target_count)
        self.targets_at = _up(_HEADER.size)
        self.turns_at = _up(self.targets_at + 48 * target_count)
        self.slots_at = self.turns_at + 64 * target_count
        size = self.slots_at + slot_count * self.slot_bytes
        self.fd = os.memfd_create("table")
        os.ftruncate(self.fd, size)
        self.memory = mmap.mmap(self.fd, size)
        _HEADER.pack_into(
            self.memory, 0, 0x62707362, 1, 0, 0, bytes(64), target_count, slot_count,
            self.slot_bytes, 0, self.targets_at, self.turns_at, self.slots_at, size, 0, 0,
        )

    def set_target(self, index: int, delay_ns: int, every: int = 1, enabled: int = 1,
                   start_ns: int = 0, end_ns: int = 0, root_mask: int = 2**64 - 1) -> None:
        _TARGET.pack_into(self.memory, self.targets_at + 48 * index, delay_ns, every, start_ns,
                          end_ns, root_mask, enabled, 0)

    def arm(self, armed: bool = True) -> None:
        struct.pack_into("<I", self.memory, 8, armed)

    def close(self) -> None:
        struct.pack_into("<I", self.memory, 12, 1)

    def own(self) -> None:
        """Locks the owner's mutex by the calling thread."""
        libc = ctypes.CDLL(None, use_errno=True)
        attributes = ctypes.create_string_buffer(64)
        mutex = ctypes.byref((ctypes.c_char * 64).from_buffer(self.memory, _OWNER_AT))
        assert libc.pthread_mutexattr_init(attributes) == 0
        assert libc.pthread_mutexattr_setrobust(attributes, _MUTEX_ROBUST) == 0
        assert libc.pthread_mutexattr_setpshared(attributes, _MUTEX_SHARED) == 0
        assert libc.pthread_mutex_init(mutex, attributes) == 0
        assert libc.pthread_mutex_lock(mutex) == 0

    def counts(self, index: int) -> dict[int, tuple[int, int, int, int]]:
        """(hits, delays, requested, measured) per process; 0: in no slot of its own."""
        sums: dict[int, tuple[int, int, int, int]] = {}
        for slot in range(self.slot_count):
            place = self.slots_at + slot * self.slot_bytes
            (tgid,) = struct.unpack_from("<I", self.memory, place)
            counts = _COUNTS.unpack_from(self.memory, place + 64 + 32 * index)
            if tgid or any(counts):
                have = sums.get(tgid, (0, 0, 0, 0))
                sums[tgid] = tuple(a + b for a, b in zip(have, counts))  # type: ignore[assignment]
        return sums

    def hits(self, index: int = 0) -> int:
        return sum(counts[0] for counts in self.counts(index).values())


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
                  table.fd)
        return self.receive()

    def receive(self) -> dict[str, Any]:
        data = self.socket.recv(65536)
        return json.loads(data) if data else {}

    def close(self) -> None:
        self.socket.close()
