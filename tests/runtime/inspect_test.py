# SPDX-License-Identifier: MIT
"""Python stacks read from outside: right, or reported as not read."""

import json
import os
import pathlib
import subprocess
import sys
import time

import harness
import pythons
from harness import wait_for

TREES = (pythons.SOURCE / "tests/programs/stacks/trees.py").read_text()
STACK_CHECK = str(harness.PROGRAMS / "stack_check")
MODES = ["alternating", "shared", "generators", "recursion", "reuse", "oversized", "threads"]


def dump(*arguments: str, status: int | None = 0) -> dict:
    """None: whatever the status is."""
    done = subprocess.run(
        [harness.SPEEDBUMP, "dump", "--json", *arguments], capture_output=True, text=True, timeout=60
    )
    assert status in (None, done.returncode), (done.returncode, done.stdout[-500:], done.stderr)
    return json.loads(done.stdout) if done.stdout else {"error": done.stderr}


def test_no_stack_mixes_two_moments() -> None:
    for python in pythons.find():
        for mode in MODES:
            process = python.start(TREES, mode)
            samples = 3000  # a stall of the host by some ms spoils few of them
            done = subprocess.run(
                [STACK_CHECK, str(process.pid), mode, str(samples)],
                capture_output=True,
                text=True,
                timeout=120,
            )
            assert done.stdout, (python.name, mode, done.stderr)
            result = json.loads(done.stdout)
            assert result["wrong"] == 0, (python.name, mode, result)
            # Paths are new in the beginning. A deep stack that changes all the time is a race between
            # its program and the reader, which a host with other work may slow by far.
            share = 0.5 if mode == "recursion" else 0.05
            assert result["failed"] <= samples * share, (python.name, mode, result)
            process.kill()
            process.wait()
        print(f"  Python {python.name}")


def test_no_stack_of_a_running_thread_is_wrong() -> None:
    """As BPF takes them: at a clock's interrupt, and while the thread waits for a CPU."""
    for python in pythons.find():
        for mode in MODES:
            process = python.start(TREES, mode)
            samples = {"recursion": 300, "reuse": 10000}.get(mode, 2500)
            # Of those below ten frames; of functions that are gone at once, the one that calls them.
            least = {"recursion": 0, "reuse": 1}.get(mode, 4)
            # On the same CPU it waits whenever it is looked at; threads wait for each other anyway,
            # and may run on while they are copied.
            cpus = os.sched_getaffinity(0) if mode == "threads" else {min(os.sched_getaffinity(0))}
            os.sched_setaffinity(process.pid, cpus)
            done = subprocess.run(
                [STACK_CHECK, str(process.pid), mode, str(samples), str(least)],
                preexec_fn=lambda cpus=cpus: os.sched_setaffinity(0, cpus),
                capture_output=True, text=True, timeout=120,
            )  # fmt: skip
            assert done.stdout, (python.name, mode, done.stderr)
            result = json.loads(done.stdout)
            print(f"    {python.name} {mode}: {result}")
            assert result["wrong"] == 0, (python.name, mode, result)
            assert result["still"] > 0, (python.name, mode, result)
            # Each CPU's clock goes on while the samples wait for their reader.
            period_ns = 1_000_000 if mode == "recursion" else 100_000
            unread = (os.cpu_count() or 1) * result["waited_ns"] / period_ns
            assert result["lost"] <= result["samples"] * 0.1 + unread, (python.name, mode, result)
            # Of a function that is gone before its name could be read nothing can be told.
            if mode != "reuse":
                assert result["failed"] <= result["samples"] * 0.1, (python.name, mode, result)
            assert result["stacks"] >= least, (python.name, mode, result)
            process.kill()
            process.wait()
        print(f"  Python {python.name}")


def test_dump_shows_every_thread() -> None:
    for python in pythons.find():
        process = python.start(TREES, "zoo")
        (shown,) = dump("--pid", str(process.pid))["processes"]
        assert shown["pid"] == process.pid
        assert shown["python"] == python.name, shown["python"]
        stacks = {}
        for thread in shown["threads"]:
            names = [frame["function"].split(".")[-1] for frame in thread["frames"]]
            stacks[names[0]] = (thread, names)
        main, names = stacks["zoo"]
        assert main["tid"] == process.pid and names[-2:] == ["<module>", "<module>"]
        _, deep = stacks["deep"]
        assert deep.count("deep") == 901
        _, coroutine = stacks["inner"]
        assert coroutine[1] == "outer" and "run_coroutine" in coroutine
        assert stacks["generator"][1][1] == "chain"
        assert stacks["<lambda>"][1][1] == "called_from_c"
        made = stacks["made"][0]["frames"][0]
        assert (made["file"], made["line"]) == ("<made at run time>", 3)
        umlaut = stacks["größe_in_日本語"][0]
        line = umlaut["frames"][0]["line"]
        assert TREES.splitlines()[line - 1].strip() == "time.sleep(1000)"
        assert umlaut["state"] == "sleeping"


