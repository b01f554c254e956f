# SPDX-License-Identifier: MIT
"""Attaching to Python on a processor other than that of the host: what a borrowed thread gets back, and
that a program goes on rightly whatever becomes of the loader. tests/runtime/inject has the rest for
the host's own; the parts of it that need nothing but a Python run here, too."""

import json
import mmap
import os
import pathlib
import random
import signal
import struct
import subprocess
import sys
import time

from harness import (
    MS, SPEEDBUMP, Run, Session, Skip, calls, delays, expect_restored, main, scratch, targets_file,
    wait_for,
)

PROGRAMS = pathlib.Path("/programs")
TESTS = pathlib.Path("/tests")
CORE = PROGRAMS / "_core.abi3.so"
LENGTHS = (16, 32, 64, 128, 256)  # bytes of scalable vectors

# Waits in its way, calls work() and judges what it answers; the file says how many calls have begun since
# somebody wrote another number at its end, how long the shortest of them took, and, last, that number.
WORKER = """
import mmap, select, struct, sys, threading, time
kind, path = sys.argv[1:3]
with open(path, "r+b") as file:
    told = mmap.mmap(file.fileno(), 32)
def work(number):
    return number * 1.5 + 0.25
def wait():
    if kind == "sleep":
        time.sleep(0.02)
    elif kind == "poll":
        poller.poll(20)
    elif kind == "epoll":
        epoll.poll(0.02)
    else:
        for _ in range(3000): pass
poller, epoll = select.poll(), select.epoll()
if kind == "threads":
    for _ in range(4):
        threading.Thread(target=threading.Event().wait, daemon=True).start()
    def spin():
        while True: sum(range(1000))
    threading.Thread(target=spin, daemon=True).start()
number = asked = 0
since, shortest = 0, 1 << 62
while True:
    wait()
    wanted = struct.unpack("<Q", told[24:])[0]
    if wanted != asked:
        asked, since, shortest = wanted, 0, 1 << 62
    begin = time.monotonic_ns()
    answer = work(number)
    spent = time.monotonic_ns() - begin
    if answer != number * 1.5 + 0.25:
        sys.exit(3)
    number, since, shortest = number + 1, since + 1, min(spent, shortest)
    told[:16] = struct.pack("<QQ", since, shortest)
    told[16:24] = struct.pack("<Q", asked)
"""


class Worker:
    def __init__(self, kind: str):
        self.path = scratch() / "told"
        self.path.write_bytes(bytes(32))
        self._asked = 0
        with open(self.path, "r+b") as file:
            self._told = mmap.mmap(file.fileno(), 32)
        self.process = subprocess.Popen([sys.executable, "-c", WORKER, kind, str(self.path)])
        self.pid = self.process.pid
        self.work(3)

    def __enter__(self) -> "Worker":
        return self

    def __exit__(self, *_) -> None:
        self.process.kill()
        self.process.wait()

    def _since(self) -> tuple[int, int]:
        """How many calls have begun since it was asked the last time, and the shortest of them, in ns."""
        assert self.process.poll() is None, f"the program ended with {self.process.returncode}"
        if struct.unpack("<Q", self._told[16:24]) != (self._asked,):
            return 0, 0
        return struct.unpack("<QQ", self._told[:16])

    def work(self, count: int) -> int:
        """Waits for some calls more; the shortest of those that have begun by now, in ns."""
        self._asked += 1
        self._told[24:] = struct.pack("<Q", self._asked)
        wait_for(lambda: self._since()[0] >= count, 60, f"{count} calls")
        return self._since()[1]

    def threads(self) -> int:
        return len(os.listdir(f"/proc/{self.pid}/task"))


def test_a_function_is_slowed_and_as_fast_as_before_afterwards() -> None:
    for kind in ("loop", "sleep", "poll", "epoll", "threads"):
        with Worker(kind) as worker:
            threads = worker.threads()
            for _ in range(2):
                with Session("__main__:work delay=30ms", pid=worker.pid) as session:
                    shortest = worker.work(10)
                    assert shortest >= 29.4 * MS, (kind, shortest)
                    final = session.stop()
                slowed = delays(final, "work") # of the last call perhaps not yet
                assert slowed >= 10 and 0 <= calls(final, "work") - slowed <= 1, (kind, final)
                assert final["all"]["requested_ns"] == slowed * 30 * MS, (kind, final)
                shortest = worker.work(10)
                assert shortest < 25 * MS, (kind, shortest)
                expect_restored(worker.pid)
            wait_for(lambda: worker.threads() == threads, 10, "our thread's end")


