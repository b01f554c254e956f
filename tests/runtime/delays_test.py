# SPDX-License-Identifier: MIT
"""What a call is slowed by, how often, when, and what the counters say."""

import fcntl
import json
import os
import platform
import select
import signal
import statistics
import subprocess
import time

from harness import (
    MS, SPEEDBUMP, KernelLog, Patience, Run, Session, await_counted, calls, calls_by_pid, cpu_ns,
    delayed, delays, expect_ratio, expect_slowed, expect_unslowed, main, need, scratch, start_puppet,
    targets_file, wait_for,
)

WORK = ("work_push", "work_nop", "work_step", "work_late")


def test_every_kind_of_site_and_delay_as_asked_net_of_the_probe() -> None:
    """By the program's own clocks: a call takes what was asked, not that and the probe."""
    # Of two functions with the same kind of site one is delayed, the other counted. What their probes
    # cost changes with the host, a single step's by half within a second where a virtual machine
    # monitor sees it; so they are called by turns, and what tells them apart is judged. While a call
    # spins others fill the caches: it may take as much more as an undelayed one after as long a spin.
    pairs = (("work_push", "work_late"), ("work_nop", "work_step"))
    by_floor: dict[str, list[tuple[float, float]]] = {}  # least and most cost of a session's kind, by its floor
    for delay_us, count in ((20, 100), (100, 50), (1000, 5), (100_000, 1)):
        for delayed_ones in zip(*pairs):
            counted_ones = [name for name in WORK if name not in delayed_ones]
            target = start_puppet()
            plain = {name: medians(target.cost(name, 1000)) for name in WORK}
            lines = [f"+exe:{name} delay={delay_us}us" for name in delayed_ones]
            lines += [f"+exe:{name} delay=0" for name in counted_ones]
            with Session("\n".join(lines), pid=target.pid) as session:
                kinds = {one["name"]: one["site"]["kind"] for one in session.matched["targets"]}
                floors = session.matched["floors_ns"]
                for slow, fast in ((a, b) if a in delayed_ones else (b, a) for a, b in pairs):
                    assert kinds[slow] == kinds[fast], kinds
                    floor = floors[kinds[slow]]
                    turns = [(medians(target.cost(slow, count)), medians(target.cost(fast, count)),
                              medians(target.cost(fast, count, delay_us * 1000)))
                             for _ in range(30 if count > 1 else 3)]
                    # Others that want the CPU make a call longer, and its CPU time shorter.
                    longer, shorter = (statistics.median(
                        (turn[0][clock] - plain[slow][clock]) - (turn[other][clock] - plain[fast][clock])
                        for turn in turns) - (delay_us * 1000 - floor) for other, clock in ((1, 0), (2, 1)))
                    print(f"  {slow} {delay_us} us: {longer / 1000:+.3f} us, "
                          f"{shorter / 1000:+.3f} us of CPU time, floor {floor / 1000:.3f} us")
                    slack = max(delay_us * 1000 * 0.03, floor / 2, 1500)
                    assert longer > -slack and shorter < slack, (slow, delay_us, longer, shorter)
                    if count < 50:
                        continue  # the first calls after a turn cost more
                    costs = [turn[1][0] - plain[fast][0] for turn in turns]
                    by_floor.setdefault(kinds[slow], []).append(
                        (min(costs) / floor, max(costs) / floor))
                session.stop()  # those of a killed session are in the next program's plain calls for a moment
            target.end()
    # A session has calibrated some time before its calls: where the host was another by then, that
    # tells nothing of the floor.
    for kind, bounds in by_floor.items():
        least, most = (statistics.median(ends) for ends in zip(*bounds))
        assert least < 2 and most > 0.5, (kind, bounds)


def medians(costs: list[tuple[int, int]]) -> tuple[float, float]:
    """Of the time and of the CPU time of each call."""
    return tuple(statistics.median(one[clock] for one in costs) for clock in (0, 1))


def test_delay_of_ten_seconds_without_complaint_of_the_kernel() -> None:
    target = start_puppet()
    with KernelLog(), Session("+exe:work_push delay=10s", pid=target.pid) as session:
        expect_ratio(target.call("work_push", 1), 10_000 * MS, 0.999, 1.05, "ns of the call")
        final = session.stop()
    expect_ratio(final["all"]["measured_ns"], 10_000 * MS, 0.999, 1.05, "ns measured")
    target.end()