def test_several_interpreters() -> None:
    for python in pythons.find():
        code = """
import sys, threading, time
try:
    import _interpreters as interpreters
except ImportError:
    import _xxsubinterpreters as interpreters
one = interpreters.create()
source = "import time\\ndef inside(): time.sleep(1000)\\ninside()"
threading.Thread(
    target=getattr(interpreters, "run_string", None) or interpreters.exec, args=(one, source),
    daemon=True).start()
print("ready", flush=True)
def outside(): time.sleep(1000)
outside()
"""
        process = python.start(code)

        def tops(status: int | None) -> set[tuple[bool, str]]:
            shown = dump("--pid", str(process.pid), status=status).get("processes", [])
            return {(thread["interpreter"] != 0, thread["frames"][0]["function"])
                    for one in shown for thread in one["threads"] if thread["frames"]}

        both = {(True, "inside"), (False, "outside")}
        wait_for(lambda: both <= tops(None), 30, f"stacks of both interpreters of {python.name}")
        assert both <= tops(0)


def unwritable(pid: int) -> dict[str, bytes]:
    """What the process can't write itself: its code and constants, as they are in its memory."""
    contents = {}
    with open(f"/proc/{pid}/maps") as maps, open(f"/proc/{pid}/mem", "rb", 0) as memory:
        for line in maps:
            place, rights = line.split()[:2]
            if rights.startswith("r") and "w" not in rights and "[v" not in line:
                first, last = (int(end, 16) for end in place.split("-"))
                memory.seek(first)
                contents[place + rights] = memory.read(last - first)
    return contents


def test_a_process_is_not_disturbed() -> None:
    """Its code does not change, it is never stopped, and nobody traces it."""
    python = pythons.find()[0]
    process = python.start(TREES, "alternating")
    before = unwritable(process.pid)
    states = []
    for _ in range(10):
        reader = subprocess.Popen(
            [harness.SPEEDBUMP, "dump", "--pid", str(process.pid)],
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        )  # fmt: skip
        while reader.poll() is None:
            lines = pathlib.Path(f"/proc/{process.pid}/status").read_text().splitlines()
            states.append([line for line in lines if line.startswith(("State", "TracerPid"))])
        assert reader.returncode == 0, (reader.returncode, reader.communicate())
    wrong = [state for state in states if state != ["State:\tR (running)", "TracerPid:\t0"]]
    assert len(states) > 100 and not wrong, (len(states), wrong)
    assert unwritable(process.pid) == before


def test_a_stack_that_never_holds_still_is_read() -> None:
    """Two trees of empty functions, one after the other: 6 of 100 took longer than the 200 ms there were."""
    process = pythons.find()[0].start(TREES, "alternating")
    for _ in range(40):
        (shown,) = dump("--pid", str(process.pid))["processes"]
        assert [thread["frames"] for thread in shown["threads"] if thread["frames"]], shown


def test_bench_reads_all_kinds_of_program() -> None:
    for code in ("basic", "deep_static", "threads"):
        for threads in ("all", "main", "only_active"):
            done = subprocess.run(
                [harness.SPEEDBUMP, "bench", "inspect", "--code", code, "--threads", threads,
                 "-d", "0.5", "--python", pythons.find()[0].command[0], "--json"],
                capture_output=True, text=True, timeout=60,
            )  # fmt: skip
            assert done.returncode == 0, done.stderr
            result = json.loads(done.stdout)
            assert result["attempts"] > 100, result
            assert result["success_share"] > 0.9, result
            if result["attempts"] > 10_000:
                assert "10,000 attempts" in done.stderr, done.stderr


def test_errors_say_what_is_wrong() -> None:
    sleeper = subprocess.Popen(["sleep", "100"])
    try:
        error = dump("--pid", str(sleeper.pid), status=5)["error"]
        assert "runs no Python" in error, error
    finally:
        sleeper.kill()
        sleeper.wait()
    error = dump("--pid", str(sleeper.pid), status=1)["error"]
    assert "No such" in error, error
    old = sorted((pathlib.Path.home() / ".pyenv/versions").glob("3.[6-9].*/bin/python3"))
    for path in old:
        process = subprocess.Popen([path, "-c", "import time; time.sleep(100)"])
        time.sleep(0.3)
        error = dump("--pid", str(process.pid), status=5)["error"]
        assert "3.10 to 3.15" in error, error
        process.kill()
        process.wait()
    process = pythons.find()[0].start(TREES, "zoo")
    done = subprocess.run(
        [harness.SPEEDBUMP, "dump", "--pid", str(process.pid)],
        capture_output=True,
        text=True,
        user=65534,
        group=65534,
        extra_groups=[],
    )
    assert done.returncode == 4 and "try: " in done.stderr, (done.returncode, done.stderr)


def test_a_program_that_ends_or_execs_while_it_is_read() -> None:
    python = pythons.find()[0]
    if python.root is not None:
        raise harness.Skip("no Python outside of a root of its own")
    for ending in ("os._exit(0)", "os.execv('/bin/sleep', ['sleep', '5'])"):
        process = python.start(
            f"import os, sys\nprint('ready', flush=True)\nsys.stdin.readline()\n{ending}\n"
        )
        reader = subprocess.Popen([STACK_CHECK, str(process.pid), "alternating", "100000000"],
                                  stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        harness.leave_none(lambda reader=reader: (reader.kill(), reader.wait()))
        said = reader.stderr.readline()
        assert said == "reads\n", said
        process.stdin.write(b"\n")
        process.stdin.flush()
        out, err = reader.communicate(timeout=60)
        expected = "has ended" if "exit" in ending else "exec"
        assert expected in err, (ending, out, err)


if __name__ == "__main__":
    sys.exit(harness.main(globals()))
