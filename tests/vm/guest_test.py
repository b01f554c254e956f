# SPDX-License-Identifier: MIT
"""What only a machine of one's own shows: an old kernel, the kernel module, a lockdown."""

import json
import os
import pathlib
import subprocess
import sys
import time

from harness import (
    MS, PUPPET, Run, Session, Skip, calls, changed_bytes, delays, expect_ratio, expect_restored,
    expect_slowed, expect_unslowed, main, repeat, start_puppet, targets_file, wait_for,
)

ENGINE = os.environ["SB_ENGINE"]  # "lockdown": none
MODULE = pathlib.Path("/sys/kernel/speed_bump")
PUSH = "+exe:work_push delay=1ms"
USAGE, PERMISSION, HOST = 2, 4, 5


def only(*engines: str) -> None:
    if ENGINE not in engines:
        raise Skip(f"is for {' and '.join(engines)}")


def kernel() -> tuple[int, ...]:
    return tuple(int(word) for word in os.uname().release.split(".")[:2])


def checks(done: Run) -> dict[str, dict]:
    return {one["name"]: one for one in done.final()["checks"]}


def is_enabled() -> bool:
    return (MODULE / "enabled").read_text() == "1\n"


def listed() -> list[str]:
    return (MODULE / "targets_list").read_text().splitlines()


def load_module(max_targets: int) -> None:
    subprocess.run(["rmmod", "speed_bump"], check=True)
    subprocess.run(["insmod", "/speed_bump.ko", f"max_targets={max_targets}"], check=True)


# --- both engines


def test_doctor_tells_what_this_kernel_can_do() -> None:
    only("bpf", "kmod")
    done = Run("doctor", "--json")
    assert done.status == 0, done
    found = {name: one["state"] for name, one in checks(done).items()}
    assert found["BTF"] == found["uprobes from BPF"] == found["mapping records"] == "good", found
    assert found["uprobe_multi"] == ("good" if kernel() >= (6, 6) else "degraded"), found
    assert found["kernel module"] == ("good" if ENGINE == "kmod" else "unknown"), found


def test_calibrate_measures_each_engine() -> None:
    only("bpf", "kmod")

    def measure() -> None:
        done = Run("calibrate", "--json", timeout=120)
        assert done.status == 0, done
        rows = done.final()["rows"]
        assert {row["engine"] for row in rows} == {"bpf", ENGINE}, rows
        for row in (row for row in rows if row["engine"] == ENGINE):
            assert row["floor_ns"] > 0, row
            longest = row["accuracy"][-1]
            # others of the host take their time from the machine
            expect_ratio(longest["measured_ns"], longest["requested_ns"], 0.9, 3, str(row))

    repeat(3, measure)


def test_stacks_of_both_worlds() -> None:
    only("bpf")
    code = (
        "def spin():\n    while True: sorted(range(100), key=str)\n"
        "import threading, time\nthreading.Thread(target=time.sleep, args=(1000,)).start()\n"
        "print('ready', flush=True)\nspin()\n"
    )
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE)
    try:
        assert process.stdout is not None and process.stdout.readline() == b"ready\n"
        collapsed = pathlib.Path("/tmp/collapsed")
        done = Run(
            "discover", "--pid", str(process.pid), "--for", "5s", "--native", "libz.so*:deflate",
            "--top", "0", "--json", "--collapsed", str(collapsed),
        )  # fmt: skip
        assert done.status == 0, done
        found = done.final()
        stacks = found["stacks"]
        assert stacks["all"] > 50, found
        assert stacks["not_whole"] + stacks["failed"] < 0.1 * stacks["all"], stacks
        (spin,) = [f for f in found["python"]["functions"] if f["function"] == "spin"]
        assert 0.3 * stacks["all"] < spin["total"] < 0.7 * stacks["all"], (spin, stacks)
        below = [line.split(";spin (")[1] for line in collapsed.read_text().splitlines()
                 if ";spin (" in line]  # fmt: skip
        assert any(";" in line for line in below), below  # native callees
    finally:
        process.kill()
        process.wait()


