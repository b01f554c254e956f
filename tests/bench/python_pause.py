# SPDX-License-Identifier: MIT
"""For how long attaching to all functions stops a Python program, by how many objects it has.

  python_pause.py CORE [OBJECTS]...    under the interpreter that CORE is for (0 and 5,000,000)

A thread looks at the clock all the time; printed is the longest time between two looks, in ms: over
seconds without a session, and with sessions that begin with a delay of 0, look at the functions, and
end, of each of which it is the longest; the median, and the longest of all.
"""

import json
import pathlib
import socket
import statistics
import subprocess
import sys
import threading
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "python"))
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
import loader  # noqa: E402
from python_regroup import load_core  # noqa: E402

SESSIONS = 20


class Ticks:
    """The longest gap between two looks at the clock, in ns."""

    def __init__(self) -> None:
        self.longest, self.ends = 0, False
        self.thread = threading.Thread(target=self.run)
        self.thread.start()

    def run(self) -> None:
        last = time.perf_counter_ns()
        while not self.ends:
            now = time.perf_counter_ns()
            if now - last > self.longest:
                self.longest = now - last
            last = now

    def take(self) -> float:
        longest, self.longest = self.longest, 0
        return longest / 1e6


def load(fd: str) -> None:
    """The loader, in a process of its own: it takes no lock from the thread that ticks."""
    channel, table = loader.Channel(), loader.Table(1)
    channel.socket = socket.socket(fileno=int(fd))
    message = channel.begin(table, "*:*\n", look="later")
    channel.send({"op": "look"})
    while message["op"] != "looked" or message["more"]:
        message = channel.receive()
    table.arm()
    time.sleep(0.1)
    channel.send({"op": "detach"})
    while channel.receive()["op"] != "gone":
        pass


def serve(core, ticks: Ticks) -> list:
    gaps = []
    for _ in range(SESSIONS):
        ours, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        fd = str(its.fileno())
        with subprocess.Popen([sys.executable, __file__, "--loader", fd], pass_fds=[int(fd)]):
            its.close()
            time.sleep(0.2)  # it has begun
            ticks.take()
            core.serve(ours.detach())
            gaps.append(ticks.take())
    return gaps


def main() -> None:
    if sys.argv[1] == "--loader":
        return load(sys.argv[2])
    core = load_core(sys.argv[1])
    counts = [int(count) for count in sys.argv[2:]] or [0, 5_000_000]
    result: dict = {"python": sys.version.split()[0]}
    for count in counts:
        heap = [[] for _ in range(count)]
        ticks = Ticks()
        time.sleep(0.5)
        plain = []
        for _ in range(SESSIONS):
            ticks.take()
            time.sleep(0.2)
            plain.append(ticks.take())
        attached = serve(core, ticks)
        ticks.ends = True
        ticks.thread.join()
        del heap
        result[f"{count} objects"] = {
            name: {"median_ms": round(statistics.median(gaps), 2), "longest_ms": round(max(gaps), 2)}
            for name, gaps in (("without", plain), ("with", attached))
        }
    print(json.dumps(result, indent=1))


if __name__ == "__main__":
    main()
