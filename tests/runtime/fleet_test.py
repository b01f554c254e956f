# SPDX-License-Identifier: MIT
"""speedbump experiment --at: one schedule on many hosts, which are network namespaces with an SSH
server each (hosts.py)."""

import contextlib
import json
import os
import pathlib
import re
import signal
import subprocess
import time
import urllib.request

from browser import Cells, browse
from harness import (
    PROGRAMS, SPEEDBUMP, Patience, Run, Skip, campaign, changed_bytes, children, cpu_ns, environment,
    expect_restored, leave_none, lives, main, need, scratch, start_puppet, targets_file, wait_for,
)
from hosts import Hosts, at, pid_of
from known_experiments import PROGRESS, WithDocument

SERVICE = str(PROGRAMS / "pulse")
SHORT = ("--max-slowdown=400%", "--seed=7")
AHEAD = 50_000_000  # ns, of a clock in tests


def serving(count: int) -> tuple[Hosts, list[int]]:
    """Hosts with a service each, and the PIDs of these here."""
    hosts = Hosts(count)
    return hosts, [pid_of(hosts.start(name, hosts.copy(name, SERVICE))) for name in hosts.names]


class Fleet(WithDocument):
    def __init__(self, hosts: Hosts, targets: str, *arguments: str, ahead: dict = {},
                 slice_ms: int = 5, **options):
        options.setdefault("timeout", 240)
        super().__init__("experiment", *at(hosts, **ahead), f"--slice={slice_ms}ms", *SHORT,
                         *arguments, targets_file(targets), **options)


class Started:
    """An experiment that runs on; its launchers."""

    def __init__(self, hosts: Hosts, targets: str, *arguments: str):
        self.json_path = scratch() / "result.json"
        self.process = subprocess.Popen(
            [SPEEDBUMP, "experiment", *at(hosts), f"--output={self.json_path}", "--slice=5ms", *SHORT,
             *arguments, "--live=0", targets_file(targets)],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment())
        leave_none(self._kill)
        said = self.process.stderr.readline()
        self._address = re.search(r"http://127\.0\.0\.1:\d+/[0-9a-f]{32}/", said)[0]

    def measured(self) -> int:
        with contextlib.suppress(OSError, ValueError):  # nothing is shown yet
            with urllib.request.urlopen(self._address + "data", timeout=10) as answer:
                return json.loads(answer.read()).get("slices", 0)
        return 0

    def wait_for_slices(self, count: int) -> None:
        wait_for(lambda: self.measured() >= count or self.process.poll() is not None, 90,
                 f"{count} slices")

    def _kill(self) -> None:
        for child in children(self.process.pid) if lives(self.process.pid) else []:
            with contextlib.suppress(ProcessLookupError):
                os.kill(child, signal.SIGCONT)
        self.process.kill()
        self.process.wait()

    def launchers(self) -> list[int]:
        return children(self.process.pid)

    def end(self) -> tuple[int, str, dict]:
        out, err = self.process.communicate(timeout=120)
        document = json.loads(self.json_path.read_text()) if self.json_path.stat().st_size else {}
        return self.process.returncode, out + err, document


def agents(hosts: Hosts) -> dict[str, list[int]]:
    """The agents that live, by host."""
    found = {name: [] for name in hosts.names}
    spaces = {os.readlink(f"/proc/{pid}/ns/pid"): name for name, pid in hosts.pids.items()}
    for entry in pathlib.Path("/proc").iterdir():
        with contextlib.suppress(OSError):
            words = (entry / "cmdline").read_bytes().split(b"\0")
            if words[:2] == [SPEEDBUMP.encode(), b"agent"]:
                name = spaces.get(os.readlink(entry / "ns/pid"))
                if name:
                    found[name].append(int(entry.name))
    return found


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
    assert status == 0 and document["complete"], said
    ended = [host.get("ended", "") for host in document["fleet"]["hosts"]]
    assert ended[1] and not ended[0] and not ended[2], ended
    assert "h2" in said and "go on without it" in said, said
    told = [sum(one == "1" for one in host["told"]) for host in document["fleet"]["hosts"]]
    assert told[0] > told[1] > 0 and told[0] == told[2], told


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
    assert second["told"][-1] == "1", "it has come back"
    assert all(first["told"][i] == "1" for i in out)
    assert sum(second["targets"][0]["delays"][i] for i in out) == 0


