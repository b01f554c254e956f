# SPDX-License-Identifier: MIT
"""Awkward targets: awkward.py KIND BEATS.

deaf: blocked in accept() for ever; each SIGUSR1 beats in a Python handler.
held: a call into C holds the interpreter lock until SIGUSR1 ends it; then comes the next one.
again: sleeps; at SIGUSR1 it execs itself as slow, which is the same without that.
work: calls work() all the time, and beats for each call.
"""

import ctypes
import mmap
import os
import signal
import socket
import struct
import sys
import time

kind, path = sys.argv[1:3]
with open(path, "r+b") as file:
    beats = mmap.mmap(file.fileno(), 8)


def beat(*_):
    beats[:8] = struct.pack("<Q", struct.unpack("<Q", beats[:8])[0] + 1)


def deaf():
    signal.signal(signal.SIGUSR1, beat)
    listener = socket.create_server(("127.0.0.1", 0))
    beat()
    listener.accept()


def held():
    signal.signal(signal.SIGUSR1, lambda *_: None)
    libc = ctypes.PyDLL(None)  # calls with the interpreter lock held
    while True:
        beat()
        libc.usleep(600_000_000)  # which a signal ends
        if "_speedbump_cores" in sys.modules:
            os._exit(3)


def slow():
    while True:
        beat()
        time.sleep(0.01)


def again():
    program = [sys.executable, sys.argv[0], "slow", path]
    signal.signal(signal.SIGUSR1, lambda *_: os.execv(sys.executable, program))
    slow()


def work():
    beat()


def working():
    while True:
        work()


{"deaf": deaf, "held": held, "slow": slow, "again": again, "work": working}[kind]()