def test_run_has_the_right_totals() -> None:
    only("bpf", "kmod")

    def measure() -> None:
        done = Run("run", "--json", targets_file("+exe:work_* delay=2ms"), "--", PUPPET,
                   "call work_push 50", "call work_step 30", "exit 0")
        assert done.status == 0, done
        final = done.final()
        assert final["engine"] == ENGINE, final
        assert (calls(final, "work_push"), calls(final, "work_step")) == (50, 30), final
        assert final["all"]["requested_ns"] == 80 * 2 * MS, final
        expect_ratio(final["all"]["measured_ns"], 80 * 2 * MS, 0.98, 3, "ns measured")
        spent = sum(int(line) for line in done.out.splitlines() if line.isdigit())
        # what the host takes of the machine's time lies in between
        expect_ratio(final["all"]["measured_ns"], spent, 0.9, 1.05, "of what the program saw")

    repeat(5, measure)


# --- the kernel module


def test_the_module_is_chosen_and_can_be_declined() -> None:
    only("kmod")
    target = start_puppet()
    for choice, engine in (("auto", "kmod"), ("kmod", "kmod"), ("bpf", "bpf")):
        with Session(PUSH, f"--engine={choice}", pid=target.pid) as session:
            assert len(listed()) == (engine == "kmod")
            expect_slowed(target, "work_push", MS)
            assert session.stop()["engine"] == engine
        assert listed() == []


def test_the_module_is_left_as_it_was_found() -> None:
    only("kmod")
    target = start_puppet()
    assert not is_enabled()
    with Session(PUSH, pid=target.pid) as session:
        assert is_enabled()
        row = listed()[0]
        assert f" pid={target.pid} " in row and row.endswith(" owner=device"), row
        session.stop()
    assert not is_enabled() and listed() == []
    with Session(PUSH, pid=target.pid) as session:
        session.kill()
        expect_restored(target.pid)
        assert not is_enabled() and listed() == []


def test_targets_of_others_are_left_alone() -> None:
    only("kmod")
    target = start_puppet()
    other = f"{PUPPET}:work_nop"
    assert subprocess.run(["sbctl", "add", other, "1ms"]).returncode == 0
    done = Run("attach", "--engine=kmod", "--pid", str(target.pid), targets_file(PUSH))
    assert done.status == HOST and "switched off" in done.err and "sbctl" in done.err, done
    with Session(PUSH, pid=target.pid) as session:  # auto: BPF, and why
        assert session.stop()["engine"] == "bpf"
        assert "switched off" in "".join(session.warnings), session.warnings
    assert subprocess.run(["sbctl", "enable"]).returncode == 0
    with Session(PUSH, pid=target.pid) as session:
        expect_slowed(target, "work_push", MS)
        expect_slowed(target, "work_nop", MS)
        session.stop()
    assert is_enabled() and [line.split()[0] for line in listed()] == [other]
    expect_slowed(target, "work_nop", MS)
    subprocess.run(["sbctl", "clear"], check=True)
    subprocess.run(["sbctl", "disable"], check=True)


def test_what_others_do_to_a_session_is_told() -> None:
    only("kmod")
    target = start_puppet()
    for command, words in (("disable", "switched the kernel module off"), ("clear", "removed")):
        with Session(PUSH, pid=target.pid) as session:
            expect_slowed(target, "work_push", MS)
            subprocess.run(["sbctl", command], check=True)
            wait_for(lambda: words in "".join(session.warnings), 5, words)
            expect_unslowed(target, "work_push", MS)
            assert calls(session.stop(), "work_push") >= 20