def test_a_link_that_stalls_ends_delays_there() -> None:
    stall(4)


@campaign
def test_a_link_that_stalls_for_10_s() -> None:
    stall(10)


def bsp(*times_us: int, seconds: int, slice_ms: int) -> Fleet:
    """A job of as many ranks, each on a host of its own, one slowed at a time."""
    program = PROGRAMS / "bsp"
    if not program.exists():
        raise Skip("Open MPI is not installed")
    hosts = Hosts(len(times_us))
    job = subprocess.Popen(
        [need("mpirun"), "--allow-run-as-root", "--oversubscribe", "-np", str(len(times_us)),
         "--host", ",".join(hosts.names), "--map-by", "node",
         "--mca", "plm_rsh_agent", " ".join(hosts.ssh), "--mca", "plm_rsh_no_tree_spawn", "1",
         "--mca", "btl", "tcp,self", "--mca", "pml", "ob1",
         "--mca", "btl_tcp_if_include", f"{hosts.net}.0/24",
         "--mca", "oob_tcp_if_include", f"{hosts.net}.0/24",
         str(program), str(seconds + 120), *map(str, times_us)],
        start_new_session=True, stdout=subprocess.DEVNULL)
    leave_none(lambda: (job.send_signal(signal.SIGTERM), job.wait()))
    wait_for(lambda: all(ranks(hosts).values()), 60, "a rank on each host")
    longest = max(times_us)
    return Fleet(hosts, "+exe:work_step\n", "--exe=bsp", "--where=each",
                 "--progress=min:native:exe:step_done", f"--time={seconds}s", "--precision=1%",
                 f"--doses={longest * 8 // 10}us", "--max-cpu=8", slice_ms=slice_ms,
                 timeout=seconds + 120)


def ranks(hosts: Hosts) -> dict[str, list[int]]:
    found = {name: [] for name in hosts.names}
    spaces = {os.readlink(f"/proc/{pid}/ns/pid"): name for name, pid in hosts.pids.items()}
    for entry in pathlib.Path("/proc").iterdir():
        with contextlib.suppress(OSError):
            if os.readlink(entry / "exe") == str(PROGRAMS / "bsp"):
                found.get(spaces.get(os.readlink(entry / "ns/pid")), []).append(int(entry.name))
    return found


def expect_straggler(done: Fleet, *times_us: int) -> None:
    longest = max(times_us)
    for number, time_us in enumerate(times_us, 1):
        found = done.target(f"+exe:work_step @ h{number}")
        if time_us == longest:
            assert found["verdict"] == "matters" and found["criticality"]["high"] > 0.9, done
            continue
        assert found["shape"] == "hinge" and found["verdict"] == "hidden", done
        slack = found["slack_ns"]["value"] / found["calls_per_unit"] / 1000
        print(f"h{number}: slack {slack:.0f} us, of {longest - time_us}")
        assert abs(slack / (longest - time_us) - 1) < 0.05, done


@campaign
def test_a_straggler_and_the_slack_of_eight_ranks() -> None:
    times = (4000, 2800, 2600, 2400, 3000, 2200, 2700, 2000)
    done = bsp(*times, seconds=240, slice_ms=20)
    assert done.status == 0, done
    expect_straggler(done, *times)
    page = Cells(done.html_path.read_text())
    rendered, asked = browse(need("chromium"), f"file://{done.html_path}")
    shown = Cells(rendered)
    assert not asked and page.canvases <= shown.canvases, asked
    for number in range(1, 9):
        assert f"h{number}" in shown.cells, shown.cells


if __name__ == "__main__":
    main(globals())