def test_counters_are_exact_and_delay_zero_only_counts() -> None:
    target = start_puppet()
    with Session("+exe:work_* delay=0", pid=target.pid) as session:
        expected = {name: 1000 + 7 * index for index, name in enumerate(WORK)}
        for name, count in expected.items():
            target.call(name, count)
        final = session.stop()
    for name, count in expected.items():
        assert calls(final, name) == count, (name, count, final)
        assert delays(final, name) == 0
    assert final["all"]["requested_ns"] == 0
    target.end()


def test_counters_tell_processes_and_threads_apart() -> None:
    parent = start_puppet()
    with Session("+exe:work_push delay=10us", pid=parent.pid) as session:
        one, two = parent.offspring("child"), parent.offspring("child")
        began = time.monotonic_ns()
        of_one = 22 + await_counted(session, one, "work_push")
        of_two = 300 + await_counted(session, two, "work_push")
        parent.call("work_push", 11)
        one.call("work_push", 22)
        two.ask("threads 3 work_push 100")
        took = time.monotonic_ns() - began
        final = session.stop()
    of_each = {parent.pid: 11, one.pid: of_one, two.pid: of_two}
    assert calls_by_pid(final, "work_push") == of_each, final
    requested = sum(of_each.values()) * 10_000
    assert final["all"]["requested_ns"] == requested
    # As long as others want the CPU in the midst of a delay it lasts; three at a time.
    assert 0.99 * requested <= final["all"]["measured_ns"] <= 3 * took, (final["all"], took)


def test_every_nth_is_exact_over_the_tree() -> None:
    parent = start_puppet()
    with Session("+exe:work_push delay=50us every=10", pid=parent.pid) as session:
        child = parent.offspring("child")
        before = await_counted(session, child, "work_push")
        child.send("threads 4 work_push 1001")
        parent.call("work_push", 996 - before)
        child.hear()
        final = session.stop()
    assert calls(final, "work_push") == 5000
    assert delays(final, "work_push") == 500


def test_every_nth_call_of_one_thread() -> None:
    target = start_puppet()
    with Session("+exe:work_push delay=5ms every=4", pid=target.pid) as session:
        slow = delayed(target, "work_push", 5 * MS, 40)
        final = session.stop()
    assert calls(final, "work_push") == 40 and delays(final, "work_push") == 10, final
    wrong = [one for one, right in zip(slow, [False, False, False, True] * 10)
             if one not in (right, None)]
    assert not wrong, slow


def test_start_and_duration_of_a_line() -> None:
    """Slowed from 1 s after arming, for 1 s."""
    target = start_puppet()
    with Session("+exe:work_push delay=2ms start=1s duration=1s", pid=target.pid) as session:
        slow, times = [], []
        ends = time.time() + 2.6
        while time.time() < ends:
            before = time.time()
            slow += delayed(target, "work_push", 2 * MS, 1)
            times.append((before, time.time()))
            time.sleep(0.005)
        samples = [one for one in session.documents if one["type"] == "sample"]
        final = session.stop()
    armed = statistics.median(
        (one["time_unix_ns"] - one["since_armed_ns"]) / 1e9 for one in samples
    )
    # A call began between `before` and `after`; the loader reads its two clocks not at once.
    begins, ends = armed + 1, armed + 2
    within = [begins + 0.01 < before and after < ends - 0.01 for before, after in times]
    outside = [after < begins - 0.01 or before > ends + 0.01 for before, after in times]
    assert any(within) and outside[-1], (armed, times)
    assert not any(one for one, out in zip(slow, outside) if out), (armed, times, slow)
    # Of those within by their number: one that lost its CPU while delayed looks as if it had waited.
    assert calls(final, "work_push") == len(times)
    assert sum(within) <= delays(final, "work_push") <= len(times) - sum(outside), final


def test_duration_of_the_command_ends_it() -> None:
    target = start_puppet()
    session = Session("+exe:work_push", "--delay=1ms", "--duration=1s", pid=target.pid)
    expect_slowed(target, "work_push", MS)
    final = session.wait()
    assert final["reason"] == "duration"
    # By the loader's clock: how long it takes to start is a matter of the host.
    expect_ratio(final["since_armed_ns"], 1000 * MS, 0.9, 3.0, "ns from arming until the end")
    expect_unslowed(target, "work_push", MS)


def test_options_of_the_command_are_for_lines_that_set_none() -> None:
    target = start_puppet()
    with Session(
        "+exe:work_push\n+exe:work_nop delay=2ms\n", "--delay=400us", "--every=1", pid=target.pid
    ):
        expect_slowed(target, "work_push", 400_000)
        expect_slowed(target, "work_nop", 2 * MS)