def test_the_loader_may_be_killed_at_any_moment() -> None:
    order = random.Random(11)
    targets = targets_file("__main__:work delay=1us")
    for kind in ("sleep", "poll", "loop"):
        with Worker(kind) as worker:
            threads = worker.threads()
            for _ in range(15):
                loader = subprocess.Popen([SPEEDBUMP, "attach", "--pid", str(worker.pid), targets],
                                          stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
                time.sleep(order.uniform(0, 0.6))
                loader.send_signal(signal.SIGKILL)
                loader.wait()
            worker.work(10)
            wait_for(lambda: worker.threads() == threads, 20, "our threads' end")
            with Session("__main__:work delay=30ms", pid=worker.pid):
                assert worker.work(5) >= 29.4 * MS


def test_a_hundred_attaches_and_kills() -> None:
    """Of a process each, that stands in many ways."""
    for kind in ("loop", "sleep", "epoll", "select", "accept", "threads", "memmove", "signals", "forks"):
        stress(str(TESTS / "inject" / "targets.py"), kind)


def stress(program: str, kind: str, cycles: int = 100, kills: int = 15) -> None:
    done = subprocess.run(
        [PROGRAMS / "inject_stress", "--cycles", str(cycles), "--kills", str(kills), "--core", CORE,
         program, kind, sys.executable],
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=900,
    )  # fmt: skip
    print(done.stdout, end="", flush=True)
    assert done.returncode == 0, (kind, done)


def has_registers(kind: str) -> bool:
    """Whether this processor has what registers.py would hold."""
    path = scratch() / "beats"
    path.write_bytes(bytes(8))
    process = subprocess.Popen([sys.executable, TESTS / "registers.py", kind, path],
                               stdout=subprocess.DEVNULL)
    try:
        wait_for(lambda: process.poll() is not None or path.read_bytes() > bytes(8), 60, "a beat")
        assert process.poll() in (None, 4), process.returncode
        return process.poll() is None
    finally:
        process.kill()
        process.wait()


def test_all_registers_are_brought_back() -> None:
    if os.uname().machine != "aarch64":
        raise Skip("libregisters.so is for aarch64")
    stress(str(TESTS / "registers.py"), "plain")
    lengths = [length for length in LENGTHS if has_registers(str(length))]
    assert len(lengths) >= 2, lengths  # one whose registers have room in a frame, one whose not
    for length in lengths:
        stress(str(TESTS / "registers.py"), str(length))


def test_a_thread_with_a_matrix_unit_is_left_alone() -> None:
    if os.uname().machine != "aarch64" or not has_registers("matrix"):
        raise Skip("this processor has no matrix unit")
    path = scratch() / "beats"
    path.write_bytes(bytes(8))
    process = subprocess.Popen([sys.executable, TESTS / "registers.py", "matrix", path])
    try:
        wait_for(lambda: path.read_bytes() > bytes(8), 60, "the call")
        time.sleep(1)
        done = Run("attach", "--pid", str(process.pid), targets_file("__main__:hold delay=1ms"))
        assert done.status != 0 and "matrix unit" in done.err, done
        assert process.poll() is None
    finally:
        process.kill()
        process.wait()


def test_run_slows_python_from_its_first_line() -> None:
    code = (
        "import json, time\nbegin = time.monotonic_ns()\ndef once(): pass\nonce()\n"
        "print(json.dumps(time.monotonic_ns() - begin))\n"
    )
    program = scratch() / "program.py"
    program.write_text(code)
    done = Run("run", "--json", targets_file("__main__:once delay=50ms"), "--", sys.executable, str(program))
    assert done.status == 0, done
    lines = [json.loads(line) for line in done.out.splitlines()]
    spent = [line for line in lines if isinstance(line, int)]
    assert len(spent) == 1 and spent[0] >= 49 * MS, done
    assert calls(lines[-1], "once") == 1, done


def test_parts_of_getting_into_interpreters() -> None:
    """The tests of tests/runtime/inject and tests/unit, but for those that need more programs than this
    machine has (setarch), or judge how much is done in a time."""
    kernel = tuple(int(word) for word in os.uname().release.split(".")[:2])
    for program, without in (
        ("inject_parts_aarch64_test", ""),
        ("inject_limits_test", "*.MemoryThatIsWritten*" if kernel < (6, 3) else ""),  # PR_SET_MDWE
        ("inject_forks_test", ""),
        ("inject_test", "Inject.AProgramThatIsExecdMeanwhile*:Files.AScriptNeverLeavesTheTargetsRoot"),
    ):
        if not (PROGRAMS / program).exists():
            continue
        done = subprocess.run([PROGRAMS / program, f"--gtest_filter=-{without}"], cwd=TESTS / "inject",
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=1800)
        assert done.returncode == 0, f"{program}: {done.stdout[-8000:]}"
        print(done.stdout.splitlines()[-1], flush=True)


if __name__ == "__main__":
    main(globals())
