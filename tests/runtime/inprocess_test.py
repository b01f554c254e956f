# SPDX-License-Identifier: MIT
"""--engine=inprocess: jumps in programs that check their own results (tests/programs/tormented)."""

import os
import platform
import random
import signal
import subprocess
import time

from harness import (
    PROGRAMS, SPEEDBUMP, Run, Session, Skip, calls, calls_by_pid, campaign, changed_bytes,
    delays, expect_restored, main, start_puppet, targets_file, wait_for,
)

TORMENTED = str(PROGRAMS / "tormented")
ENGINE = "--engine=inprocess"
MODES = ("loop", "threads", "alarm", "altstack", "throw", "longjmp", "fork", "vfork", "spawn", "sleep")
CYCLES = 1000  # of each mode, in the campaign
os.environ["SPEEDBUMP_UNPROVEN"] = "inprocess"  # these programs may be lost


def start():
    if platform.machine() != "x86_64":
        raise Skip("the in-process engine is for x86-64")
    return start_puppet(TORMENTED)


def expect_right(target) -> int:
    """How many results there were."""
    verdict, count = target.ask("check").split()
    assert verdict == "right", f"a result of process {target.pid} is wrong"
    return int(count)


def expect_work_goes_on(target) -> None:
    before = expect_right(target)
    wait_for(lambda: expect_right(target) > before, 20, "more results")


def leftover_mappings(pid: int) -> int:
    with open(f"/proc/{pid}/maps") as maps:
        return sum("/memfd:speedbump-" in line for line in maps)


def test_calls_are_delayed_and_counted_and_code_is_restored() -> None:
    target = start()
    with Session("+exe:hot_mix delay=20us", ENGINE, pid=target.pid) as session:
        (site,) = [one["site"]["kind"] for one in session.matched["targets"]]
        assert site == "jump", session.matched
        assert changed_bytes(target.pid) in range(3, 6)
        begun = time.monotonic()
        assert target.ask("call 1000") == "done"
        assert time.monotonic() - begun > 1000 * 20e-6
        final = session.stop()
    assert calls(final, "hot_mix") == delays(final, "hot_mix") == 1000, final
    (row,) = final["targets"]
    assert row["requested_ns"] == 1000 * 20_000, row
    assert changed_bytes(target.pid) == 0 and leftover_mappings(target.pid) == 0
    assert target.ask("call 1000") == "done"


def test_nobody_gets_it_without_asking_twice() -> None:
    target = start()
    run = Run("attach", ENGINE, "--duration=1s", "--pid", str(target.pid),
              targets_file("+exe:hot_mix"), before=["env", "-u", "SPEEDBUMP_UNPROVEN"])
    assert run.status != 0 and "the in-process engine is not proven safe" in run.err, run
    assert changed_bytes(target.pid) == 0


def test_what_is_refused_is_refused_by_name() -> None:
    target = start()
    for targets, arguments, reason in (
        ("+exe:hot_mix every=2", (), "it delays each call"),
        ("+exe:hot_mix", ("--cgroup=/",), "it knows processes, no cgroups"),
    ):
        pid = () if "--cgroup=/" in arguments else ("--pid", str(target.pid))
        run = Run("attach", ENGINE, "--duration=1s", *pid, *arguments, targets_file(targets))
        assert run.status != 0 and reason in run.err, run
    tracer = subprocess.Popen(["strace", "-qqp", str(target.pid)], stderr=subprocess.DEVNULL)
    try:
        wait_for(lambda: "TracerPid:\t0" not in open(f"/proc/{target.pid}/status").read(), 10,
                 "the tracer")
        run = Run("attach", ENGINE, "--duration=1s", "--pid", str(target.pid),
                  targets_file("+exe:hot_mix"))
        assert run.status != 0 and "is traced by process" in run.err, run
    finally:
        tracer.terminate()
        tracer.wait()
    assert changed_bytes(target.pid) == 0
    expect_right(target)


