# SPDX-License-Identifier: MIT
"""Targets that work against the tool: nothing that they do may hold it up, end it, or lead it."""

import subprocess
import time

from harness import MS, PROGRAMS, Session, Skip, _leftovers, calls, main


def test_a_stack_page_that_nobody_provides_holds_no_spin_up() -> None:
    program = PROGRAMS / "unanswered_page"
    if not program.exists():
        raise Skip("the program is for x86-64")
    target = subprocess.Popen([str(program)], stdout=subprocess.PIPE, text=True)
    _leftovers.append(lambda: (target.kill(), target.wait()))
    if target.stdout.readline() != "ready\n":
        raise Skip("this host has no userfaultfd")
    with Session(f"+exe:spot delay={50 * MS}ns", pid=target.pid) as session:
        time.sleep(0.5)
        begin = time.monotonic()
        final = session.stop()
        took = time.monotonic() - begin
    assert calls(final, "spot") > 2, "the spin does not come back"
    assert took < 5, f"it took {took:.1f} s to end"


if __name__ == "__main__":
    main(globals())