def test_last_line_decides_and_excludes() -> None:
    target = start_puppet()
    with Session(
        "+exe:work_* delay=1ms\n+exe:work_nop delay=3ms\n!+exe:work_step\n", pid=target.pid
    ):
        expect_slowed(target, "work_push", MS)
        expect_slowed(target, "work_nop", 3 * MS)
        expect_unslowed(target, "work_step", MS)


def test_delay_below_the_floor_is_reported() -> None:
    target = start_puppet()
    with Session("+exe:work_step delay=10ns\n+exe:work_push delay=1ms", pid=target.pid) as session:
        below = {one["name"]: one["below_floor"] for one in session.matched["targets"]}
    assert below == {"work_step": True, "work_push": False}


def test_two_sessions_on_one_function_add_up() -> None:
    target = start_puppet()
    with Session("+exe:work_push delay=1ms", pid=target.pid) as first:
        with Session("+exe:work_push delay=2ms", pid=target.pid) as second:
            expect_slowed(target, "work_push", 3 * MS)
            target.call("work_push", 5)
            final = second.stop()
        expect_slowed(target, "work_push", MS)
        assert calls(first.stop(), "work_push") > calls(final, "work_push")
    expect_unslowed(target, "work_push", MS)


def test_paused_session_delays_nothing() -> None:
    target = start_puppet()
    with Session("+exe:work_push delay=1ms", "--paused", pid=target.pid) as session:
        expect_unslowed(target, "work_push", MS)
        assert session.stop()["all"]["delays"] == 0


def end_of_spin(end) -> None:
    """A call of 10 s is over soon after `end`, and has used next to no CPU by then but while the
    loader, which ends it or dies of that, or this test, which asks for it, waited for one. Also where
    the loader still takes the probes out that it has tried itself with, and waits in the kernel until
    nobody is in a probe."""
    for pause in (0, 0.005, 0.02, 0.1, 0.3):
        target = start_puppet()
        # One that follows no children looks for no others that map the file, and moves no probes, which it
        # may be doing just then.
        with Session("+exe:work_push delay=10s", "--no-children", pid=target.pid) as session:
            before = cpu_ns(target.pid)
            target.send("call work_push 1")
            while cpu_ns(target.pid) < before + 5 * MS:
                time.sleep(0.001)
            time.sleep(pause)
            waiting = Patience(session.process.pid, os.getpid())
            start, used = time.monotonic(), cpu_ns(target.pid)
            used_at_the_end = end(session, target)
            spent, used = time.monotonic() - start, used_at_the_end - used
            # Of one that has ended too: nobody has asked for its status yet.
            waited = waiting.ns() + waiting.stolen_ns()
        print(f"  {spent * 1000:.1f} ms until the end, {used / MS:.1f} ms of CPU time, "
              f"the loader and this waited {waited / MS:.1f} ms")
        # The kernel counts a running thread's time by ticks of 4 ms or 10 ms.
        assert used < 20 * MS + waited and spent < 5, (used, waited, spent)


def test_sigkill_of_the_target_ends_a_spin() -> None:
    def end(session: Session, target) -> int:
        target.process.send_signal(signal.SIGKILL)
        os.waitid(os.P_PID, target.pid, os.WEXITED | os.WNOWAIT)
        used = cpu_ns(target.pid)
        target.process.wait()
        return used

    end_of_spin(end)


def test_ctrl_c_ends_a_spin() -> None:
    def end(session: Session, target) -> int:
        session.process.send_signal(signal.SIGINT)
        target.hear()
        return cpu_ns(target.pid)

    end_of_spin(end)


def test_sigkill_of_the_loader_ends_a_spin() -> None:
    def end(session: Session, target) -> int:
        session.process.send_signal(signal.SIGKILL)
        target.hear()
        return cpu_ns(target.pid)

    end_of_spin(end)


PYTHON_PUPPET = """
import sys
def turn(): pass
print("ready", flush=True)
for line in sys.stdin:
    turn()
    print("done", flush=True)
"""


def is_armed(loader: subprocess.Popen) -> bool:
    assert loader.poll() is None, loader.stderr.read()
    status = Run("status", str(loader.pid), "--json")
    return status.status == 0 and json.loads(status.out)["armed"]


