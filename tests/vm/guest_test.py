# SPDX-License-Identifier: MIT
"""What only a machine of one's own shows: an old kernel, the kernel module, a lockdown.

How long something takes says nothing in an emulated machine, and CPU time neither. What is judged
is what was counted, and that a delay lasts as long as asked for at least.
"""

import contextlib
import os
import pathlib
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator

from harness import (
    LIBRARY, MS, PROGRAMS, PUPPET, Puppet, Run, Session, Skip, calls, changed_bytes, delays,
    expect_restored, expect_slowed, expect_unslowed, main, scratch, start_puppet, targets_file, wait_for,
)
from known_experiments import Experiment, start, start_python, start_service

ENGINE = os.environ["SB_ENGINE"]  # "lockdown": none
MODULE = pathlib.Path("/sys/kernel/speed_bump")
PUSH = "+exe:work_push delay=1ms"
USAGE, PERMISSION, HOST = 2, 4, 5


def only(*engines: str) -> None:
    if ENGINE not in engines:
        raise Skip(f"is for {' and '.join(engines)}")


def at_length() -> None:
    if os.environ.get("SB_SHORT") == "1":
        raise Skip("takes minutes")


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
    done = Run("calibrate", "--json", timeout=120)
    assert done.status == 0, done
    rows = done.final()["rows"]
    engines = {row["engine"] for row in rows}
    assert {"bpf", ENGINE} <= engines <= {"bpf", ENGINE, "inprocess"}, rows
    for row in (row for row in rows if row["engine"] == ENGINE):
        assert row["floor_ns"] > 0, row
        longest = row["accuracy"][-1]
        assert longest["measured_ns"] > 0.97 * longest["requested_ns"], row


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
        print(f"  {100 * spin['total'] / stacks['all']:.1f} % of the stacks are of the thread that spins")
        assert 0.45 * stacks["all"] < spin["total"] < 0.55 * stacks["all"], (spin, stacks)
        below = [line.split(";spin (")[1] for line in collapsed.read_text().splitlines()
                 if ";spin (" in line]  # fmt: skip
        assert any(";" in line for line in below), below  # native callees
    finally:
        process.kill()
        process.wait()


def test_native_stacks_are_whole() -> None:
    """Of frames whose return addresses are signed, where the processor can do that."""
    only("bpf")
    at_length()
    service = start("serial")
    collapsed = scratch() / "collapsed"
    done = Run("discover", "--pid", str(service.pid), "--for", "5s", "--native", "exe:work_*",
               "--top", "0", "--json", "--collapsed", str(collapsed), timeout=180)
    assert done.status == 0, done
    stacks = done.final()["stacks"]
    assert stacks["all"] > 50, done
    assert stacks["not_whole"] + stacks["failed"] < 0.05 * stacks["all"], (stacks, collapsed.read_text())
    # main, serial and a function that takes half of the time, each below the other
    by_work = dict.fromkeys(("work_a", "work_b"), 0)
    for line in collapsed.read_text().splitlines():
        path, times = line.rsplit(" ", 1)
        for name in by_work:
            if re.search(rf";main \(.*;{name} \(", path):
                by_work[name] += int(times)
    assert all(times > 0.3 * stacks["active"] for times in by_work.values()), (by_work, stacks, collapsed.read_text())


def expect_serial(done: Experiment, *names: str) -> None:
    """An emulated machine's noise is large: what is judged is that no interval is beside the truth. Where
    the loader has the only processor for a quarter of the time a delay costs that much more, too."""
    assert done.status == 0, done
    for name in names:
        found = done.target(name)
        k = found["criticality"]
        assert k["low"] <= 1.15 * done.crowding and k["high"] >= 0.85, (done.crowding, done)
        assert found["verdict"] != "hidden", done


def test_slices_are_switched_by_the_clock() -> None:
    only("bpf")
    at_length()
    service = start("serial")
    done = Experiment(service.pid, "+exe:work_a\n+exe:work_b\n", "--slice=20ms", "--time=40s",
                      "--max-slowdown=400%")
    expect_serial(done, "+exe:work_a", "+exe:work_b")
    sliced = done.document["sliced"]
    slices = len(sliced["units"][0])
    assert slices > 500, done
    for target in sliced["targets"]:
        # Half of the slices have a dose, as coins say, and only those have delays.
        drawn = sum(step.isupper() for step in target["steps"])
        assert abs(drawn - slices / 2) < 5 * slices ** 0.5 / 2, (drawn, slices)
        off = sum(delays for step, delays in zip(target["steps"], target["delays"]) if step.islower())
        assert off <= sum(target["delays"]) / 100, (off, sum(target["delays"]))
    expect_restored(service.pid)


