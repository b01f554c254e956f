# SPDX-License-Identifier: MIT
"""A program that is in machine code nearly all the time, with known values in all registers:
registers.py KIND BEATS, as targets.py. Ends when one has another value afterwards."""

import ctypes
import mmap
import os
import struct
import sys

kind, path = sys.argv[1:3]
with open(path, "r+b") as file:
    beats = mmap.mmap(file.fileno(), 8)
library = ctypes.CDLL("/programs/libregisters.so")
ROUNDS = 200_000  # some ms of an emulated processor


def hold() -> int:
    if kind == "plain":
        return library.check_plain(ROUNDS)
    if kind == "matrix":  # the second time for good
        return library.use_matrix(1_000_000_000 if beats[0] else 1)
    return library.check_scalable(ROUNDS, int(kind))


while True:
    found = hold()
    if found != 0:
        print(f"{kind}: {found}", flush=True)  # -1: there are no such registers
        os._exit(4 if found == -1 else 3)
    beats[:8] = struct.pack("<Q", struct.unpack("<Q", beats[:8])[0] + 1)
