# SPDX-License-Identifier: MIT
"""Live sessions: status, set, pause, resume, detach, over the socket and a fifo."""

import json
import os
import pathlib
import signal

from harness import (
    MS, Run, Session, calls, expect_restored, look, main, scratch, start_puppet, targets_file,
    wait_for,
)

DIRECTORY = pathlib.Path("/run/speedbump")
WORK = "+exe:work_push delay=2ms\n"


def ask(session: Session, command: str, *arguments: str, status: int = 0) -> Run:
    done = Run(command, *arguments, "--session", str(session.process.pid))
    assert done.status == status, done
    return done


def test_set_pause_and_resume_change_the_next_call() -> None:
    puppet = start_puppet()
    with Session(WORK, pid=puppet.pid) as session:
        assert puppet.call("work_push", 20) > 2 * MS
        ask(session, "set", "work_push", "delay=6ms")
        assert puppet.call("work_push", 20) > 6 * MS
        ask(session, "pause")
        assert not look(session)["armed"]
        assert min(puppet.each("work_push", 20)) < 1 * MS
        ask(session, "resume")
        assert puppet.call("work_push", 20) > 6 * MS
        live = look(session)
        assert live["armed"] and live["targets"][0]["delay_ns"] == 6 * MS, live
        final = session.stop()
        assert calls(final, "work_push") >= 60, final


def test_a_session_may_begin_paused() -> None:
    puppet = start_puppet()
    with Session(WORK, "--paused", pid=puppet.pid) as session:
        assert min(puppet.each("work_push", 20)) < 1 * MS
        ask(session, "resume")
        assert puppet.call("work_push", 20) > 2 * MS


def test_detach_returns_when_the_code_is_as_before() -> None:
    puppet = start_puppet()
    with Session(WORK, pid=puppet.pid) as session:
        ask(session, "detach")
        expect_restored(puppet.pid)
        assert session.wait()["reason"] == "detached"


def test_wrong_requests() -> None:
    puppet = start_puppet()
    with Session(WORK, pid=puppet.pid) as session:
        ask(session, "set", "no_such_function", "delay=1ms", status=3)
        ask(session, "set", "*", "delay=11s", status=2)
        ask(session, "set", "*", "pid=1", status=2)
        assert Run("pause", "--session", str(puppet.pid)).status == 1
        with Session(WORK, pid=puppet.pid) as other:
            several = Run("pause")
            assert several.status == 2, several
            assert str(session.process.pid) in several.err, several
            assert str(other.process.pid) in several.err, several


def test_the_list_names_each_session() -> None:
    puppet = start_puppet()
    with Session(WORK, pid=puppet.pid) as one, Session(WORK, pid=puppet.pid) as two:
        listed = Run("status")
        assert listed.status == 0, listed
        for session in (one, two):
            assert str(session.process.pid) in listed.out, listed


def test_a_fifo_gates_phases() -> None:
    puppet = start_puppet()
    gate = scratch() / "gate"
    os.mkfifo(gate, 0o600)
    with Session(WORK, "--paused", f"--control=fifo:{gate}", pid=puppet.pid) as session:
        gate.write_text("resume\n")
        wait_for(lambda: look(session)["armed"], 5, "resume")
        assert puppet.call("work_push", 20) > 2 * MS
        gate.write_text("set * delay=4ms\npause\n")
        wait_for(lambda: not look(session)["armed"], 5, "pause")
        assert look(session)["targets"][0]["delay_ns"] == 4 * MS
        gate.write_text("detach\n")
        assert session.wait()["reason"] == "detached"


def test_what_is_no_fifo_is_refused() -> None:
    puppet = start_puppet()
    done = Run("attach", "--pid", str(puppet.pid), "--control=fifo:/dev/null", targets_file(WORK))
    assert done.status == 2, done
    assert "/dev/null is not a fifo" in done.err, done


def test_nothing_stays_behind() -> None:
    for how in (signal.SIGKILL, signal.SIGTERM):
        puppet = start_puppet()
        session = Session(WORK, pid=puppet.pid)
        socket = DIRECTORY / str(session.process.pid)
        assert socket.is_socket()
        assert DIRECTORY.stat().st_mode & 0o777 == 0o700
        session.process.send_signal(how)
        session.process.wait(timeout=30)
        wait_for(lambda: not socket.exists(), 2, "no socket")
        expect_restored(puppet.pid)


def test_a_request_is_handled_within_a_millisecond() -> None:
    puppet = start_puppet()
    with Session(WORK, pid=puppet.pid) as session:
        handled = [json.loads(ask(session, "set", "*", "delay=1ms", "--json").out)["handled_ns"]
                   for _ in range(30)]
        print(f"  requests are handled in {min(handled) / 1000:.0f} to {max(handled) / 1000:.0f} us")
        # The others had to wait for a CPU, where the machine is busy.
        assert sorted(handled)[3] < 1 * MS, handled


if __name__ == "__main__":
    main(globals())
