# SPDX-License-Identifier: MIT
"""Where results go: files that can't take them, and standard streams that are not there."""

import os
import signal
import subprocess

from harness import SPEEDBUMP, Run, leave_none, main, start_puppet, targets_file, wait_for


def test_standard_streams_that_are_not_there_are_nothing_elses() -> None:
    puppet = start_puppet()
    process = subprocess.Popen(
        ["sh", "-c", 'exec "$0" "$@" <&- >&- 2>&-', SPEEDBUMP, "attach", "--pid", str(puppet.pid),
         targets_file("+exe:work_push delay=1us")])
    leave_none(lambda: (process.kill(), process.wait()))
    wait_for(lambda: Run("status", "--json", "--session", str(process.pid)).status == 0, 30, "the session")
    held = [os.readlink(f"/proc/{process.pid}/fd/{stream}") for stream in range(3)]
    assert held == ["/dev/null"] * 3, held
    process.send_signal(signal.SIGINT)
    assert process.wait(timeout=30) == 1  # its table could not be written


if __name__ == "__main__":
    main(globals())
