# SPDX-License-Identifier: MIT
"""speedbump run: exit statuses, signals, and slowed from the first call on."""

import json
import os
import pathlib
import signal
import subprocess
import time

from harness import (
    LIBRARY, MS, PUPPET, SPEEDBUMP, Run, calls, children, delays, leave_none, lives, main, scratch,
    targets_file, wait_for,
)

PUSH = targets_file("+exe:work_push delay=2ms")


def run(*command: str, targets: str = PUSH, **options) -> Run:
    return Run("run", "--json", targets, "--", *command, **options)


def spent_ns(done: Run) -> list[int]:
    """The answers of the puppet, among the documents."""
    return [int(line) for line in done.out.splitlines() if line.isdigit()]


def test_exit_status_is_the_programs() -> None:
    for status in (0, 1, 3, 77, 255):
        done = run(PUPPET, f"exit {status}")
        assert done.status == status, done


def test_its_status_counts_where_nothing_matched_and_the_session_ends_first() -> None:
    targets = targets_file("+exe:nonesuch")
    done = Run("run", "--missing=ignore", targets, "--", "/bin/sh", "-c",
               '"$0" detach --session $PPID && sleep 0.2 && exit 7', SPEEDBUMP)
    assert done.status == 7, done


def test_death_by_a_signal_is_128_and_its_number() -> None:
    for number in (signal.SIGTERM, signal.SIGKILL, signal.SIGSEGV):
        done = run(PUPPET, f"signal {int(number)}")
        assert done.status == 128 + number, done


def test_no_such_program_is_127_and_not_executable_126() -> None:
    assert run("no-such-program-here").status == 127
    assert run("/no/such/file").status == 127
    folder = scratch()
    (folder / "plain").write_text("text")
    assert run(str(folder / "plain")).status == 126
    assert run(str(folder)).status == 126


def test_slowed_from_the_first_call_and_exactly_counted() -> None:
    for _ in range(5):
        done = run(PUPPET, "each work_push 20 0", "exit 0")
        assert done.status == 0, done
        times = [int(word) for word in done.out.splitlines()[-2].split()]
        assert min(times) > 1.9 * MS, times
        assert calls(done.final(), "work_push") == 20


def test_no_call_is_missed_in_the_first_second() -> None:
    """Calls all the time while the session goes from its first probes to its last."""
    process = subprocess.Popen(
        [SPEEDBUMP, "run", "--json", targets_file("+exe:work_push delay=0"), "--", PUPPET],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    leave_none(lambda: (process.kill(), process.wait()))

    def ask() -> None:
        process.stdin.write("call work_push 1000\n")
        process.stdin.flush()

    ask()
    asked, end = 1, None
    while end is None or time.monotonic() < end:
        ask()  # one ahead, so that it never waits for this program
        asked += 1
        while not (line := process.stdout.readline()).strip().isdigit():
            assert line, process.wait()
        end = end or time.monotonic() + 3
    process.stdin.close()
    final = json.loads(process.stdout.read().splitlines()[-1])
    assert process.wait() == 0 and calls(final, "work_push") == 1000 * asked, (asked, final)


def test_children_and_libraries_of_the_program() -> None:
    done = run(PUPPET, "births 20 work_push", f"load {LIBRARY}", "call lib_work 10", "exit 0",
               targets=targets_file(f"+exe:work_push delay=1ms\n+{LIBRARY}:lib_work delay=1ms"))
    assert done.status == 0, done
    assert spent_ns(done)[-1] > 9.5 * MS, done
    assert calls(done.final(), "lib_work") == 10
    assert calls(done.final(), "work_push") == 20


def test_library_that_the_program_is_linked_with() -> None:
    """libc's own function, called by the program from its start."""
    done = run("/bin/echo", "hello", targets=targets_file("+libc.so.6:setlocale delay=50ms"))
    assert done.status == 0, done
    assert delays(done.final(), "setlocale") >= 1 or done.final()["all"]["delays"] >= 1, done


def test_script_and_its_interpreter() -> None:
    script = scratch() / "script"
    script.write_text(f"#!{PUPPET}\n")
    script.chmod(0o755)
    # The kernel hands the script's path to the puppet, which does not know that command.
    done = run(str(script), input="call work_push 10\n", targets=PUSH)
    assert done.status == 0, done
    assert calls(done.final(), "work_push") == 10, done


def test_standard_streams_and_environment_are_the_programs() -> None:
    done = Run("run", "-q", "-o", "/dev/null", targets_file("+libc.so.6:write"), "--", "/bin/sh", "-c",
               "cat; echo $SPEEDBUMP_X; echo bad >&2; ls /proc/self/fd | wc -l",
               input="text\n", before=["env", "SPEEDBUMP_X=y"])
    assert done.out.splitlines()[:2] == ["text", "y"], done
    assert "bad" in done.err
    plain = subprocess.run(["/bin/sh", "-c", "ls /proc/self/fd | wc -l"], capture_output=True,
                           text=True, stdin=subprocess.PIPE)
    assert done.out.splitlines()[2] == plain.stdout.strip(), done


def test_its_limit_of_descriptors_is_its_own() -> None:
    done = Run("run", "-q", "-o", "/dev/null", targets_file("+libc.so.6:write"), "--", "/bin/sh", "-c",
               "ulimit -Sn; grep 'open files' /proc/$PPID/limits", before=["prlimit", "--nofile=64:4096"])
    assert done.out.split() == ["64", "Max", "open", "files", "4096", "4096", "files"], done


def test_signals_go_to_the_program() -> None:
    process = subprocess.Popen(
        [SPEEDBUMP, "run", "--missing=ignore", PUSH, "--", "/bin/sh", "-c",
         'trap "exit 42" TERM; echo ready; while :; do sleep 0.05; done'],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )
    while process.stdout.readline() not in ("ready\n", ""):
        pass
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=10)
    assert process.returncode == 42, process.returncode


