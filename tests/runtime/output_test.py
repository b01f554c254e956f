# SPDX-License-Identifier: MIT
"""Where results go: files that can't take them, and standard streams that are not there."""

import json
import os
import resource
import signal
import subprocess

from harness import SPEEDBUMP, Run, leave_none, main, scratch, start_puppet, targets_file, wait_for

_SMALL = 4096  # bytes, of a file


def _little_room() -> None:
    """For `preexec_fn`: no file gets larger than that, as on a full disk."""
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (_SMALL, _SMALL))


def _result() -> str:
    """A result of an experiment in which nothing was measured, that is larger."""
    path = scratch() / "result.json"
    path.write_text(json.dumps({
        "schema": "speedbump/experiment/1", "version": "0.1.0", "host": "a", "kernel": "6", "machine": "m",
        "engine": "bpf", "started_unix_ns": 1, "seed": 1,
        "settings": {"slice_ns": 1, "settle_ns": 1, "precision": 0, "max_slowdown": 0.5, "max_cpu": 1},
        "progress": ["native:exe:f"], "targets": [], "blocks": [], "warnings": ["x" * 2 * _SMALL],
        "tool_cpu": 0, "stopped": "time", "complete": True}))
    return str(path)


def test_a_full_disk_takes_no_result_that_was_there() -> None:
    result, folder = _result(), scratch()
    for option, name in (("-o", "r.json"), ("--html", "r.html")):
        old, new = folder / f"old-{name}", folder / f"new-{name}"
        old.write_text("from before")
        for path in (old, new):
            done = Run("report", result, option, str(path), preexec_fn=_little_room)
            assert done.status == 1 and str(path) in done.err and "File too large" in done.err, done
        assert old.read_text() == "from before"
        assert not new.exists()
    assert Run("report", result, "-o", str(folder / "r.json")).status == 1  # nothing was measured
    assert Run("report", str(folder / "r.json")).status == 1
    (folder / "r.json").write_text("y" * 20 * _SMALL)  # a longer one
    Run("report", result, "-o", str(folder / "r.json"))
    assert json.loads((folder / "r.json").read_text())["warnings"] == ["x" * 2 * _SMALL]


def test_a_command_that_fails_leaves_its_file_alone() -> None:
    old, new = scratch() / "old", scratch() / "new"
    old.write_text("from before")
    for path in (old, new):
        done = Run("dump", "--pid", "4194304", "-o", str(path))
        assert done.status != 0, done
    assert old.read_text() == "from before"
    assert not new.exists()


def test_no_setting_makes_a_result_that_cannot_be_read() -> None:
    done = Run("experiment", "--pid", "1", "--progress", "syscall:write", "--max-cpu=inf", targets_file("+exe:f"))
    assert done.status == 2 and "'inf' is not a number above 0" in done.err, done


def test_a_full_device_is_named() -> None:
    for arguments in (("report", _result(), "-o", "/dev/full"), ("doctor", "-o", "/dev/full")):
        done = Run(*arguments)
        assert done.status != 0 and "/dev/full: No space left" in done.err, done


def test_standard_streams_that_are_not_there_are_nothing_elses() -> None:
    puppet = start_puppet()
    process = subprocess.Popen(
        ["sh", "-c", 'exec "$0" "$@" <&- >&- 2>&-', SPEEDBUMP, "attach", "--pid", str(puppet.pid),
         targets_file("+exe:work_push delay=1us")])
    leave_none(lambda: (process.kill(), process.wait()))
    wait_for(lambda: Run("status", "--json", str(process.pid)).status == 0, 30, "the session")
    held = [os.readlink(f"/proc/{process.pid}/fd/{stream}") for stream in range(3)]
    assert held == ["/dev/null"] * 3, held
    process.send_signal(signal.SIGINT)
    assert process.wait(timeout=30) == 1  # its table could not be written


if __name__ == "__main__":
    main(globals())
