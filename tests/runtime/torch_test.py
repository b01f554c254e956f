# SPDX-License-Identifier: MIT
"""PyTorch of Debian 13 in a root of its own, looked at and slowed from outside. What its model has
learnt is, to the bit, what it learns undisturbed."""

import json

from checked import CHECKED, Conversation, Program, compare, undisturbed
from harness import Run, Session, campaign, delays, main, scratch
from torch_root import in_root, need_core

RUNS = 20  # in the campaign


def torch() -> Program:
    return Program(
        in_root(CHECKED / "model.py"),
        ("libc.so.6", "libm.so.6", "libstdc++.so.6", "libgomp.so.1", "libblas.so*",
         "liblapack.so*", "exe"),
        rounds=2)


def discover(target: Conversation, reference: str) -> None:
    with target.busy(reference):
        done = Run("discover", "--json", "--pid", str(target.pid), "--for", "6s", timeout=120)
    assert done.status == 0, done
    found = json.loads(done.out)
    seen = [one for one in found["native"]["functions"] if one.get("self")]
    counted = [one for one in seen[:5] if one.get("calls_per_second")]
    # what stands at the top of the stacks is counted first, or it says why not
    assert counted, seen[:5]
    assert all("calls" in one or one.get("not_counted") for one in seen[:5]), seen[:5]
    assert any(one["function"] == "train" for one in found["python"]["functions"]), found["python"]
    print(f"  {[(one['name'][:30], one['calls_per_second']) for one in counted]}", flush=True)


def attach(target: Conversation, reference: str) -> None:
    """Native and Python functions slowed together."""
    with Session("+libc.so.6:memset delay=1us\n+libc.so.6:memcpy delay=1us\n"
                 "+libtorch_cpu.so*:*addmm* delay=2us\n__main__:train delay=1ms\n",
                 pid=target.pid) as session:
        assert target.ask() == reference
        final = session.stop()
    assert delays(final, "train") == 1, final["targets"]
    assert sum(one["calls"] for one in final["targets"]) > 50, final["targets"]
    assert target.ask() == reference


def experiment(target: Conversation, reference: str) -> None:
    folder = scratch()
    (folder / "targets.txt").write_text("+libblas.so*:sgemm_\n__main__:train\n")
    with target.busy(reference):
        done = Run("experiment", "--pid", str(target.pid), "--progress", "python:__main__:train",
                   "--doses=2ms", "--blocks=3", "--time=40s", "--slice=400ms",
                   "--max-slowdown=1000%", "-o", str(folder / "r.json"),
                   str(folder / "targets.txt"), timeout=180)
    # Three blocks on a host with other load may well be invalid, and then it says so.
    assert done.status == 0 or "INVALID: " in done.out, done
    rows = json.loads((folder / "r.json").read_text())["results"]["progress"][0]["targets"]
    called = {one["name"] for one in rows if one["calls_per_unit"] > 0}
    assert called == {"__main__:train", "+libblas.so*:sgemm_"}, rows


def _each_command(steps) -> None:
    program = torch()
    reference, status = undisturbed(program)
    target = Conversation(program)
    assert target.ask() == reference, "its answers differ from run to run"
    need_core(target.pid)
    for step in steps:
        step(target, reference)
    assert target.end() == status


def test_discover_attach_and_experiment() -> None:
    _each_command((discover, attach, experiment))


def test_whole_libraries() -> None:
    compare(torch())


@campaign
def test_twenty_runs() -> None:
    for run in range(RUNS):
        print(f"run {run + 1}", flush=True)
        _each_command((discover, attach))
        compare(torch())


if __name__ == "__main__":
    main(globals())
