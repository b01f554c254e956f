# SPDX-License-Identifier: MIT
"""Waits with relative time-outs, and keeps the worst lateness (us) where targets.py keeps beats.

timeouts.py BEATS: the count is 1 from the start, then 2 + the worst lateness once every wait was
done twice.
"""

import ctypes
import mmap
import os
import select
import struct
import sys
import threading
import time

with open(sys.argv[1], "r+b") as file:
    beats = mmap.mmap(file.fileno(), 8)
libc = ctypes.CDLL(None)
epoll = select.epoll()
poller = select.poll()
event = threading.Event()
waits = [
    lambda: epoll.poll(0.7),
    lambda: poller.poll(700),
    lambda: event.wait(0.7),
    lambda: libc.usleep(700000),
    lambda: libc.epoll_wait(epoll.fileno(), ctypes.create_string_buffer(64), 1, 700),
    lambda: libc.poll(None, 0, 700),
    lambda: select.select([], [], [], 0.7),
    lambda: time.sleep(0.7),
]


def waited_s():
    """How long this thread has waited for a CPU so far: by that much less it is late on an idle one."""
    with open(f"/proc/self/task/{threading.get_native_id()}/schedstat") as file:
        return int(file.read().split()[1]) / 1e9


def stolen_s():
    """What the host has taken of this machine's CPUs so far (proc_stat(5)): a timer of one that is
    away fires late, and this thread is asleep meanwhile."""
    with open("/proc/stat") as file:
        return int(file.readline().split()[8]) / os.sysconf("SC_CLK_TCK")


def lost_s():
    return waited_s() + stolen_s()


beats[:8] = struct.pack("<Q", 1)
worst = 0
for _ in range(2):
    for wait in waits:
        begin, lost = time.monotonic(), lost_s()
        wait()
        late = time.monotonic() - begin - 0.7
        if os.environ.get("VERBOSE"):
            print(waits.index(wait), round(late * 1000), flush=True)
        if late < -0.01:  # woken by what should not wake it
            worst = 10**9
        worst = max(worst, int((late - (lost_s() - lost)) * 1e6))
beats[:8] = struct.pack("<Q", 2 + worst)
time.sleep(60)
