#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""What experiments over many hosts find, and what is left when a part of them dies.

  fleet.py SPEEDBUMP PROGRAMS [PART]...    as root, with Open MPI and OpenSSH

  ranks   eight ranks of an MPI job that wait for each other: the straggler, and the slack of the others
  clocks  agents whose clocks are 50 ms apart: how far apart they begin slices
  kills   an agent, a link or the coordinator is killed: how long anything is slowed, and whether the
          interval holds the truth
"""

import os
import pathlib
import signal
import sys

os.environ["SPEEDBUMP_BINARY"], os.environ["SPEEDBUMP_PROGRAMS"] = map(os.path.abspath, sys.argv[1:3])
sys.path.insert(0, str(pathlib.Path(__file__).parents[1] / "runtime"))

from fleets import AHEAD, Fleet, Started, agents, serving  # noqa: E402
from harness import _clean_up, changed_bytes, wait_for  # noqa: E402
from known_experiments import PROGRESS  # noqa: E402
from ranks import Ranks, slack_us  # noqa: E402

LINE = "+exe:work_a\n"


def ranks(seconds: int = 240) -> None:
    job = Ranks(4000, 2800, 2600, 2400, 3000, 2200, 2700, 2000)
    done = job.experiment(seconds)
    if not done.json_path.stat().st_size:
        sys.exit(f"no result: {done}")
    print(f"eight ranks, {seconds} s, {len(done.document['sliced']['units'][0])} slices:")
    for name, slack, found in job.slacks(done):
        said = f"criticality {found['criticality']['value']:.2f}, {found['verdict']}"
        if "slack_ns" in found:
            measured = slack_us(found)
            error = f" ({measured / slack - 1:+.1%})" if slack else ""
            said += f", slack {measured:.0f} us{error}"
        print(f"  {name}: {'the straggler' if slack == 0 else f'slack {slack} us'}: {said}")


def clocks() -> None:
    hosts, _ = serving(4)
    ahead = {"h2": {"SPEEDBUMP_TEST_CLOCK_AHEAD": str(AHEAD)},
             "h3": {"SPEEDBUMP_TEST_CLOCK_AHEAD": str(-AHEAD)}}
    done = Fleet(hosts, LINE, "--exe=pulse", "--progress", PROGRESS, "--time=20s",
                 "--precision=0.1%", "--doses=100us", ahead=ahead)
    fleet = done.document["fleet"]
    # There is one clock: what it is taken for besides the offset is how far apart slices really are.
    wrong = [host["clock_ahead_ns"] - int(ahead.get(host["name"], {"": 0}).popitem()[1])
             for host in fleet["hosts"]]
    print(f"clocks 50 ms apart: slices begin within {(max(wrong) - min(wrong)) / 1e3:.0f} us by the real "
          f"clock, {fleet['apart_ns'] / 1e3:.0f} us by what is known of them (the median; "
          f"{fleet['most_apart_ns'] / 1e3:.0f} us at most)")


def kill(who: str) -> None:
    hosts, pids = serving(3)
    running = Started(hosts, LINE, "--exe=pulse", "--progress", PROGRESS, "--time=20s",
                      "--precision=0.1%", "--doses=100us")
    running.wait_for_slices(1000)
    dead = {"agent": agents(hosts)["h2"], "link": running.launchers()[1:2],
            "coordinator": [running.process.pid]}[who]
    for pid in dead:
        os.kill(pid, signal.SIGKILL)
    slowed = pids if who == "coordinator" else pids[1:2]
    took = wait_for(lambda: not any(changed_bytes(pid) for pid in slowed), 10, "the end of delays")
    print(f"{who} killed: nothing is slowed after {took * 1000:.0f} ms", end="")
    if who == "coordinator":
        print()
        return
    status, _, document = running.end()
    k = document["results"]["progress"][0]["targets"][0]["criticality"]
    print(f"; the others go on: criticality {k['value']:.2f} ({k['low']:.2f} to {k['high']:.2f}), of 1; "
          f"status {status}")


def kills() -> None:
    for who in ("agent", "link", "coordinator"):
        kill(who)
        _clean_up()


if __name__ == "__main__":
    parts = {"clocks": clocks, "kills": kills, "ranks": ranks}
    for part in sys.argv[3:] or parts:
        try:
            parts[part]()
        finally:
            _clean_up()
        sys.stdout.flush()
