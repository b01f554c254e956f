# SPDX-License-Identifier: MIT
"""--engine=inprocess: jumps in programs that check their own results (tests/programs/tormented)."""

import contextlib
import fcntl
import os
import random
import signal
import struct
import subprocess
import time

from harness import (
    LIBRARY, MS, PROGRAMS, PUPPET, SPEEDBUMP, Run, Session, Skip, as_nobody, calls, calls_by_pid,
    calls_now, campaign, changed_bytes, children, cpu_ns, delays, expect_restored, expect_slowed, expect_unslowed, main,
    need_jumps, on_each_clock, readable, scratch, start_puppet, targets_file, wait_for,
)
from services import need

TORMENTED = str(PROGRAMS / "tormented")
ENGINE = "--engine=inprocess"
MODES = ("loop", "threads", "alarm", "altstack", "nested", "throw", "longjmp", "context", "fork",
         "vfork", "spawn", "library", "sleep")
KILLS = 100  # of each mode, in the campaign


def start():
    need_jumps()
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


def regions(pid: int) -> set[str]:
    """Where the counters of the jumps in a process lie, by the inode of their memory."""
    with open(f"/proc/{pid}/maps") as maps:
        return {line.split()[4] for line in maps if "/memfd:speedbump-counts" in line}


@on_each_clock
def test_calls_are_delayed_and_counted_and_code_is_restored() -> None:
    target = start()
    with Session("+exe:hot_mix delay=20us", ENGINE, pid=target.pid) as session:
        (site,) = [one["site"]["kind"] for one in session.matched["targets"]]
        assert site == "jump" and session.matched["engine"] == "inprocess", session.matched
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


def unprivileged() -> dict:
    """How a command is run by user nobody, who has no capabilities."""
    folder = scratch()
    os.chown(folder, 65534, 65534)
    folder.chmod(0o700)
    return {"before": [*as_nobody(), "env", f"XDG_RUNTIME_DIR={folder}"],
            "program": readable(SPEEDBUMP)}


def soon_slowed(target, name: str) -> None:
    """Once the tree has been looked at."""
    wait_for(lambda: target.call(name, 3) > 0.95 * MS, 20, f"slow calls of {name}")


def test_without_any_rights_processes_of_ones_own_are_slowed_and_followed() -> None:
    need_jumps()
    puppet = readable(PUPPET)
    target = start_puppet(puppet, before=as_nobody())
    with Session("+exe:work_push delay=1ms\n+libslowlib.so:lib_work delay=1ms", ENGINE,
                 pid=target.pid, **unprivileged()) as session:
        assert sum("looked at in /proc" in line for line in session.warnings) == 1, session.warnings
        expect_slowed(target, "work_push", MS)
        child = target.offspring("child")
        expect_slowed(child, "work_push", MS)  # it has the jumps with its memory
        soon_slowed(child.offspring("child"), "work_push")
        library = readable(LIBRARY)
        target.ask(f"load {library}")
        soon_slowed(target, "lib_work")
        assert target.ask(f"exec {puppet}").startswith("ready")
        soon_slowed(target, "work_push")
        final = session.stop()
    counted = calls_by_pid(final, "work_push")
    # Children that have the jumps with their memory count together.
    assert counted[target.pid] > 0 and counted[0] > 0 and calls(final, "lib_work") >= 3, final
    for one in (target, child):
        expect_restored(one.pid)
        assert leftover_mappings(one.pid) == 0


def test_without_any_rights_other_processes_are_refused_and_what_bpf_counts() -> None:
    need_jumps()
    others = start_puppet()
    own = start_puppet(readable(PUPPET), before=as_nobody())
    done = Run("attach", ENGINE, "--duration=1s", "--pid", str(others.pid),
               targets_file("+exe:work_push"), **unprivileged())
    assert done.status == 4 and "without root only your own processes" in done.err, done
    for point in ("latency:exe:work_nop", "syscall:write"):
        done = Run("experiment", ENGINE, "--pid", str(own.pid), "--progress", point, "--time=1s",
                   targets_file("+exe:work_push"), **unprivileged())
        assert done.status == 4 and f"progress point {point}: " in done.err, done
        assert "it is counted by BPF programs" in done.err, done
    done = Run("experiment", ENGINE, "--pid", str(own.pid), "--progress", "native:exe:nonesuch",
               "--time=1s", targets_file("+exe:work_push"), **unprivileged())
    assert done.status == 1 and "nonesuch: is in none of the processes" in done.err, done
    for one in (others, own):
        expect_restored(one.pid)