def test_an_experiment_on_functions_of_both_worlds() -> None:
    only("bpf")
    at_length()
    if os.uname().machine == "x86_64":
        raise Skip("this machine has no core of the tool's for its Python")
    service = start_python("mixed")
    names = ("__main__:work_a", "+libslowlib.so:lib_work")
    done = Experiment(service.pid, "\n".join(names), "--doses=50us,100us,200us", "--time=60s",
                      "--max-slowdown=400%", progress="python:__main__:unit_done")
    expect_serial(done, *names)
    expect_restored(service.pid, LIBRARY)


def test_calls_marks_and_system_calls_are_progress() -> None:
    only("bpf")
    at_length()
    code = (
        "import os, time\nfile = os.open('/dev/null', os.O_WRONLY)\nprint('ready', flush=True)\n"
        "while True:\n    end = time.perf_counter() + 400e-6\n"
        "    while time.perf_counter() < end: pass\n    os.write(file, b'unit')\n"
    )
    for progress, target in (("native:exe:work_b", "+exe:work_a"), ("usdt:exe:known:unit", "+exe:work_a"),
                             ("syscall:write", "+libc.so.6:write")):
        service = (start_service(sys.executable, "-c", code) if progress.startswith("syscall")
                   else start("serial"))
        done = Experiment(service.pid, target, "--doses=200us", "--time=30s", "--max-slowdown=400%",
                          progress=progress)
        expect_serial(done, target)
        service.kill()


@contextlib.contextmanager
def on_one_processor() -> Iterator[None]:
    """Where it is busy an emulator may give the other one no time (scripts/vm.sh): who looks for a process
    that works would see none."""
    second = pathlib.Path("/sys/devices/system/cpu/cpu1/online")
    if not second.exists():
        yield
        return
    second.write_text("0")
    try:
        yield
    finally:
        second.write_text("1")


