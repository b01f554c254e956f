# SPDX-License-Identifier: MIT
"""A Python service of many packages, in which it is known what matters.

  known_packages.py FUNCTIONS [LIBRARY]

unit_done() is called once per unit. A unit is shop.views:Cart.total (300 us) and, with LIBRARY,
shop.codec:Codec.encode (200 us), which calls lib_work() of that library, one after the other.
A child that nobody waits for is as busy, in audit.log:Writer.write (300 us) and audit.ship:send (50).
All else is FUNCTIONS functions, methods, lambdas and inner functions of 40 packages that nobody calls.
Prints "ready" first; then, for each line that it reads, how many units there were since the last one and
how long the longest of them took, in us. Runs until its input ends.
"""

import ctypes
import os
import select
import sys
import time
import types

VIEWS = """
import time
class Cart:
    def total(self):
        end = time.perf_counter_ns() + 300_000
        while time.perf_counter_ns() < end: pass
    def empty(self): pass
def render(): pass
"""
CODEC = """
import time
class Codec:
    def __init__(self, library): self.work = library.lib_work
    def encode(self):
        self.work()
        end = time.perf_counter_ns() + 200_000
        while time.perf_counter_ns() < end: pass
    def decode(self): pass
"""
LOG = """
import time
class Writer:
    def write(self):
        end = time.perf_counter_ns() + 300_000
        while time.perf_counter_ns() < end: pass
"""
SHIP = """
import time
def send():
    end = time.perf_counter_ns() + 50_000
    while time.perf_counter_ns() < end: pass
"""
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


def module(name: str, text: str) -> types.ModuleType:
    made = types.ModuleType(name)
    exec(compile(text, f"/srv/{name.replace('.', '/')}.py", "exec"), made.__dict__)
    sys.modules[name] = made
    return made


def unit_done():
    pass


def serve_for_nobody(parent: int) -> None:
    writer, send = sys.modules["audit.log"].Writer(), sys.modules["audit.ship"].send
    while os.getppid() == parent:
        writer.write()
        send()


def main() -> None:
    for count in range(int(sys.argv[1]) // 10):
        package, part = count % 40, count // 40 % 10
        name = f"lib{package:02}.part{part}"
        text = COLD.format(n=count)
        if name in sys.modules:
            exec(compile(text, f"/srv/{name}.py", "exec"), sys.modules[name].__dict__)
        else:
            module(name, text)
    cart = module("shop.views", VIEWS).Cart()
    module("audit.log", LOG)
    module("audit.ship", SHIP)
    encode = None
    if len(sys.argv) > 2:
        encode = module("shop.codec", CODEC).Codec(ctypes.CDLL(sys.argv[2])).encode
    parent = os.getpid()
    if os.fork() == 0:
        os.close(0)
        serve_for_nobody(parent)
        os._exit(0)
    print("ready", flush=True)
    units, longest, last = 0, 0, time.perf_counter_ns()
    while True:
        cart.total()
        if encode is not None:
            encode()
        unit_done()
        now = time.perf_counter_ns()
        units, longest, last = units + 1, max(longest, now - last), now
        if units % 64 == 0 and select.select([0], [], [], 0)[0]:
            if not os.read(0, 1):
                return
            print(units, longest // 1000, flush=True)
            units, longest, last = 0, 0, time.perf_counter_ns()


main()
