# SPDX-License-Identifier: MIT
"""A large tree of Python processes, most of whose threads sleep.

  large_tree.py FUNCTIONS PROCESSES THREADS [LIBRARY]

FUNCTIONS functions, methods and inner functions are defined, of which 300 are called in turn; LIBRARY is
loaded. There are PROCESSES processes with THREADS threads together. The first of each process wakes up ten
times a second and does a little; the others sleep. The first thread of the first process works without
pause instead: a unit is work.hot:heavy, and, half as long, work.hot:light.
Prints the PIDs of all on one line first; then, for each line that it reads, a line of JSON: the working
thread's units and its CPU time since the last line, the longest unit's time less what it waited for a
CPU, and how often the other processes woke up. All ends with its input.
"""

import ctypes
import json
import mmap
import os
import select
import struct
import sys
import threading
import time
import types

# Ten functions.
COLD = """
def f{n}(): pass
def g{n}():
    def inner(): pass
    return lambda: inner()
class C{n}:
    def __init__(self): pass
    def __call__(self): pass
    def a(self): pass
    @staticmethod
    def b(): pass
    @property
    def c(self): pass
h{n} = lambda: None
"""
HOT = """
def light():
    total = 0
    for number in range(2000): total += number
def heavy():
    total = 0
    for number in range(4000): total += number
"""
WAKES = struct.Struct("Q")


def define(functions: int) -> list:
    """The functions that are called in turn."""
    some = []
    for count in range(functions // 10):
        name = f"lib{count % 40:02}.part{count // 40 % 10}"
        made = sys.modules.setdefault(name, types.ModuleType(name))
        path = f"/srv/{name.replace('.', '/')}.py"
        exec(compile(COLD.format(n=count), path, "exec"), made.__dict__)
        if len(some) < 300:
            some.append(made.__dict__[f"f{count}"])
    return some


def waited_ns(schedstat: int) -> int:
    """For a CPU, since it began, the thread whose file this is."""
    return int(os.pread(schedstat, 100, 0).split()[1])


def sleep_in(threads: int) -> None:
    threading.stack_size(256 << 10)
    for _ in range(threads):
        threading.Thread(target=threading.Event().wait, daemon=True).start()


def wake_up(woken: mmap.mmap, place: int, threads: int, parent: int) -> None:
    sleep_in(threads - 1)
    while os.getppid() == parent:
        time.sleep(0.1)
        sum(range(1000))
        WAKES.pack_into(woken, place, WAKES.unpack_from(woken, place)[0] + 1)


def work(some: list, hot, woken: mmap.mmap) -> None:
    schedstat = os.open("/proc/thread-self/schedstat", os.O_RDONLY)
    units, longest, wakes = 0, 0, 0
    cpu, last, waited = time.thread_time_ns(), time.perf_counter_ns(), waited_ns(schedstat)
    while True:
        hot.heavy()
        hot.light()
        for function in some[units % 10 :: 10]:
            function()
        units += 1
        now, waits = time.perf_counter_ns(), waited_ns(schedstat)
        longest, last, waited = max(longest, now - last - (waits - waited)), now, waits
        if units % 64 or not select.select([0], [], [], 0)[0]:
            continue
        if not os.read(0, 1):
            return
        all_wakes = sum(one for one, in WAKES.iter_unpack(woken))
        spent = time.thread_time_ns()
        print(json.dumps({"units": units, "cpu_ns": spent - cpu, "longest_ns": longest,
                          "wakes": all_wakes - wakes}), flush=True)
        units, longest, wakes = 0, 0, all_wakes
        cpu, last, waited = spent, time.perf_counter_ns(), waited_ns(schedstat)


def main() -> None:
    functions, processes, threads = (int(word) for word in sys.argv[1:4])
    some = define(functions)
    hot = types.ModuleType("work.hot")
    exec(compile(HOT, "/srv/work/hot.py", "exec"), hot.__dict__)
    if len(sys.argv) > 4:
        ctypes.CDLL(sys.argv[4])
    woken = mmap.mmap(-1, WAKES.size * processes)
    parent, pids = os.getpid(), [os.getpid()]
    for number in range(1, processes):
        pid = os.fork()
        if pid == 0:
            os.close(0)
            wake_up(woken, WAKES.size * number, threads // processes, parent)
            os._exit(0)
        pids.append(pid)
    sleep_in(threads // processes - 1)
    print(*pids, flush=True)
    work(some, hot, woken)


main()