def test_children_count_and_are_restored_as_well() -> None:
    target = start()
    with Session("+exe:hot_mix delay=1us", ENGINE, pid=target.pid) as session:
        target.ask("call 100")
        child = int(target.ask("fork"))
        assert changed_bytes(child) > 0
        target.ask("call 200")  # in the child
        final = session.stop()
    assert calls(final, "hot_mix") == 300, final
    assert calls_by_pid(final, "hot_mix").get(target.pid) == 100, final
    assert changed_bytes(child) == 0 and changed_bytes(target.pid) == 0
    target.send("end")
    assert target.hear() == "ended"


def test_a_second_session_finds_the_code_changed() -> None:
    target = start()
    with Session("+exe:hot_mix delay=1us", ENGINE, pid=target.pid):
        run = Run("attach", ENGINE, "--duration=1s", "--pid", str(target.pid), "--missing=ignore",
                  targets_file("+exe:hot_mix"))
        assert "somebody else's breakpoint or hook" in run.out + run.err, run
        with Session("+exe:hot_mix delay=1us", "--engine=bpf", pid=target.pid) as other:
            target.ask("call 100")
            assert calls(other.stop(), "hot_mix") == 100
    expect_restored(target.pid)
    expect_right(target)


def test_breakpoints_come_and_go_where_a_jump_is_led_elsewhere() -> None:
    """At an entry, as others put them: in each order of coming and going."""
    target = start()
    target.ask("begin loop")
    for goes_first in (0, 1):
        jumps = Session("+exe:hot_thunk delay=0ns", ENGINE, pid=target.pid)
        probes = Session("+exe:hot_thunk delay=0ns", "--engine=bpf", "--entry-only", pid=target.pid)
        expect_work_goes_on(target)
        both = [jumps, probes]
        assert calls(both.pop(goes_first).stop(), "hot_thunk") > 0
        expect_work_goes_on(target)
        both[0].stop()
        expect_restored(target.pid)
        assert leftover_mappings(target.pid) == 0
        expect_work_goes_on(target)


def test_delays_end_with_the_loader_and_the_code_is_restored() -> None:
    target = start()
    target.ask("begin loop")
    with Session("+exe:hot_* delay=1ms", ENGINE, pid=target.pid) as session:
        session.kill()
    expect_restored(target.pid)
    expect_work_goes_on(target)


def cycles(mode: str, count: int) -> None:
    """Attaches and detaches while the program works."""
    target = start()
    target.ask(f"begin {mode}")
    for _ in range(count):
        with Session("+exe:hot_* delay=1us", ENGINE, pid=target.pid) as session:
            expect_work_goes_on(target)
            session.stop()
        assert changed_bytes(target.pid) == 0 and leftover_mappings(target.pid) == 0
    expect_work_goes_on(target)
    target.kill()


def test_patching_what_runs_changes_no_result() -> None:
    for mode in MODES:
        cycles(mode, 1)
    print(f"  {len(MODES)} cycles")


def kills(mode: str, count: int) -> None:
    """SIGKILL at a random moment of the loader's life."""
    target = start()
    target.ask(f"begin {mode}")
    path = targets_file("+exe:hot_* delay=1us")
    draw = random.Random(int(os.environ.get("SPEEDBUMP_SEED", "1")))
    for _ in range(count):
        loader = subprocess.Popen([SPEEDBUMP, "attach", "-q", ENGINE, "--pid", str(target.pid), path],
                                  stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        time.sleep(draw.random() * 1.5)
        loader.send_signal(signal.SIGKILL)
        loader.wait()
        expect_restored(target.pid)
        expect_work_goes_on(target)
    target.kill()


@campaign  # a kill while memory is mapped leaves bytes in the padding: docs/inprocess.md
def test_killed_at_random_moments() -> None:
    mode = random.Random(int(os.environ.get("SPEEDBUMP_SEED", "1"))).choice(MODES)
    kills(mode, 5)
    print("  5 kills")


@campaign
def test_campaign_of_cycles() -> None:
    for mode in MODES:
        cycles(mode, CYCLES)
        print(f"  {mode}: {CYCLES} cycles", flush=True)


@campaign
def test_campaign_of_kills() -> None:
    for mode in MODES:
        kills(mode, CYCLES // 10)
        print(f"  {mode}: {CYCLES // 10} kills", flush=True)


if __name__ == "__main__":
    main(globals())
