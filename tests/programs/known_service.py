# SPDX-License-Identifier: MIT
"""Python services whose answer is known, as known_service.cpp has them in native code.

  known_service.py KIND [LIBRARY]

unit_done() is called once per unit. Runs until its input ends, and prints "ready" first.

  serial    work_a (200 us), then work_b (200): criticality 1 for both
  mixed     work_a (200), then lib_work() of LIBRARY, tests/programs/slowlib.cpp, through ctypes: 1 both
  apart     work_on (300) in the process that counts: 1; work_off (300) in another: 0
  pipeline  work_first (300) and work_second (600) in two processes with a pipe between them, which
            sleep: work_second is the bottleneck, 1; work_first is hidden by what it takes less
"""

import ctypes
import os
import sys
import threading
import time

AHEAD = 4  # units that wait in the pipe, at most


def spin_us(us: int) -> None:
    end = time.perf_counter_ns() + 1000 * us
    while time.perf_counter_ns() < end:
        pass


def unit_done():
    pass


def work_a():
    spin_us(200)


def work_b():
    spin_us(200)


def work_on():
    spin_us(300)


def work_off():
    spin_us(300)


def work_first():
    time.sleep(300e-6)


def work_second():
    time.sleep(600e-6)


def in_child(function) -> None:
    """Runs it for ever in a child, which ends with this process."""
    parent = os.getpid()
    if os.fork() == 0:
        stay_on(1)
        watch = threading.Thread(target=end_with, args=(parent,), daemon=True)
        watch.start()
        function()


def stay_on(cpu: int) -> None:
    """A delay holds its CPU: on a shared one it would slow the other process too."""
    if cpu in os.sched_getaffinity(0):
        os.sched_setaffinity(0, {cpu})


def end_with(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(0.2)
    os._exit(0)


def serial() -> None:
    while True:
        work_a()
        work_b()
        unit_done()


def mixed() -> None:
    lib_work = ctypes.CDLL(sys.argv[2]).lib_work
    while True:
        work_a()
        lib_work()
        unit_done()


def apart() -> None:
    def other() -> None:
        while True:
            work_off()

    in_child(other)
    stay_on(0)
    while True:
        work_on()
        unit_done()


def pipeline() -> None:
    filled, fill = os.pipe()
    emptied, empty = os.pipe()
    os.write(empty, b"." * AHEAD)

    def first() -> None:
        while True:
            work_first()
            os.read(emptied, 1)
            os.write(fill, b".")

    in_child(first)
    stay_on(0)
    while True:
        os.read(filled, 1)
        os.write(empty, b".")
        work_second()
        unit_done()


def main() -> None:
    kind = {"serial": serial, "mixed": mixed, "apart": apart, "pipeline": pipeline}[sys.argv[1]]
    threading.Thread(target=lambda: (sys.stdin.read(), os._exit(0)), daemon=True).start()
    print("ready", flush=True)
    kind()


if __name__ == "__main__":
    main()
