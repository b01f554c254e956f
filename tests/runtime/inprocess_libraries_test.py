# SPDX-License-Identifier: MIT
"""--engine=inprocess: jumps in all functions of whole libraries that have a site, at a delay of 0, in
programs of others that check their own results; put in and taken out while they work."""


import whole_libraries_test as programs
from checked import Conversation, Program, all_probed, compare, undisturbed
from harness import expect_restored, main, need_jumps
from services import wait_for

ENGINE = "--engine=inprocess"


def check(make, cycles: int = 2) -> None:
    need_jumps()
    program = make()
    compare(program, ENGINE)
    change_while_busy(program, cycles)


def change_while_busy(program: Program, cycles: int) -> None:
    reference, status = undisturbed(program)
    target = Conversation(program)
    with target.busy(reference):
        for _ in range(cycles):
            with all_probed(program.files, target.pid, ENGINE) as has_called:
                wait_for(has_called, 60, "calls of the functions that have jumps")
            for path in mapped_code(target.pid):
                expect_restored(target.pid, path)
    assert target.ask() == reference
    assert target.end() == status


def mapped_code(pid: int) -> set[str]:
    with open(f"/proc/{pid}/maps") as maps:
        fields = [line.split(maxsplit=5) for line in maps]
    return {one[5].strip() for one in fields
            if len(one) == 6 and "x" in one[1] and one[5].startswith("/usr/")}


def test_perl() -> None:
    check(programs.perl)


def test_numpy() -> None:
    check(programs.numpy)


def test_ruby() -> None:
    check(programs.ruby)


def test_node() -> None:
    check(programs.node)


def test_java() -> None:
    check(programs.java)


def test_php() -> None:
    check(programs.php)


def test_cpython() -> None:
    check(programs.cpython)


def test_redis() -> None:
    need_jumps()
    programs.compare_redis(ENGINE)


if __name__ == "__main__":
    main(globals())
