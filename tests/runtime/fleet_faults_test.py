# SPDX-License-Identifier: MIT
"""speedbump experiment --at: hosts that fail, each at a moment of its own. The message names the host,
the others go on where they can, and nothing is delayed 2 s later."""

import os
import pathlib
import shutil

from fleets import Fleet, agents, serving
from harness import SPEEDBUMP, Run, changed_bytes, expect_restored, main, scratch, targets_file, wait_for
from hosts import Hosts, at, pid_of
from known_experiments import PROGRESS

DYING = str(pathlib.Path(__file__).with_name("dying_agent.py"))
LINE = "+exe:work_a\n"


class Dying(Fleet):
    """An experiment on two hosts, of which the second one's agent dies in that phase."""

    def __init__(self, hosts: Hosts, phase: str):
        words = at(hosts, h1={"SPEEDBUMP_TEST_AGENT": SPEEDBUMP},
                   h2={"SPEEDBUMP_TEST_AGENT": SPEEDBUMP, "SPEEDBUMP_TEST_DIES": phase})[1:]
        super().__init__([f"--at-binary={DYING}", *words], LINE, "--exe=pulse",
                         "--progress", PROGRESS, "--time=8s")


def expect_nothing_left(hosts: Hosts, pids: list[int]) -> None:
    wait_for(lambda: not any(changed_bytes(pid) for pid in pids), 2, "no probe")
    wait_for(lambda: not any(agents(hosts).values()), 5, "no agent")


def test_an_agent_that_dies_before_it_begins_ends_all() -> None:
    hosts, pids = serving(2)
    for phase in ("hello", "attach"):
        done = Dying(hosts, phase)
        assert done.status == 1 and done.err.count("error:") == 1, (phase, done)
        assert "h2" in done.err and "link ended" in done.err, (phase, done)
        assert "137" in done.err, (phase, done)
        assert not done.json_path.exists(), (phase, done)
        expect_nothing_left(hosts, pids)


def test_an_agent_that_dies_later_is_gone_on_without() -> None:
    hosts, pids = serving(2)
    for phase in ("warm-up", "doses", "experiment", "end"):
        done = Dying(hosts, phase)
        assert done.json_path.stat().st_size, (phase, done.err)
        assert done.status in (0, 1) and done.document["complete"], (phase, done)
        first, second = done.document["fleet"]["hosts"]
        assert "ended" not in first and sum(first["targets"][0]["delays"]) > 0, (phase, done)
        if phase == "end":  # it has done all that was to be done
            assert "ended" not in second and "go on without" not in done.err, (phase, done)
        else:
            assert "137" in second["ended"], (phase, second["ended"])
            assert "h2: it has ended, and the others go on without it" in done.err, (phase, done)
        expect_nothing_left(hosts, pids)


def test_many_hosts_want_many_descriptors() -> None:
    """More than this program may have at first: three for each."""
    words = [word for _ in range(20) for word in ("--at", "sh -c 'exit 3' speedbump")]
    done = Run("experiment", *words, "--exe=pulse", "--progress", PROGRESS, targets_file(LINE),
               before=["prlimit", "--nofile=32:4096"])
    assert done.status == 1 and "the launcher with status 3" in done.err, done


def test_a_clock_that_jumps_begins_slices_anew() -> None:
    hosts, pids = serving(2)
    jump = 200_000_000  # ns
    ahead = {"h2": {"SPEEDBUMP_TEST_CLOCK_JUMP": str(jump),
                    "SPEEDBUMP_TEST_CLOCK_JUMPS_AFTER": "12000000000"}}
    done = Fleet(hosts, LINE, "--exe=pulse", "--progress", PROGRESS, "--time=20s", "--precision=0.1%",
                 "--doses=100us", ahead=ahead)
    assert done.status in (0, 1) and done.json_path.stat().st_size, done
    assert done.document["complete"], done
    assert "h2: its clock has jumped by" in done.err, done
    fleet = done.document["fleet"]
    first, second = fleet["hosts"]
    assert "ended" not in second, done
    error = max(1_000_000, second["clock_error_ns"])
    assert abs(second["clock_ahead_ns"] - jump) < error, second["clock_ahead_ns"]
    assert abs(first["clock_ahead_ns"]) < max(1_000_000, first["clock_error_ns"]), first
    # Slices that nobody knows the time of are left out, and both go on. How well a clock is known is a
    # matter of round trips, of which the shortest takes 10 ms where both processors are busy.
    assert fleet["most_apart_ns"] < jump / 2, fleet["most_apart_ns"]
    # As many as a busy machine loses on the other host come on top.
    lost = first["lost_slices"], second["lost_slices"]
    assert second["told"][-1] == "1" and lost[1] < 400 + lost[0], lost
    for pid in pids:
        expect_restored(pid)


def test_a_python_without_a_core_is_refused_by_name() -> None:
    hosts = Hosts(1)
    binary = str(shutil.copy(SPEEDBUMP, scratch()))  # without its cores
    python = os.path.realpath("/usr/bin/python3")
    service = pid_of(hosts.start("h1", python, "-c",
                                 "import time\ndef unit():\n time.sleep(.001)\nwhile 1: unit()"))
    done = Run("experiment", f"--at-binary={binary}", "--at", hosts.launch("h1"),
               f"--exe={pathlib.Path(python).name}", "--progress", "python:__main__:unit",
               targets_file("__main__:unit\n"))
    assert done.status == 5 and done.err.count("error:") == 1, done
    assert "h1" in done.err and "no core is built for" in done.err, done
    assert pathlib.Path(f"/proc/{service}").exists()
    assert not any(agents(hosts).values())


if __name__ == "__main__":
    main(globals())