def test_calls_are_timed_and_devices_watched() -> None:
    """Tests of tests/runtime, but for those that need more programs than this machine has, or judge how
    soon something is."""
    only("bpf")
    at_length()
    ran = 0
    for program, chosen in (
        ("progress_live_test", "*.EveryWayOutOfTheProgram*:*.CallsThatDoNotReturn*:*.Semaphores*:"
                               "*.ChildrenAreCounted:*.FunctionsWithUnknown*"),
        ("device_live_test", "*.WhatIsMissing*:*.NobodyWaits"),
    ):
        if not (PROGRAMS / program).exists():
            continue
        with on_one_processor():
            done = subprocess.run([PROGRAMS / program, f"--gtest_filter={chosen}"], timeout=1800,
                                  stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        assert done.returncode == 0, f"{program}: {done.stdout[-8000:]}"
        print(done.stdout.splitlines()[-1], flush=True)
        ran += 1
    if not ran:
        raise Skip("the machine's own tests have them")


def test_run_has_the_right_totals() -> None:
    only("bpf", "kmod")
    done = Run("run", "--json", targets_file("+exe:work_* delay=2ms"), "--", PUPPET,
               "call work_push 50", "call work_step 30", "exit 0")
    assert done.status == 0, done
    final = done.final()
    assert final["engine"] == ENGINE, final
    assert (calls(final, "work_push"), calls(final, "work_step")) == (50, 30), final
    assert final["all"]["requested_ns"] == 80 * 2 * MS, final
    # What was asked for, what was measured of it, and what the program saw: each holds the former.
    measured = final["all"]["measured_ns"]
    spent = sum(int(line) for line in done.out.splitlines() if line.isdigit())
    assert 0.98 * 80 * 2 * MS < measured < 1.05 * spent, (measured, spent)


def test_a_library_that_is_loaded_later() -> None:
    only("bpf", "kmod")
    target = start_puppet()
    with Session("+libslowlib.so:lib_work delay=2ms", "--missing=ignore", pid=target.pid) as session:
        target.ask(f"load {LIBRARY}")
        began = target.ask(f"first lib_work {int(1.8 * MS)} 20000")
        assert began.isdigit(), f"slowed: {began}"
        expect_slowed(target, "lib_work", 2 * MS)
        assert delays(session.stop(), "lib_work") >= 20
    expect_restored(target.pid, os.path.realpath(LIBRARY))


def test_processors_that_go_and_come() -> None:
    """What is loaded on a processor that was off, when the session began or for a moment."""
    only("bpf", "kmod")
    second = pathlib.Path("/sys/devices/system/cpu/cpu1/online")
    if not second.exists():
        raise Skip("needs a second processor that can be switched off")
    libraries = [scratch() / f"libslowlib-{number}.so" for number in (1, 2)]
    targets = [start_puppet(), start_puppet()]

    def expect_noticed(target: Puppet, library: pathlib.Path) -> None:
        shutil.copy(LIBRARY, library)  # a file that no probe is in yet
        os.sched_setaffinity(target.pid, {1})
        target.ask(f"load {library}")
        wait_for(lambda: min(target.each("lib_work", 10)) > 1.9 * MS, 60, "delays of lib_work")

    try:
        second.write_text("0")
        with Session("+libslowlib-*.so:lib_work delay=2ms", "--missing=ignore",
                     "--pid", str(targets[1].pid), pid=targets[0].pid) as session:
            second.write_text("1")
            expect_noticed(targets[0], libraries[0])
            second.write_text("0")
            second.write_text("1")
            expect_noticed(targets[1], libraries[1])
            told = "".join(session.warnings)
            assert told.count("records of new mappings were lost") == 1, told
    finally:
        second.write_text("1")


def test_ctrl_c_ends_a_spin() -> None:
    only("bpf", "kmod")
    if ENGINE == "bpf" and os.cpu_count() == 1:
        raise Skip("a spin of BPF keeps the only processor")
    target = start_puppet()
    with Session("+exe:work_push delay=10s", pid=target.pid) as session:
        target.send("call work_push 1")
        time.sleep(0.3)
        final = session.stop()
    assert int(target.hear()) < 9000 * MS and calls(final, "work_push") == 1, final
    expect_restored(target.pid)


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
            # What the module had counted when a target is removed is gone but for what was read.
            wait_for(lambda: any(calls(one, "work_push") >= 20 for one in session.documents
                                 if one["type"] == "sample"), 30, "a sample of the calls")
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
        ends, slow = [], []
        while not ends or ends[-1] < 2.8:
            if target.each("work_push", 1)[0] > 4.9 * MS:
                slow.append(len(ends))
            ends.append(time.monotonic() - began)
        final = session.stop()
    first, last = slow[0], slow[-1]
    # The harness hears of arming a little late, and the loader begins and ends a window.
    assert 0.5 < ends[first] < 1.5 and 1.5 < ends[last] < 2.5, (ends[first], ends[last])
    assert last - first + 1 == len(slow), slow
    assert calls(final, "work_push") == len(ends)
    # The last delay is cut short when the window ends.
    assert 0 <= delays(final, "work_push") - len(slow) <= 1, (len(slow), final)


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


def test_code_that_nobody_may_write_to() -> None:
    only("bpf")
    if "proc_mem.force_override=never" not in pathlib.Path("/proc/cmdline").read_text():
        raise Skip("is for a kernel with proc_mem.force_override=never")
    code = "import time\ndef work(): time.sleep(0.01)\nprint(flush=True)\nwhile True: work()"
    python = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE)
    try:
        assert python.stdout is not None and python.stdout.readline()
        target = start_puppet()
        for pid, targets, options in ((python.pid, "__main__:work delay=1ms", ()),
                                      (target.pid, PUSH, ("--engine=inprocess",))):
            done = Run("attach", *options, "--pid", str(pid), targets_file(targets))
            assert done.status == HOST and "proc_mem.force_override=never" in done.err, done
            assert python.poll() is None and changed_bytes(pid) == 0, done
        expect_unslowed(target, "work_push", MS)
        assert checks(Run("doctor", "--json"))["code of processes"]["state"] == "degraded"
        with Session(PUSH, pid=target.pid):
            expect_slowed(target, "work_push", MS)
    finally:
        python.kill()
        python.wait()


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
