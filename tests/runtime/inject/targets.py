# SPDX-License-Identifier: MIT
"""Programs to get into: targets.py KIND BEATS, where BEATS is a file of 8 bytes that counts up."""

import mmap
import os
import select
import signal
import socket
import struct
import sys
import threading
import time

kind, path = sys.argv[1:3]
with open(path, "r+b") as file:
    beats = mmap.mmap(file.fileno(), 8)


def beat():
    beats[:8] = struct.pack("<Q", struct.unpack("<Q", beats[:8])[0] + 1)


def loop():
    while True:
        for _ in range(1000):
            pass
        beat()


def sleep():
    while True:
        time.sleep(0.3)
        beat()


def knock(address):
    while True:
        with socket.create_connection(address):
            time.sleep(0.1)


def accept():
    listener = socket.create_server(("127.0.0.1", 0))
    threading.Thread(target=knock, args=(listener.getsockname(),), daemon=True).start()
    while True:
        listener.accept()[0].close()
        beat()


def wait_in_select():
    reader, _ = os.pipe()
    while True:
        select.select([reader], [], [], 0.2)
        beat()


def wait_in_epoll():
    poller = select.epoll()
    while True:
        poller.poll(0.2)
        beat()


def allocate(number, start):
    blocks = [b""] * 64
    start.wait()
    while True:
        for i in range(2000):
            blocks[(i * 7 + number) % 64] = bytearray((i * 37 + number * 101) % 9000)
        beat()


def threads():
    start = threading.Event()
    for number in range(20):
        threading.Thread(target=allocate, args=(number, start), daemon=True).start()
    start.set()
    while True:
        time.sleep(1)


def dlopen():
    import _ctypes

    libraries = [
        line.split()[-1]
        for line in open("/proc/self/maps")
        if "/libm.so" in line or "/libz.so" in line
    ]
    name = libraries[0] if libraries else None
    candidates = [n for n in ("libutil.so.1", "libnsl.so.1", "libresolv.so.2", "librt.so.1")]
    while True:
        begin = time.perf_counter()
        for candidate in candidates + [name]:
            try:
                _ctypes.dlclose(_ctypes.dlopen(candidate, 2))
            except OSError:
                pass
        beat()
        # A thread that did nothing else would hardly ever be found outside of the loader's lock.
        until = time.perf_counter() + (time.perf_counter() - begin) / 10
        while time.perf_counter() < until:
            pass


def long_call():
    data = [(i * 7919) % 100003 for i in range(100000)]
    while True:
        sorted(data)
        beat()


def moves():
    block = bytearray(32 << 20)
    while True:
        block[1:] = block[:-1]
        beat()


def wakeup_s():
    """How long another process takes to be woken and to answer, as a rule."""
    asked, ask = os.pipe()
    answered, answer = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(ask)
        while os.read(asked, 1):
            os.write(answer, b"a")
        os._exit(0)
    times = []
    for _ in range(101):
        begin = time.perf_counter()
        os.write(ask, b"q")
        os.read(answered, 1)
        times.append(time.perf_counter() - begin)
    for fd in (asked, ask, answered, answer):
        os.close(fd)
    os.waitpid(pid, 0)
    return sorted(times)[50]


def signals():
    # Often, but not so often that the next one is always there before a thread can be held and looked
    # at: on a virtual machine that takes some wakeups, a host with other work a hundred times as long.
    # An emulated machine takes longer for that than for a wakeup.
    shortest = 0.02 if os.environ.get("SPEEDBUMP_TEST_EMULATED") == "1" else 0.0005
    period = max(shortest, 10 * wakeup_s())
    seen = [0]

    def handler(number, frame):
        seen[0] += 1

    signal.signal(signal.SIGALRM, handler)
    signal.setitimer(signal.ITIMER_REAL, period, period)
    while True:
        time.sleep(2 * period)
        beat()


def forks():
    while True:
        pid = os.fork()
        if pid == 0:
            os._exit(0)
        if os.waitpid(pid, 0)[1] != 0:
            os._exit(1)
        beat()


def families():
    while True:
        pid = os.fork()
        if pid == 0:
            grandchild = os.fork()
            if grandchild == 0:
                os._exit(0)
            os._exit(os.waitpid(grandchild, 0)[1])
        if os.waitpid(pid, 0)[1] != 0:
            os._exit(1)
        beat()


def asynchronous():
    import asyncio

    async def worker(queue):
        while True:
            await queue.get()
            beat()

    async def main():
        queue = asyncio.Queue()
        tasks = [asyncio.create_task(worker(queue)) for _ in range(10)]
        while tasks:
            await asyncio.sleep(0.001)
            queue.put_nowait(1)

    asyncio.run(main())


KINDS = {
    "loop": loop,
    "sleep": sleep,
    "accept": accept,
    "select": wait_in_select,
    "epoll": wait_in_epoll,
    "threads": threads,
    "dlopen": dlopen,
    "longcall": long_call,
    "memmove": moves,
    "signals": signals,
    "forks": forks,
    "families": families,
    "asyncio": asynchronous,
}
KINDS[kind]()
