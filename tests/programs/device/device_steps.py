# SPDX-License-Identifier: MIT
"""device_steps.c with a host in Python, which calls the device through ctypes.

  device_steps.py LIBRARIES [KEY=VALUE]...    with mode=python (default) or mode=mixed, where finish()
                                              does its work in native code
"""

import ctypes
import json
import os
import sys
import threading
import time

NUMBERS = {"prepare": 0, "between": 0, "finish": 0, "kernels": 1, "kernel": 100, "every": 1,
           "depth": 0, "streams": 1, "seed": 0}
WORDS = {"sync": "ctx", "launch": "plain", "mode": "python"}


class Totals(ctypes.Structure):
    _fields_ = [(name, ctypes.c_uint64) for name in (
        "now_ns", "launches", "waits", "wait_ns", "held_ns", "idle_ns", "seen_idle_ns",
        "late_ns")]


class Config(ctypes.Structure):
    _fields_ = [("numbers", ctypes.c_uint * 8), ("stream", ctypes.c_void_p)]


def host_work(us: int) -> None:
    end = time.perf_counter_ns() + 1000 * us
    while time.perf_counter_ns() < end:
        pass


class Steps:
    def __init__(self, libraries: str, options: dict):
        self.device = ctypes.CDLL(f"{libraries}/libfakedevice.so")
        self.host = ctypes.CDLL(f"{libraries}/libhostwork.so")
        self.host.host_work.argtypes = [ctypes.c_uint64]
        self.options = options
        self.steps = 0
        self.streams = [ctypes.c_void_p() for _ in range(options["streams"])]
        self.events = [ctypes.c_void_p() for _ in range(2)]
        self.device.fdSeed(ctypes.c_uint64(options["seed"]))
        self.device.fdSetQueueDepth(options["depth"])
        for stream in self.streams[1:]:
            self.device.fdStreamCreate(ctypes.byref(stream))
        for event in self.events:
            self.device.fdEventCreate(ctypes.byref(event))

    def prepare(self) -> None:
        host_work(self.options["prepare"])

    def finish(self) -> None:
        if self.options["mode"] == "mixed":
            self.host.host_work(1000 * self.options["finish"])
        else:
            host_work(self.options["finish"])

    def launch(self, stream: ctypes.c_void_p) -> None:
        ns = ctypes.c_uint64(1000 * self.options["kernel"])
        kind = self.options["launch"]
        if kind == "grid":
            self.device.fdLaunchGrid(ns, 1, 1, 1, 32, 1, 1, 0, stream, None)
        elif kind == "config":
            self.device.fdLaunchKernelEx(ctypes.byref(Config(stream=stream)), ns)
        else:
            self.device.fdLaunchKernel(stream, ns)

    def synchronise(self) -> None:
        kind = self.options["sync"]
        if kind == "ctx":
            self.device.fdCtxSynchronize()
        elif kind == "stream":
            for stream in self.streams:
                self.device.fdStreamSynchronize(stream)
        else:
            turn = self.steps // self.options["every"]
            self.device.fdEventRecord(self.events[turn % 2], self.streams[0])
            self.device.fdEventSynchronize(self.events[(turn + 1) % 2])

    def step_done(self) -> None:
        self.steps += 1

    def run(self) -> None:
        options = self.options
        while True:
            self.prepare()
            for number in range(options["kernels"]):
                self.launch(self.streams[number % len(self.streams)])
                if options["between"]:
                    host_work(options["between"])
            self.finish()
            if self.steps % options["every"] == options["every"] - 1:
                self.synchronise()
            self.step_done()

    def answer(self) -> None:
        for _ in sys.stdin:
            totals = Totals()
            self.device.fdTotals(ctypes.byref(totals))
            told = {name: getattr(totals, name) for name, _ in Totals._fields_}
            print(json.dumps({"steps": self.steps, **told}), flush=True)
        os._exit(0)


def main() -> None:
    options: dict = {**NUMBERS, **WORDS}
    for argument in sys.argv[2:]:
        key, value = argument.split("=")
        options[key] = int(value) if key in NUMBERS else value
    steps = Steps(sys.argv[1], options)
    threading.Thread(target=steps.answer, daemon=True).start()
    print("ready", flush=True)
    steps.run()


if __name__ == "__main__":
    main()
