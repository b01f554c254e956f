# SPDX-License-Identifier: MIT
"""A program that gives its GIL up for a moment, more often than others would ask for it, as each call
through ctypes or into PyTorch does: whoever waits is woken, finds it taken again, and starts anew."""

import time

from harness import Run, Skip, main, targets_file
from pythons import find

# On one CPU and in SCHED_BATCH nobody runs at once who is woken. Forks, and says of each child and of itself
# whether the switch interval is what it was.
PROGRAM = """
import ctypes, os, select, sys, time, warnings
warnings.simplefilter("ignore") # of forks beside threads
gives_up = sys.argv[1] == "gives_up"
os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))
getppid = ctypes.CDLL(None).getppid
before, turns = sys.getswitchinterval(), 0
def turn():
    end = time.perf_counter() + 0.0045
    while time.perf_counter() < end:
        pass
print("ready", flush=True)
while not select.select([0], [], [], 0)[0]:
    for _ in range(5):
        turn()
        if gives_up:
            getppid()
            getppid()
    child = os.fork()
    if child == 0:
        os._exit(sys.getswitchinterval() != before)
    assert os.waitpid(child, 0)[1] == 0
    turns += 1
assert sys.getswitchinterval() == before and turns > 0
"""


def attaches(python, how: str) -> float:
    """Seconds that three of them take."""
    process = python.start(PROGRAM, how)
    targets = targets_file("__main__:turn delay=1us")
    begin = time.monotonic()
    for _ in range(3):
        done = Run("attach", "--json", "--pid", str(process.pid), "--duration=50ms", targets)
        if "no core is built" in done.err:
            raise Skip(done.err)
        assert done.status == 0, (python.name, done)
    took = time.monotonic() - begin
    process.stdin.close()
    assert process.wait(timeout=30) == 0, python.name
    return took


def test_a_gil_that_is_given_up_for_moments_only_is_had() -> None:
    """Without being asked for it is had, too, now and then: what all take is judged."""
    took = []
    for python in find():
        if python.name.endswith("t"):
            continue
        took.append([attaches(python, how) for how in ("keeps", "gives_up")])
        print(f"  Python {python.name}: {took[-1][1]:.2f} s, {took[-1][0]:.2f} s where it is asked for")
    plain, given_up = map(sum, zip(*took))
    assert given_up < 2 * plain, took


if __name__ == "__main__":
    main(globals())
