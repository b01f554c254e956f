# SPDX-License-Identifier: MIT
"""What being looked at costs a Python program that computes all the time.

    inspect_cost.py SPEEDBUMP [ROUNDS]

Needs root and two CPUs. Rounds of two seconds, in turn: nothing; a loop that has nothing to do with
the program on the other CPU, which shares its core on many hosts; `bench inspect`, as fast as it can;
and `discover`, 100 samples a second, no probes. Prints the program's pace, median and half the spread
between the quartiles: `bench inspect` relative to the loop, the others to nothing.
"""

import mmap
import pathlib
import statistics
import struct
import subprocess
import sys
import tempfile
import time

PROGRAM = """
import mmap, struct, sys
with open(sys.argv[1], "r+b") as file:
    memory = mmap.mmap(file.fileno(), 8)
def leaf(n): return sum(range(n))
def work(): return [leaf(n) for n in range(20)]
count = 0
print("ready", flush=True)
while True:
    work()
    count += 1
    memory[:8] = struct.pack("q", count)
"""


def main() -> None:
    speedbump = sys.argv[1]
    rounds = int(sys.argv[2]) if len(sys.argv) > 2 else 15
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder) / "count"
        path.write_bytes(bytes(8))
        target = subprocess.Popen(
            [sys.executable, "-c", PROGRAM, str(path)], stdout=subprocess.PIPE
        )
        assert target.stdout is not None and target.stdout.readline() == b"ready\n"
        pid = str(target.pid)
        ways = {
            "nothing": None,
            "a loop": [sys.executable, "-c", "while True: pass"],
            "bench inspect": [speedbump, "bench", "inspect", "--pid", pid, "-d", "9", "-q"],
            "discover": [speedbump, "discover", "--pid", pid, "--for", "9s", "--native", "no_such"],
        }
        paces: dict[str, list[float]] = {name: [] for name in ways}
        with open(path, "rb") as file, mmap.mmap(file.fileno(), 8, prot=mmap.PROT_READ) as memory:
            for _ in range(rounds):
                for name, command in ways.items():
                    looking = command and subprocess.Popen(
                        command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
                    )
                    time.sleep(0.7)
                    before, start = struct.unpack("q", memory[:8])[0], time.monotonic()
                    time.sleep(2)
                    after, end = struct.unpack("q", memory[:8])[0], time.monotonic()
                    paces[name].append((after - before) / (end - start))
                    if looking:
                        looking.kill()
                        looking.wait()
        target.kill()
        target.wait()
    for name in ways:
        base = paces["a loop" if name == "bench inspect" else "nothing"]
        ratios = [100 * (a / b - 1) for a, b in zip(paces[name], base)]
        low, middle, high = statistics.quantiles(ratios, n=4)
        if name == "nothing":
            pace = paces[name]
            low, middle, high = statistics.quantiles([100 * (p / statistics.median(pace) - 1)
                                                      for p in pace], n=4)  # fmt: skip
        print(f"{name:<14} {middle:+6.2f} % +-{(high - low) / 2:.2f}")


if __name__ == "__main__":
    main()
