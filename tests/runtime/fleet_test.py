# SPDX-License-Identifier: MIT
"""speedbump experiment --at: one schedule on many hosts, which are network namespaces with an SSH
server each (hosts.py)."""

import json
import os
import re
import signal
import time

from browser import Cells, browse
from harness import (
    SPEEDBUMP, Patience, Run, alone, campaign, changed_bytes, cpu_ns, expect_restored, main, need,
    scratch, targets_file, wait_for,
)
from fleets import AHEAD, Fleet, Started, agents, serving
from known_experiments import PROGRESS
from ranks import Ranks, slack_us


@alone
def test_one_schedule_on_three_hosts() -> None:
    hosts, pids = serving(3)
    # Two of them with clocks that differ: 50 ms ahead, 50 ms behind.
    ahead = {"h2": {"SPEEDBUMP_TEST_CLOCK_AHEAD": str(AHEAD)},
             "h3": {"SPEEDBUMP_TEST_CLOCK_AHEAD": str(-AHEAD)}}
    waiting, worked = Patience(*pids), cpu_ns(*pids)
    done = Fleet(hosts, "+exe:work_a\n", "--exe=pulse", "--progress", PROGRESS,
                 "--time=12s", "--precision=5%", "--doses=100us", ahead=ahead)
    assert done.status == 0, done
    document = done.document
    fleet = document["fleet"]
    assert [host["name"] for host in fleet["hosts"]] == hosts.names, fleet
    slices = len(document["sliced"]["units"][0])
    assert slices > 500, done
    for host, clock in zip(fleet["hosts"], (0, AHEAD, -AHEAD)):
        # The clock is the same one: what it is taken for beyond that is how far apart slices are,
        # which is a millisecond at most, or half of the shortest way there and back.
        assert abs(host["clock_ahead_ns"] - clock) < max(1_000_000, host["clock_error_ns"]), host
        assert len(host["told"]) == len(host["units"][0]) == slices, host
        assert len(host["targets"][0]["injected_ns"]) == slices
        assert sum(host["targets"][0]["delays"]) > 0, host["name"]
    print("slices began within", fleet["apart_ns"], "ns,", fleet["most_apart_ns"], "ns at most")
    assert fleet["apart_ns"] < max(1_000_000, *(host["clock_error_ns"] for host in fleet["hosts"]))
    # A delay costs a service that much more as it had to wait for its CPU (known_experiments.py).
    crowding = 1 + waiting.ns() / max(1, cpu_ns(*pids) - worked)
    k = done.target("+exe:work_a")["criticality"]
    assert k["low"] < 1.3 * crowding and k["high"] > 0.7, (crowding, done)
    for name in hosts.names:
        assert name in done.out, done
    assert json.loads(Run("report", str(done.json_path), "--json").out)["results"] == \
        document["results"]
    for pid in pids:
        expect_restored(pid)
    wait_for(lambda: not any(agents(hosts).values()), 5, "the end of the agents")


def test_what_cannot_begin_names_the_host() -> None:
    hosts, _ = serving(2)
    good = ["--at", hosts.launch("h1")]
    rest = ["--progress", PROGRESS, "--exe=pulse", targets_file("+exe:work_a\n")]
    binary = f"--at-binary={SPEEDBUMP}"

    def refused(*words: str, status: int) -> str:
        done = Run("experiment", *words, *rest)
        assert done.status == status, done
        assert "Traceback" not in done.err and done.err.count("error:") == 1, done
        return done.err

    # No such host; no such program here, or there; a shell that prints.
    error = refused(binary, *good, "--at", hosts.launch("h9"), status=1)
    assert "h9" in error and "resolve" in error.lower(), error
    error = refused(binary, *good, "--at", "no-such-launcher x", status=1)
    assert "no-such-launcher" in error, error
    error = refused("--at-binary=/no/speedbump", *good, status=1)
    assert "h1" in error and "/no/speedbump" in error, error
    error = refused("--at-binary=x", "--at", "echo Welcome", status=1)
    assert "no agent that answers" in error and "Welcome" in error, error
    # No rights there.
    error = refused(binary, *good, "--at",
                    hosts.launch("h2") + " setpriv --bounding-set=-sys_admin,-perfmon,-bpf", status=4)
    assert "h2" in error, error
    # Another version there.
    other = scratch() / "other"
    other.write_text('#!/bin/sh\necho \'{"type":"hello","protocol":1,"version":"0.0.1","host":"old",'
                     '"kernel":"","machine":""}\'\nexec cat >/dev/null\n')
    other.chmod(0o755)
    error = refused(f"--at-binary={other}", *good, status=5)
    assert "0.0.1" in error and "--at-binary" in error, error
    # No such process there, and no such function.
    hosts.start("h2", "sleep", "100")
    done = Run("experiment", binary, *good, "--at", hosts.launch("h2"), "--progress", PROGRESS,
               "--exe=sleep", targets_file("+exe:work_a\n"))
    assert done.status == 1 and "h1" in done.err and "'sleep'" in done.err, done
    # What is one host's alone.
    for words in (("--bisect",), ("--blocks=3",), ("--settle=1ms",), ("--slice=60ms",),
                  ("--progress=command:date",), ("--progress=at:3:native:exe:f",)):
        done = Run("experiment", binary, *good, *words, *rest)
        assert done.status == 2, done
    assert not any(agents(hosts).values())


