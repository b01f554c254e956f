# SPDX-License-Identifier: MIT
"""soak.py SECONDS: services under load, attached to for all of that time, with a change each second.

gunicorn that recycles its workers, redis-server, and a C++ program with exceptions; every answer is
checked. The loader's memory, descriptors and kernel maps must not grow. Prints "faults N" (the
changes, the workers that went) and exits with 1 when something was lost, with 77 when a service is
missing.
"""

import contextlib
import json
import os
import pathlib
import subprocess
import sys
import time

import services
from harness import PROGRAMS, Run, Session, Until, _clean_up, _leftovers, children
from services_test import RedisLoad

TARGETS = """
*:price_of delay=1ms
+libsqlite3.so*:sqlite3_step delay=100us every=3
+redis-server:*Command delay=10us every=5
+leavers:catches delay=20us
+leavers:thrown_through delay=20us
"""
NAMES = "catches", "thrown_through", "price_of", "sqlite3_step"
MIB = 1 << 20


def buy(port: int, number: int) -> None:
    item, count = number % 100, 1 + number % 13
    answer = json.loads(services.buy(port, item, count))
    cents = (100 + 7 * item) * count * (90 if count >= 10 else 100) // 100
    assert (answer["name"], answer["cents"]) == (f"item {item}", cents), answer


class Leavers:
    """Calls functions that are left by exceptions; as many must return as without us."""

    def __init__(self):
        self.process = subprocess.Popen([str(PROGRAMS / "leavers")], stdin=subprocess.PIPE,
                                        stdout=subprocess.PIPE, text=True)
        _leftovers.append(lambda: (self.process.kill(), self.process.wait()))
        assert self.process.stdout.readline() == "ready\n"
        self.plain = {name: self.returns(name) for name in NAMES[:2]}

    def returns(self, name: str) -> int:
        self.process.stdin.write(f"{name} 100 1 2\n")
        self.process.stdin.flush()
        return int(self.process.stdout.readline().split()[0])

    def check(self, _: int) -> None:
        for name, plain in self.plain.items():
            assert self.returns(name) == plain, (name, plain)


def used_by(pid: int) -> dict[str, int]:
    """What must not grow: bytes of memory, descriptors, bytes of kernel maps."""
    status = pathlib.Path(f"/proc/{pid}/status").read_text()
    memory = next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmRSS"))
    maps = 0
    descriptors = list(pathlib.Path(f"/proc/{pid}/fdinfo").iterdir())
    for one in descriptors:
        with contextlib.suppress(OSError):
            for line in one.read_text().splitlines():
                if line.startswith("memlock:"):
                    maps += int(line.split()[1])
    return {"memory": memory * 1024, "descriptors": len(descriptors), "kernel maps": maps}


# What comes and goes with each worker, and what an allocator keeps. An entry of a kernel map takes
# some 84 bytes: there is room for those of workers that are there beside their successors, and not for
# one of each that has ended.
ROOM = {"memory": 2 * MIB, "descriptors": 8, "kernel maps": 1024}


def expect_flat(samples: list[dict[str, int]]) -> None:
    """The last third takes no more than the one before; the first is for warming up. What is kept is
    there at every moment, also when the fewest workers are there beside their successors."""
    third = len(samples) // 3
    for name, room in ROOM.items():
        before = min(one[name] for one in samples[third:2 * third])
        after = min(one[name] for one in samples[2 * third:])
        print(f"  {name}: {before} in the second third, {after} in the last")
        assert after <= before + room, f"{name} grow: {before} to {after}"


def soak(seconds: float) -> int:
    os.environ["GUNICORN_CMD_ARGS"] = "--max-requests=50 --max-requests-jitter=20"
    faults = 0
    with services.redis() as redis, services.shop() as shop:
        leavers = Leavers()
        samples = []
        seen = set(children(shop.pid))
        with Session(TARGETS, f"--pid={shop.pid}", f"--pid={leavers.process.pid}",
                     "--missing=ignore", pid=redis.pid) as session:
            with RedisLoad(redis.port) as load:
                work = [Until(lambda number: buy(shop.port, number)), Until(leavers.check)]
                end = time.monotonic() + seconds
                while time.monotonic() < end:
                    time.sleep(1)
                    done = Run("set", "--session", str(session.process.pid),
                               NAMES[faults % len(NAMES)], f"delay={10 + faults % 90}us")
                    assert done.status == 0, done
                    faults += 1
                    seen |= set(children(shop.pid))
                    samples.append(used_by(session.process.pid))
                    session.documents[1:-1] = []  # ours, not the loader's
                for one in work:
                    one.end()
            final = session.stop()
        assert load.requests > 0 and all(one.times for one in work)
        assert not load.errors, load.errors
        hooked = {row["pid"] for one in final["targets"] if one["name"] == "price_of"
                  for row in one["processes"]}
        print(f"  {len(seen)} workers, {len(hooked)} of them called a hooked function; "
              f"{load.requests} requests of redis, {work[0].times} of the shop, "
              f"{work[1].times} rounds of exceptions")
        expect_flat(samples)
    return faults + len(seen)


def main() -> None:
    try:
        print("faults", soak(float(sys.argv[1])))
    except services.Missing as reason:
        print("SKIP:", reason)
        sys.exit(77)
    finally:
        _clean_up()


if __name__ == "__main__":
    main()
