# SPDX-License-Identifier: MIT
"""Targets that work against the tool: nothing that they do may hold it up, end it, or lead it."""

import os
import signal
import subprocess
import sys
import time

from harness import (
    BUILD, MS, PROGRAMS, Run, Session, Skip, _leftovers, calls, calls_now, main, need, scratch, wait_for,
)


def test_a_stack_page_that_nobody_provides_holds_no_spin_up() -> None:
    program = PROGRAMS / "unanswered_page"
    if not program.exists():
        raise Skip("the program is for x86-64")
    target = subprocess.Popen([str(program)], stdout=subprocess.PIPE, text=True)
    _leftovers.append(lambda: (target.kill(), target.wait()))
    if target.stdout.readline() != "ready\n":
        raise Skip("this host has no userfaultfd")
    with Session(f"+exe:spot delay={50 * MS}ns", pid=target.pid) as session:
        wait_for(lambda: calls_now(session, "spot") > 2, 30, "spins")
        begin = time.monotonic()
        final = session.stop()
        took = time.monotonic() - begin
    assert calls(final, "spot") > 2, "the spin does not come back"
    assert took < 5, f"it took {took:.1f} s to end"


def with_core(contents: bytes) -> list[str]:
    """A command that execs speedbump with a core of these contents for this interpreter."""
    cores = scratch()
    version = f"{sys.version_info.major}{sys.version_info.minor}"
    (cores / f"_core.cpython-{version}-hostile.so").write_bytes(contents)
    return [need("env"), f"SPEEDBUMP_CORES={cores}"]


def test_an_interpreter_that_sends_without_end_holds_no_session_up() -> None:
    """Its core is one that sends matches for ever and does not hear that the session ends."""
    core = BUILD / "tests" / "runtime" / "inject" / "_core_flood.abi3.so"
    if not core.exists():
        raise Skip(f"{core} is not built")
    target = subprocess.Popen(
        [sys.executable, "-c", "import time; print('ready', flush=True); time.sleep(1000)"],
        stdout=subprocess.PIPE, text=True)
    _leftovers.append(lambda: (target.kill(), target.wait()))
    assert target.stdout.readline() == "ready\n"
    with Session("*:work delay=1ms", "-q", pid=target.pid,
                 before=with_core(core.read_bytes())) as session:
        def told(text: str) -> int:
            return sum(text in line for line in session.warnings)

        wait_for(lambda: told("than are kept of one process") > 0, 60, "a word of too many matches")
        session.stop()
    assert told("than are kept of one process") == 1, session.warnings
    assert told("were not listed") == 1, session.warnings
    assert target.poll() is None


def test_a_name_forges_no_line_of_the_log() -> None:
    rename = "import ctypes; ctypes.CDLL(None).prctl(15, b'x\\nspeedbump: z', 0, 0, 0)"
    target = subprocess.Popen([sys.executable, "-c", f"{rename}; print('ready', flush=True); input()"],
                              stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    _leftovers.append(lambda: (target.kill(), target.wait()))
    assert target.stdout.readline() == "ready\n"
    # What is stopped can't be entered, and the warning says who it is.
    target.send_signal(signal.SIGSTOP)
    os.waitid(os.P_PID, target.pid, os.WSTOPPED | os.WNOWAIT)
    done = Run("list", "--pid", str(target.pid), "no_such_function", before=with_core(b"none"))
    assert r"(x\x0aspeedbump: z)" in done.err, done
    assert not any(line.startswith("speedbump: z") for line in done.err.splitlines()), done


if __name__ == "__main__":
    main(globals())