def test_without_any_rights_a_loader_that_is_killed_leaves_nothing() -> None:
    need_jumps()
    target = start_puppet(readable(PUPPET), before=as_nobody())
    with Session("+exe:work_push delay=1ms", ENGINE, pid=target.pid, **unprivileged()) as session:
        expect_slowed(target, "work_push", MS)
        session.process.kill()
        wait_for(lambda: changed_bytes(target.pid) == 0, 20, "the code of the file")
    expect_unslowed(target, "work_push", MS)


def test_what_is_refused_is_refused_by_name() -> None:
    target = start()
    for targets, arguments, reason in (
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


@on_each_clock
def test_each_nth_call_is_delayed_counted_over_the_tree() -> None:
    target = start()
    with Session("+exe:hot_mix delay=5us every=4", ENGINE, pid=target.pid) as session:
        target.ask("call 102")
        target.ask("fork")
        target.ask("call 202")  # in the child
        final = session.stop()
    assert calls(final, "hot_mix") == 304, final
    assert delays(final, "hot_mix") == 76, final  # and not 25 + 50
    (row,) = final["targets"]
    assert row["requested_ns"] == 76 * 5_000, row
    target.send("end")
    assert target.hear() == "ended"


@on_each_clock
def test_a_delay_that_sleeps_ends_on_time_and_leaves_the_cpu_to_others() -> None:
    target = start()
    with Session("+exe:hot_mix delay=5ms mode=sleep", ENGINE, pid=target.pid) as session:
        used, begun = cpu_ns(target.pid), time.monotonic_ns()
        assert target.ask("call 100") == "done"
        used, took = cpu_ns(target.pid) - used, time.monotonic_ns() - begun
        final = session.stop()
    (row,) = final["targets"]
    assert row["mode"] == "sleep" and row["delays"] == 100, final
    assert row["measured_ns"] >= row["requested_ns"] == 100 * 5 * MS, row
    assert took >= 100 * 5 * MS and used < took / 4, (used, took)
    expect_restored(target.pid)


def test_a_delay_that_sleeps_ends_with_the_loader() -> None:
    target = start()
    with Session("+exe:hot_mix delay=10s mode=sleep", ENGINE, pid=target.pid) as session:
        target.send("call 2")
        time.sleep(0.5)
        begun = time.monotonic()
        session.kill()
        assert target.hear() == "done"
        assert time.monotonic() - begun < 5
    expect_restored(target.pid)
    expect_right(target)


def called(target, line: str, *asks: str) -> int:
    """How many calls of hot_mix a session counts and delays while these are made."""
    with Session(f"+exe:hot_mix delay=20us {line}", ENGINE, pid=target.pid) as session:
        for ask in asks:
            assert target.ask(ask) == "done", ask
        final = session.stop()
    expect_restored(target.pid)
    assert leftover_mappings(target.pid) == 0
    assert calls(final, "hot_mix") == delays(final, "hot_mix"), final
    return calls(final, "hot_mix")


def test_calls_of_some_functions_alone() -> None:
    target = start()
    asks = "from caller_one 100", "from caller_two 30", "call 7"
    for caller, expected in (("caller_one", 100), ("caller_*", 130), ("caller_t?o", 30),
                             ("[!c]*", 7), ("*", 137)):
        assert called(target, f"caller={caller}", *asks) == expected, caller
    with Session("+exe:hot_mix caller=nobody delay=20us", ENGINE, pid=target.pid) as session:
        assert any("caller=nobody names no function" in text for text in session.warnings), session
    expect_right(target)


def test_callers_in_a_library_of_later_and_in_children() -> None:
    target = start()
    with Session("+exe:hot_mix caller=lib_calls delay=20us", ENGINE, pid=target.pid) as session:
        assert target.ask("from lib_calls 1") == "done"
        # The next look finds the library.
        def is_known() -> bool:
            target.ask("from lib_calls 1")
            return calls_now(session, "hot_mix") > 0
        wait_for(is_known, 20, "calls from the library")
        before = calls_now(session, "hot_mix")
        assert target.ask("from lib_calls 50") == target.ask("from caller_one 50") == "done"
        child = int(target.ask("fork"))
        assert target.ask("from lib_calls 20") == target.ask("from caller_one 20") == "done"
        final = session.stop()
    assert calls(final, "hot_mix") == before + 70, (before, final)
    expect_restored(target.pid)
    expect_restored(child)


def test_calls_of_some_threads_alone() -> None:
    target = start()
    asks = "named worker-1 100", "named worker-2 30", "named other 7", "call 11"
    for thread, expected in (("worker-1", 100), ("worker-*", 130), ("worker-[!1]", 30),
                             ("other", 7), ("tormented", 11), ("*", 148), ("none", 0)):
        assert called(target, f"thread={thread}", *asks) == expected, thread
    with Session("+exe:hot_mix delay=20us thread=new*", ENGINE, pid=target.pid) as session:
        for name, expected in (("new-1", 10), ("old", 0), ("new-2", 10)):
            assert target.ask(f"rename {name}") == "done"
            before = calls_now(session, "hot_mix")
            assert target.ask("call 10") == "done"
            assert calls_now(session, "hot_mix") - before == expected, name
    assert called(target, "thread=worker-* caller=caller_two", *asks) == 0
    assert called(target, "caller=caller_one thread=*-2", *asks) == 30
    expect_right(target)


def test_what_only_this_engine_does_is_refused_elsewhere() -> None:
    target = start()
    for option in ("caller=main", "thread=worker"):
        for line, arguments, reason in (
            (f"+exe:hot_mix {option}", ("--engine=bpf",), "only the in-process engine can do"),
            (f"m:f {option}", (ENGINE,), "is for native functions, not for those of Python"),
        ):
            for command in (("attach", "--duration=1s"), ("check",)):
                run = Run(*command, "--pid", str(target.pid), *arguments, targets_file(line))
                assert run.status == 2 and reason in run.err, run


def test_delays_that_sleep_are_refused_where_there_are_none() -> None:
    target = start()
    for targets, arguments, reason in (
        ("+exe:hot_mix mode=sleep", ("--engine=bpf",), "only the in-process engine"),
        ("+exe:hot_mix mode=sleep", (), "only the in-process engine"),
        ("@mode=sleep\n+exe:hot_mix\nm:f", (ENGINE,), "line 3: mode=sleep is for native functions"),
    ):
        for command in (("attach", "--duration=1s"), ("check",)):
            run = Run(*command, "--pid", str(target.pid), *arguments, targets_file(targets))
            assert run.status == 2 and reason in run.err, run
    run = Run("check", "--pid", str(target.pid), ENGINE, targets_file("+exe:hot_mix mode=sleep"))
    assert run.status == 0, run


@on_each_clock
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


IN_ANOTHER_TIME = ["--time", "--monotonic", "100000", "--fork", "--kill-child"]


@on_each_clock
def test_windows_hold_in_time_namespaces() -> None:
    """Of the target, of the loader, of both."""
    need_jumps()
    elsewhere = [need("unshare"), *IN_ANOTHER_TIME]
    for of_target, of_loader in ((elsewhere, []), ([], elsewhere), (elsewhere, elsewhere)):
        target = start_puppet(TORMENTED, before=of_target)
        pid = children(target.pid)[0] if of_target else target.pid
        with Session("+exe:hot_mix delay=20us duration=2s", ENGINE, "--duration=4s", pid=pid,
                     before=of_loader) as session:
            target.ask("call 100")
            time.sleep(2.5)
            target.ask("call 100")
            final = session.wait()
        assert calls(final, "hot_mix") == 200, final
        assert delays(final, "hot_mix") == 100, final
        expect_restored(pid)


def test_children_in_another_time_namespace() -> None:
    os.environ["SPEEDBUMP_WITHOUT"] = "tsc"
    try:
        target = start()
        target.ask("timens")
        run = Run("attach", ENGINE, "--duration=1s", "--pid", str(target.pid),
                  targets_file("+exe:hot_mix"))
        assert "has another time namespace for its children" in run.err, run
        assert changed_bytes(target.pid) == 0
        # One that asks for it later has children that get jumps of their own.
        target = start()
        with Session("+exe:hot_mix delay=20us duration=60s", ENGINE, pid=target.pid) as session:
            target.ask("timens")
            child = int(target.ask("fork"))
            wait_for(lambda: regions(child).isdisjoint(regions(target.pid))
                     and changed_bytes(child) in range(3, 6), 20, "jumps that go by its own clock")
            target.ask("call 100")
            final = session.stop()
        assert calls_by_pid(final, "hot_mix") == {child: 100}, final
        assert delays(final, "hot_mix") == 100, final
        expect_restored(child)
        assert leftover_mappings(child) == leftover_mappings(target.pid) == 0
    finally:
        del os.environ["SPEEDBUMP_WITHOUT"]


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


def test_sessions_that_come_and_go_at_once_take_turns() -> None:
    target = start()
    target.ask("begin threads")
    for _ in range(8):
        runs = [subprocess.Popen(
            [SPEEDBUMP, "attach", ENGINE, "--duration=100ms", "--pid", str(target.pid),
             targets_file(f"+exe:{name} delay=1us")],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
            for name in ("hot_mix", "hot_leaf", "hot_float")]
        for run in runs:
            out, err = run.communicate(timeout=120)
            assert run.returncode == 0 and "traced" not in out + err, out + err
        assert changed_bytes(target.pid) == 0 and leftover_mappings(target.pid) == 0
    expect_work_goes_on(target)


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


def test_a_progress_point_does_not_share_bytes_with_a_jump() -> None:
    target = start()
    target.ask("begin loop")
    # Its only way out is a return within the jump.
    run = Run("experiment", ENGINE, "--pid", str(target.pid), "--progress=latency:exe:hot_short",
              "--time=5s", "--slice=5ms", targets_file("+exe:hot_short\n"))
    assert run.status != 0 and "would be where a jump delays calls" in run.err, run
    # Where it lies already there is no jump.
    counting = subprocess.Popen(
        [SPEEDBUMP, "experiment", "-q", "--pid", str(target.pid), "--progress=latency:exe:hot_short",
         "--time=30s", "--slice=5ms", "--doses=1us", targets_file("+exe:hot_mix\n")],
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        # That of hot_mix comes first; hot_short has one at its entry and one at its return.
        wait_for(lambda: changed_bytes(target.pid) > 1, 20, "its progress point")
        run = Run("attach", ENGINE, "--duration=1s", "--pid", str(target.pid), "--missing=ignore",
                  targets_file("+exe:hot_short"))
        assert "somebody else's breakpoint or hook" in run.out + run.err, run
    finally:
        counting.terminate()
        counting.wait()
    expect_restored(target.pid)
    expect_work_goes_on(target)


@contextlib.contextmanager
def turn_of(pid: int):
    """Holds the lock of a process (user/inject/target_lock), as one does who is putting jumps in."""
    def asked(kind: int, byte: int) -> bytes:
        return struct.pack("hhqqi4x", kind, os.SEEK_SET, byte, 1, 0)

    with os.fdopen(os.open("/run/speedbump/attach.lock", os.O_RDWR | os.O_CREAT, 0o600), "r+b") as file:
        process = os.pidfd_open(pid)
        first = (os.fstat(process).st_ino & (2**63 - 1) // 16) * 16
        os.close(process)
        fcntl.fcntl(file, fcntl.F_OFD_SETLK, asked(fcntl.F_WRLCK, first))

        def is_waited_for() -> bool:
            answer = fcntl.fcntl(file, fcntl.F_OFD_GETLK, asked(fcntl.F_WRLCK, first + 1))
            return struct.unpack_from("h", answer)[0] != fcntl.F_UNLCK

        yield is_waited_for


def test_a_progress_point_is_put_in_when_nobody_puts_in_jumps() -> None:
    """Looked for before, a jump of another session may be there when the probe comes."""
    if tuple(int(word) for word in os.uname().release.split(".")[:2]) < (6, 9):
        raise Skip("the bytes of a process in the lock are others before Linux 6.9")
    target = start()
    target.ask("begin loop")
    with Session("+exe:hot_mix delay=0ns", ENGINE, pid=target.pid) as session:
        assert calls(session.stop(), "hot_mix") > 0
    with turn_of(target.pid) as is_waited_for:
        experiment = subprocess.Popen(
            [SPEEDBUMP, "experiment", "-q", "--pid", str(target.pid),
             "--progress=latency:exe:hot_short", "--time=30s", "--slice=5ms", "--doses=1us",
             targets_file("+exe:hot_mix\n")], stdout=subprocess.DEVNULL)
        wait_for(is_waited_for, 20, "the experiment to wait for its turn")
        of_target = changed_bytes(target.pid)
    wait_for(lambda: changed_bytes(target.pid) > of_target, 20, "the progress point")
    experiment.terminate()
    experiment.wait()
    expect_restored(target.pid)
    expect_work_goes_on(target)


@on_each_clock
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


@on_each_clock
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
        wait_for(lambda: leftover_mappings(target.pid) == 0, 20, "memory without jumps unmapped")
        expect_work_goes_on(target)
    target.kill()


def test_killed_at_random_moments() -> None:
    mode = random.Random(int(os.environ.get("SPEEDBUMP_SEED", "1"))).choice(MODES)
    kills(mode, 5)
    print("  5 kills")


@campaign
def test_campaign_of_kills() -> None:
    for mode in MODES:
        kills(mode, KILLS)
        print(f"  {mode}: {KILLS} kills", flush=True)


if __name__ == "__main__":
    main(globals())
