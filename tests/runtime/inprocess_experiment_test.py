# SPDX-License-Identifier: MIT
"""Experiments with --engine=inprocess, on a program that wants all CPUs."""

import known_experiments
from harness import (
    PROGRAMS, alone, as_nobody, expect_restored, main, need_jumps, on_each_clock, readable,
)
from inprocess_test import ENGINE, leftover_mappings, unprivileged


@alone
@on_each_clock
def test_an_experiment_in_slices_switched_by_the_clock() -> None:
    need_jumps()
    service = known_experiments.start("serial")
    done = known_experiments.Experiment(
        service.pid, "+exe:work_a\n", ENGINE, "--slice=5ms", "--precision=25%", "--time=90s",
        "--max-slowdown=400%", "--positive=+exe:work_b")
    assert done.status == 0, done
    document = done.document
    assert document["engine"] == "inprocess", document["engine"]
    slices = len(document["sliced"]["units"][0])
    assert slices > 600, done
    known_experiments.expect_times(done)
    for name in ("+exe:work_a", "+exe:work_b"):
        known_experiments.expect_k(done, name, 0.85, 1.15)
        assert done.target(name)["verdict"] != "hidden", done
    for target in document["sliced"]["targets"][:2]:
        on, off = 0, 0
        for step, count in zip(target["steps"], target["delays"]):
            if step.isupper():
                on += count
            else:
                off += count
        # A slice's delays are counted as its own, to the hit.
        assert on > slices / 2 and off == 0, (on, off)
    expect_restored(service.pid)


def test_an_experiment_arm_by_arm_takes_the_jumps_out_and_puts_them_back() -> None:
    need_jumps()
    service = known_experiments.start("serial")
    done = known_experiments.Experiment(
        service.pid, "+exe:work_a\n", ENGINE, "--doses=50us", "--slice=200ms", "--blocks=4",
        "--max-slowdown=400%")
    assert done.status == 0, done
    arms = [one["arm"] for block in done.document["blocks"] for one in block["slices"]]
    assert arms.count("off") == 4, arms
    expect_restored(service.pid)
    assert leftover_mappings(service.pid) == 0


@alone
def test_without_any_rights_the_progress_is_counted_by_jumps_too() -> None:
    need_jumps()
    program = readable(str(PROGRAMS / "known_service"))
    service = known_experiments.start_service(*as_nobody(), program, "serial")
    nobody = unprivileged()
    for how in (("--slice=5ms", "--precision=25%", "--time=90s"),
                ("--doses=50us,100us", "--slice=200ms", "--precision=25%", "--time=90s")):
        done = known_experiments.Experiment(
            service.pid, "+exe:unit*\n+exe:work_a\n", ENGINE, "--max-slowdown=400%", *how, **nobody)
        assert done.status == 0, done
        assert "+exe:unit* names, too: they are no part of that target" in done.err, done
        known_experiments.expect_k(done, "+exe:work_a", 0.85, 1.15)
        # Who counts cannot be taken out to see what looking costs.
        arms = {one["arm"] for block in done.document["blocks"] for one in block["slices"]}
        assert "off" not in arms, arms
        expect_restored(service.pid)
        assert leftover_mappings(service.pid) == 0


if __name__ == "__main__":
    main(globals())
