# SPDX-License-Identifier: MIT
"""A probe changes time and nothing else: docs/probe-sites.md."""

import json
import os

from harness import (
    PROGRAMS, Run, Session, Skip, calls, main, start_puppet, targets_file, wait_for, without_rights,
)

DELICATE = str(PROGRAMS / "delicate")
FUNCTIONS = ("red_zone", "one_more", "bits", "spilled_bits", "only_vex", "fill", "locked")


def test_results_are_those_of_unprobed_functions() -> None:
    """Red zone, vectors, repetitions, locks, forked children: no result changes with delay 0."""
    target = start_puppet(DELICATE)
    with Session("+exe:* delay=0ns", pid=target.pid) as session:
        wait_for(lambda: calls(session.documents[-1], "red_zone") > 3000, 30, "3,000 calls")
        rounds, wrong = (int(word) for word in target.ask("").split())
        assert target.end() == 0
        final = session.wait()
    assert rounds > 0 and wrong == 0, f"{wrong} wrong results in {rounds} rounds"
    # one call counts as one, also where the first instruction repeats itself
    for name in ("fill", "locked"):
        assert 0 < calls(final, name) <= rounds, (name, calls(final, name), rounds)


def test_what_has_no_site_is_skipped_with_the_reason() -> None:
    target = start_puppet(DELICATE)
    targets = targets_file("".join(f"+exe:{name} delay=1us\n" for name in FUNCTIONS))
    done = Run("check", "--json", "--pid", str(target.pid), targets)
    report = json.loads(done.out)
    skipped = {one["name"]: one["reason"] for one in report["skipped"]}
    assert "vmovd %xmm0, %eax" in skipped["only_vex"], done
    assert "get wrong" in skipped["only_vex"], done
    sites = {one["name"]: one["site"] for line in report["lines"] for one in line["matches"]}
    assert sites["spilled_bits"]["instruction"] == "mov -0x20(%rsp), %rax", sites
    assert sites["fill"]["instruction"] == "mov %rdi, %rax", sites
    assert sites["red_zone"]["instruction"] != "nopl (%rax,%rax,1)", sites
    target.send("")


def test_what_becomes_of_nops_is_not_said_where_it_was_not_tried() -> None:
    """Kernels before 6.18 rewrite none, which even who may not probe can tell."""
    if os.uname().machine != "x86_64":
        raise Skip("is for x86-64")
    target = start_puppet(preexec_fn=without_rights)
    done = Run("check", "-v", "--pid", str(target.pid), targets_file("+exe:work_nop delay=1us\n"),
               preexec_fn=without_rights)
    assert done.status == 0, done
    if tuple(int(word) for word in os.uname().release.split(".")[:2]) < (6, 18):
        assert "probe: single-stepped, nop" in done.out, done
    else:
        assert "could not be tried out" in done.out and "by this kernel" not in done.out, done
    target.end()


if __name__ == "__main__":
    main(globals())