def test_ctrl_c_is_130_whatever_is_done_meanwhile() -> None:
    """It reaches the program that is held, too, and that one is gone before all is attached."""
    targets = targets_file("+libc.so.6:mem*\n+libc.so.6:str*\n")
    for moment in range(16):
        process = subprocess.Popen(
            [SPEEDBUMP, "run", "-q", "--missing=ignore", "--delay=0", targets, "--", "/bin/sleep",
             "60"], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
            start_new_session=True)
        leave_none(lambda process=process: (process.kill(), process.wait()))
        wait_for(lambda pid=process.pid: children(pid), 20, "the program that is held")
        time.sleep(moment * 0.04)
        os.killpg(process.pid, signal.SIGINT)
        _, err = process.communicate(timeout=60)
        # Before signals are taken in it ends by the signal itself, which a shell calls 130 as well.
        assert process.returncode in (130, -signal.SIGINT), (moment, process.returncode, err)
        assert "error" not in err, (moment, err)


def test_a_stop_for_this_program_alone_stops_the_one_it_holds() -> None:
    targets = targets_file("+libc.so.6:mem*\n+libc.so.6:str*\n")
    for moment in range(8):
        process = subprocess.Popen(
            [SPEEDBUMP, "run", "-q", "--missing=ignore", "--delay=0", targets, "--", "/bin/sleep",
             "60"], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        leave_none(lambda process=process: (process.kill(), process.wait()))
        wait_for(lambda pid=process.pid: children(pid), 20, "the program that is held")
        held = children(process.pid)[0]
        time.sleep(moment * 0.08)
        process.send_signal(signal.SIGTERM)
        _, err = process.communicate(timeout=60)
        assert process.returncode in (143, -signal.SIGTERM), (moment, process.returncode, err)
        wait_for(lambda held=held: not lives(held), 20, "the end of the program")


def test_program_outlives_a_killed_loader_unslowed() -> None:
    folder = scratch()
    script = folder / "s.sh"
    script.write_text(f"echo $$ > {folder}/pid; exec sleep 30")
    process = subprocess.Popen(
        [SPEEDBUMP, "run", "-q", "--missing=ignore", targets_file("+libc.so.6:nanosleep"), "--",
         "/bin/sh", str(script)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    wait_for(lambda: (folder / "pid").exists() and (folder / "pid").read_text() != "", 20, "start")
    pid = int((folder / "pid").read_text())
    name = pathlib.Path(f"/proc/{pid}/comm")
    wait_for(lambda: name.read_text() == "sleep\n", 20, "the program")
    time.sleep(0.3)
    process.kill()
    process.wait()
    time.sleep(0.1)
    assert name.read_text() == "sleep\n"
    os.kill(pid, signal.SIGKILL)


if __name__ == "__main__":
    main(globals())
