# SPDX-License-Identifier: MIT
"""A program that gives its GIL up for a moment, more often than others would ask for it, as each call
through ctypes or into PyTorch does: whoever waits is woken, finds it taken again, and starts anew."""

import dataclasses
import json
import os
import random
import time

from harness import Run, Skip, campaign, main, one_cpu_for_all, targets_file
from pythons import Python, find

DRAWN = 200  # programs of the campaign

# A child says whether the switch interval is what it was. One that lives for longer than a moment, as any does
# on a busy machine, is attached to itself, and reads the short one while it is asked for its GIL: for a while.
FORK = """
def fork(live=lambda: None):
    child = os.fork()
    if child == 0:
        live()
        end = time.perf_counter() + 10
        while sys.getswitchinterval() != before and time.perf_counter() < end:
            pass
        os._exit(sys.getswitchinterval() != before)
    status = os.waitpid(child, 0)[1]
    assert status == 0, status
"""

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
""" + FORK + """
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
    fork()
    turns += 1
assert sys.getswitchinterval() == before and turns > 0
"""


def attaches(python: Python, program: str, argument: str, times: int, ms: int = 50) -> float:
    """Seconds that so many of them take."""
    process = python.start(program, argument)
    targets = targets_file("__main__:turn delay=1us")
    begin = time.monotonic()
    for _ in range(times):
        done = Run("attach", "--json", "--pid", str(process.pid), f"--duration={ms}ms", targets)
        if "no core is built" in done.err:
            raise Skip(done.err)
        assert done.status == 0, (python.name, argument, done.status, done.err[-600:])
    took = time.monotonic() - begin
    process.stdin.close()
    assert process.wait(timeout=30) == 0, (python.name, argument)
    return took


def test_a_gil_that_is_given_up_for_moments_only_is_had() -> None:
    """Without being asked for it is had, too, now and then: what all take is judged."""
    took = []
    for python in find():
        if python.name.endswith("t"):
            continue
        took.append([attaches(python, PROGRAM, how, 3) for how in ("keeps", "gives_up")])
        print(f"  Python {python.name}: {took[-1][1]:.2f} s, {took[-1][0]:.2f} s where it is asked for")
    plain, given_up = map(sum, zip(*took))
    assert given_up < 2 * plain, took


# Its children have their GIL almost all the time, and give it up for moments.
PARENT = """
import os, select, sys, time, warnings
warnings.simplefilter("ignore") # of forks beside threads
before = sys.getswitchinterval()
""" + FORK + """
def turn():
    pass
def live():
    end = time.perf_counter() + 0.2
    while time.perf_counter() < end:
        turn()
        time.sleep(0)
print("ready", flush=True)
while not select.select([0], [], [], 0)[0]:
    turn()
    fork(live)
assert sys.getswitchinterval() == before
"""


def test_children_that_are_attached_to_themselves_have_their_interval_back() -> None:
    for python in find():
        if not python.name.endswith("t"):
            took = attaches(python, PARENT, "", 2, 600)
            print(f"  Python {python.name}: {took:.2f} s")


SLEEPER = """
import select, sys, time
def turn(): pass
print("ready", flush=True)
while not select.select([0], [], [], 0)[0]:
    turn()
    time.sleep(float(sys.argv[1]))
"""


def test_what_sleeps_for_moments_on_the_cpu_of_the_loader_is_stopped() -> None:
    """The thread that stops it goes before all others there: while it looks nobody runs, and what it looks
    for, a sleep that can be interrupted, is over."""
    with one_cpu_for_all():
        for sleep_us in (20, 100, 300, 2000):
            took = attaches(find()[-1], SLEEPER, str(sleep_us / 1e6), 10)
            print(f"  10 attaches to what sleeps for {sleep_us} us: {took:.2f} s")


def test_what_sleeps_for_moments_beside_others_is_stopped() -> None:
    """Its sleeps are long over when it has the CPU again, and it stands at their end each time."""
    with one_cpu_for_all(3):
        took = attaches(find()[-1], SLEEPER, "2e-5", 5)
    print(f"  5 attaches: {took:.2f} s")


# Threads that each compute for a while, give the GIL up in one way, and so on; in the end it says whether
# the switch interval is what it was, and each of its children has said so.
DRAWN_PROGRAM = """
import ctypes, hashlib, json, os, select, sys, threading, time, warnings, zlib
warnings.simplefilter("ignore") # of forks beside threads
drawn = json.loads(sys.argv[1])
os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:drawn["cpus"]])
if drawn["batch"]:
    os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))
sys.setswitchinterval(drawn["interval_us"] / 1e6)
before = sys.getswitchinterval()
library, nowhere, block, lock = ctypes.CDLL(None), os.open("/dev/null", os.O_WRONLY), b"x" * 4096, threading.Lock()
""" + FORK + """
def in_turns():
    with lock:
        turn()
ways = {
    "call": library.getppid, "write": lambda: os.write(nowhere, block), "pause": lambda: time.sleep(0),
    "sleep": lambda: time.sleep(1e-4), "hash": lambda: hashlib.sha256(block), "compress": lambda: zlib.crc32(block * 2),
    "lock": in_turns, "fork": fork, "keep": lambda: None,
}
give_up, begins, is_over = ways[drawn["way"]], threading.Event(), False
def turn():
    end = time.perf_counter() + drawn["period_us"] / 1e6
    while time.perf_counter() < end:
        pass
def work():
    begins.wait()
    while not is_over:
        turn()
        give_up()
threads = [threading.Thread(target=work) for _ in range(1, drawn["threads"])]
for thread in threads:
    thread.start()
print("ready", flush=True)
begins.set()
while not select.select([0], [], [], 0)[0]:
    turn()
    give_up()
is_over = True
for thread in threads:
    thread.join()
assert sys.getswitchinterval() == before, (sys.getswitchinterval(), before)
"""


@dataclasses.dataclass
class Drawn:
    """One program of the campaign."""

    way: str
    period_us: float
    threads: int
    cpus: int
    batch: bool
    interval_us: int

    @staticmethod
    def draw(dice: random.Random) -> "Drawn":
        """Twenty threads in SCHED_BATCH on one CPU starve each other, too."""
        ways = ("call", "write", "pause", "sleep", "hash", "compress", "lock", "fork", "keep")
        threads = dice.choice((1, 1, 2, 5, 20))
        return Drawn(dice.choice(ways), round(10 ** dice.uniform(0, 4.3), 1), threads,
                     2 if threads == 20 else dice.choice((1, 2)), dice.random() < 0.5,
                     dice.choice((5000, 5000, 5000, 100, 1, 20000)))


@campaign
def test_drawn_programs_are_attached_to() -> None:
    seed = int(os.environ.get("SEED", random.SystemRandom().randrange(2**32)))
    print(f"  SEED={seed}")
    dice = random.Random(seed)
    pythons = [python for python in find() if not python.name.endswith("t")]
    for _ in range(DRAWN):
        python, drawn = dice.choice(pythons), Drawn.draw(dice)
        took = attaches(python, DRAWN_PROGRAM, json.dumps(dataclasses.asdict(drawn)), 1)
        print(f"  {took:.2f} s, Python {python.name}, {drawn}", flush=True)


if __name__ == "__main__":
    main(globals())