def test_what_the_module_cannot_do_is_for_bpf() -> None:
    only("kmod")
    target = start_puppet()
    for targets, options, word in ((PUSH + " every=3", (), "every="), (PUSH, ("--every=3",), "--every"),
                                   (PUSH, ("--no-children",), "--no-children")):
        done = Run("attach", "--engine=kmod", *options, "--pid", str(target.pid),
                   targets_file(targets))
        assert done.status == USAGE and word in done.err and "--engine=bpf" in done.err, done
        with Session(targets, *options, pid=target.pid) as session:
            target.call("work_push", 9)
            final = session.stop()
        assert final["engine"] == "bpf", final
        assert delays(final, "work_push") == (3 if "every" in word else 9), final
        assert word in "".join(session.warnings), session.warnings
    done = Run("attach", "--engine=kmod", "--pid", str(os.getpid()), targets_file("+puppet:work_*"))
    assert done.status == USAGE and "speedbump" in done.err, done


def test_settings_of_a_live_session() -> None:
    only("kmod")
    target = start_puppet()
    with Session(PUSH, pid=target.pid) as session:
        own = ("--session", str(session.process.pid))
        done = Run("set", "*", "every=2", *own)
        assert done.status == USAGE and "every=" in done.err, done
        assert Run("set", "*", "delay=4ms", *own).status == 0
        expect_slowed(target, "work_push", 4 * MS)


def test_windows_are_kept() -> None:
    """Slowed from 1 s after arming, for 1 s, and counted all the time."""
    only("kmod")
    target = start_puppet()
    with Session("+exe:work_push delay=5ms start=1s duration=1s", pid=target.pid) as session:
        began = time.monotonic()
        slow, count = [], 0
        while (now := time.monotonic() - began) < 2.6:
            count += 1
            if target.each("work_push", 1)[0] > 4.9 * MS:
                slow.append(now)
        final = session.stop()
    # Emulation stops for some milliseconds now and then; the harness hears of arming up to 0.2 s late.
    within = [now for now in slow if 0.7 < now < 2.1]
    assert len(within) > 50 and len(slow) - len(within) < 10, slow
    assert calls(final, "work_push") == count
    assert abs(delays(final, "work_push") - len(within)) < 10, (delays(final, "work_push"), slow)


def test_a_spin_ends_with_a_pause() -> None:
    only("kmod")
    target = start_puppet()
    with Session("+exe:work_push delay=10s", pid=target.pid) as session:
        target.send("call work_push 1")
        time.sleep(0.3)
        start = time.monotonic()
        assert Run("pause", "--session", str(session.process.pid)).status == 0
        assert int(target.hear()) < 5000 * MS and time.monotonic() - start < 3
        assert changed_bytes(target.pid) > 0


def test_more_functions_than_the_module_has_room_for() -> None:
    only("kmod")
    target = start_puppet()
    try:
        load_module(2)
        path = targets_file("+exe:work_*")
        done = Run("attach", "--engine=kmod", "--pid", str(target.pid), path)
        assert done.status != 0 and "max_targets" in done.err, done
        assert listed() == [] and not is_enabled() and changed_bytes(target.pid) == 0
    finally:
        load_module(64)


# --- lockdown


def test_lockdown() -> None:
    only("lockdown")
    mode = pathlib.Path("/sys/kernel/security/lockdown").read_text()
    target = start_puppet()
    doctor = Run("doctor", "--json")
    found = checks(doctor)["lockdown"]
    if "[integrity]" in mode:
        assert doctor.status == 0 and found["state"] == "good" and "integrity" in found["detail"]
        with Session(PUSH, pid=target.pid):
            expect_slowed(target, "work_push", MS)
        return
    assert "[confidentiality]" in mode, mode
    assert found["state"] == "bad" and "lockdown=integrity" in found["remedy"], found
    attach = Run("attach", "--pid", str(target.pid), targets_file(PUSH))
    for done in (doctor, attach):
        assert done.status == PERMISSION, done
        assert "lockdown" in done.err and "lockdown=integrity" in done.err, done
    assert changed_bytes(target.pid) == 0
    expect_unslowed(target, "work_push", MS)
    assert not list(pathlib.Path("/run/speedbump").glob("*")), "a session's files are left"
    assert "speedbump" not in subprocess.run(["ps"], capture_output=True, text=True).stdout


if __name__ == "__main__":
    main(globals())