def test_a_host_that_dies_is_named_and_the_others_go_on() -> None:
    hosts, pids = serving(3)
    running = Started(hosts, "+exe:work_a\n", "--exe=pulse", "--progress", PROGRESS,
                      "--time=9s", "--doses=100us")
    running.wait_for_slices(200)
    assert all(changed_bytes(pid) for pid in pids)
    for pid in agents(hosts)["h2"]:
        os.kill(pid, signal.SIGKILL)
    wait_for(lambda: changed_bytes(pids[1]) == 0, 2, "an agent that was killed takes its probes")
    status, said, document = running.end()
    # Where the agents had too few CPUs it may be that nothing can be told yet; there is no sham target.
    reasons = document["results"]["invalid_because"]
    assert document["complete"] and all("tell nothing" in why for why in reasons), said
    assert status == (1 if reasons else 0), (status, said)
    ended = [host.get("ended", "") for host in document["fleet"]["hosts"]]
    assert ended[1] and not ended[0] and not ended[2], ended
    assert "h2" in said and "go on without it" in said, said
    hosts_told = [host["told"] for host in document["fleet"]["hosts"]]
    told = [sum(one == "1" for one in each) for each in hosts_told]
    assert min(told[0], told[2]) > told[1] > 0, told
    # Of the two that go on one misses slices only where it did not answer, which is told.
    for name, own, other in (("h1", 0, 2), ("h3", 2, 0)):
        misses = any(a < b for a, b in zip(hosts_told[own], hosts_told[other]))
        assert not misses or f"{name}: for " in said, (told, said)


def test_the_coordinator_dies_and_nothing_is_left() -> None:
    hosts, pids = serving(2)
    running = Started(hosts, "+exe:work_a\n", "--exe=pulse", "--progress", PROGRESS,
                      "--time=60s", "--doses=100us")
    running.wait_for_slices(200)
    assert all(changed_bytes(pid) for pid in pids)
    running.process.kill()
    wait_for(lambda: not any(changed_bytes(pid) for pid in pids), 3, "no probe after a kill")
    wait_for(lambda: not any(agents(hosts).values()), 5, "no agent after a kill")


def stall(seconds: int) -> None:
    hosts, pids = serving(2)
    running = Started(hosts, "+exe:work_a\n", "--exe=pulse", "--progress", PROGRESS,
                      f"--time={seconds + 6}s", "--doses=100us")
    running.wait_for_slices(200)
    stalled = running.launchers()[1]
    os.kill(stalled, signal.SIGSTOP)
    time.sleep(seconds)
    os.kill(stalled, signal.SIGCONT)
    status, said, document = running.end()
    assert status == 0 and document["complete"], said
    assert "h2: for" in said and "did not answer" in said, said
    first, second = document["fleet"]["hosts"]
    out = [i for i, one in enumerate(second["told"]) if one == "0"]
    assert len(out) * 5 > (seconds - 2.5) * 1000 / 2, len(out)  # ms
    back = max(re.finditer("0+", second["told"]), key=lambda run: run.end() - run.start()).end()
    assert "1" in second["told"][back:], "it has come back"
    assert all(first["told"][i] == "1" for i in out)
    assert sum(second["targets"][0]["delays"][i] for i in out) == 0


@alone
def test_a_link_that_stalls_ends_delays_there() -> None:
    stall(4)


@campaign
def test_a_link_that_stalls_for_10_s() -> None:
    stall(10)


def expect_straggler(ranks: Ranks, done: Fleet) -> None:
    """Who it is; of the others none is said to matter."""
    assert done.status == 0, done
    for name, slack, found in ranks.slacks(done):
        print(f"{name}: {found['verdict']}, slack {slack} us")
        if slack == 0:
            assert found["verdict"] == "matters" and found["criticality"]["high"] > 0.9, done
        else:
            assert found["verdict"] != "matters", done


@campaign
def test_the_straggler_of_four_ranks() -> None:
    ranks = Ranks(8000, 5000, 4000, 6000)
    expect_straggler(ranks, ranks.experiment(120))


@alone
def test_the_straggler_of_python_ranks() -> None:
    """As long as this host's noise makes necessary: a small slack is not ruled out at once."""
    ranks = Ranks(8000, 4000, python=True)
    straggler, other = (f"{ranks.where} @ {name}" for name in ranks.hosts.names)
    running = ranks.begin(330)
    wait_for(lambda: running.verdicts().get(straggler) == "matters" or running.process.poll() is not None,
             340, "who it is")
    running.process.send_signal(signal.SIGINT)
    _, said, document = running.end()
    found = {one["name"]: one for one in document["results"]["progress"][0]["targets"]}
    print(f"{len(document['sliced']['units'][0])} slices\n{said}")
    assert found[straggler]["verdict"] == "matters", said
    assert found[straggler]["criticality"]["high"] > 0.9, said
    assert found[other]["verdict"] != "matters", said


@campaign
def test_a_straggler_and_the_slack_of_eight_ranks() -> None:
    ranks = Ranks(4000, 2800, 2600, 2400, 3000, 2200, 2700, 2000)
    done = ranks.experiment(240)
    expect_straggler(ranks, done)
    for name, slack, found in ranks.slacks(done):
        if slack == 0:
            continue
        assert found["shape"] == "hinge" and found["verdict"] == "hidden", done
        print(f"{name}: slack {slack_us(found):.0f} us, of {slack}")
        assert abs(slack_us(found) / slack - 1) < 0.05, done
    page = Cells(done.html_path.read_text())
    rendered, asked = browse(need("chromium"), f"file://{done.html_path}")
    shown = Cells(rendered)
    assert not asked and page.canvases <= shown.canvases, asked
    for number in range(1, 9):
        assert f"h{number}" in shown.cells, shown.cells


if __name__ == "__main__":
    main(globals())