def test_a_session_goes_on_and_ends_while_nobody_reads_its_output() -> None:
    """A pager that stands still, a terminal after Ctrl-S."""
    puppet = start_puppet()
    python = subprocess.Popen([need("/usr/bin/python3"), "-c", PYTHON_PUPPET], stdin=subprocess.PIPE,
                              stdout=subprocess.PIPE, text=True)
    assert python.stdout.readline() == "ready\n"
    engines = [(puppet.pid, "+exe:work_push delay=10s", ["--engine=bpf"]),
               (python.pid, "__main__:turn delay=10s", [])]
    if platform.machine() == "x86_64":
        engines.append((puppet.pid, "+exe:work_push delay=10s", ["--engine=inprocess"]))
    for pid, targets, options in engines:
        output, input = os.pipe()
        fcntl.fcntl(input, fcntl.F_SETPIPE_SZ, 4096)
        loader = subprocess.Popen([SPEEDBUMP, "attach", "--json", "--stats=10ms", *options,
                                   "--pid", str(pid), targets_file(targets)],
                                  stdout=input, stderr=subprocess.PIPE, text=True)
        room = select.poll()
        room.register(input, select.POLLOUT)
        wait_for(lambda: not room.poll(0) or loader.poll() is not None, 60, "a pipe that is full")
        # Its first line may fill the pipe, which has one page, and that one comes before all works.
        wait_for(lambda: is_armed(loader), 60, "a session that delays")
        os.close(input)
        used = cpu_ns(pid)
        if pid == puppet.pid:
            puppet.send("call work_push 1")
        else:
            print("go", file=python.stdin, flush=True)
        wait_for(lambda: cpu_ns(pid) > used + 5 * MS, 30, "the spin")
        time.sleep(0.1)  # samples are due
        live = json.loads(Run("status", str(loader.pid), "--json").out)
        assert live["armed"] and live["targets"][0]["calls"] == 1, live
        begun = time.monotonic()
        loader.send_signal(signal.SIGINT)
        answer = puppet.hear() if pid == puppet.pid else python.stdout.readline()
        spent = time.monotonic() - begun
        print(f"  {targets} {' '.join(options)}: {spent:.4f} s")
        assert answer and spent < 5, (targets, options, answer, spent)
        with os.fdopen(output) as reader:
            last = json.loads(reader.read().splitlines()[-1])
        assert last["type"] == "final" and last["reason"] == "interrupted", last
        assert loader.wait(timeout=60) == 0
    python.kill()
    python.wait()


def test_delays_of_threads_take_the_time_of_one() -> None:
    target = start_puppet()
    with Session("+exe:work_push delay=2ms", pid=target.pid):
        # One moment in which both threads have a CPU is enough to see that neither waits for the
        # other.
        spent = min(int(target.ask("threads 2 work_push 1")) for _ in range(100))
    expect_ratio(spent, 2 * MS, 0.97, 1.6, "ns of 2 delays in 2 threads")


def test_fallbacks_delay_as_well() -> None:
    for without in ("uprobe_multi", "sleepable", "uprobe_multi_pid", "uprobe_multi,sleepable",
                    "nop5"):
        target = start_puppet()
        with Session("+exe:work_* delay=1ms", pid=target.pid, without=without) as session:
            for name in WORK:
                expect_slowed(target, name, MS)
            before = sum(target.call(name, 10) > 0 for name in WORK)
            target.ask("threads 2 work_push 10")
            assert before == len(WORK)
            final = session.stop()
        assert calls(final, "work_nop") % 10 == 0 and calls(final, "work_push") >= 50, final
        expect_unslowed(target, "work_push", MS)
        target.end()


def test_probes_of_old_kernels_are_made_in_few_processes() -> None:
    """Each process in which probes are made is a fork of the loader (user/engine/shielded.cpp)."""
    target = start_puppet()
    log = scratch() / "calls"
    done = Run("attach", "--json", "--duration=50ms", "--pid", str(target.pid),
               targets_file("+exe:* delay=0ns"), without="uprobe_multi",
               before=[need("strace"), "-f", "-qq", "-o", str(log), "-e", "trace=clone3"])
    assert done.status == 0, done
    probed = len(json.loads(done.out.splitlines()[0])["targets"])
    made = sum("clone3({" in line and "CLONE_FILES" in line and "CLONE_THREAD" not in line
               for line in log.read_text(errors="replace").splitlines())
    print(f"  {probed} probes, {made} processes")
    # The three probes of the calibration are made one by one, and what takes probes out counts too.
    assert probed > 20 and 0 < made < probed / 2, (probed, made, done)
    target.end()


if __name__ == "__main__":
    main(globals())
