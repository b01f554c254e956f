# SPDX-License-Identifier: MIT
"""The whole way through the product, on a small decoder of PyTorch's that serves tokens
(tests/programs/decoder.py): what runs, does Python matter and which functions, by how much, and is what
making one cheaper is said to gain what it gains. Its answers are, to the bit, those of before."""

import contextlib
import json
import pathlib
import statistics
from collections.abc import Iterator

from checked import Conversation, Program, undisturbed
from harness import Run, Skip, campaign, children, cpu_ns, expect_restored, main, scratch
from known_experiments import Experiment, expect_k
from torch_root import in_root, need_core

DECODER = pathlib.Path(__file__).parents[1] / "programs" / "decoder.py"
PROGRESS = "python:__main__:token_done"
ALONE = 1.2  # as in bisect_test
EXTRA_US = 1500  # in each of a token's two calls of Attention.forward
LIMITS = ("--max-cpu=2", "--max-slowdown=400%", "--precision=10%", "--time=90s")
OF_EACH_RUNG = (*LIMITS[:2], "--precision=20%", "--time=30s", "--slice=300ms")
# Calls a token, of what is one after the other: a dose of one is a dose of the token.
SERIAL = {"*:Attention.forward": 2, "*:FeedForward.forward": 2,
          "+libtorch_cpu.so*:at::_ops::linear::call": 9}


def decoder(extra_us: int = 0) -> Program:
    return Program(in_root(DECODER, str(extra_us)), ())


@contextlib.contextmanager
def serving(extra_us: int) -> Iterator[Conversation]:
    """A decoder that serves all the time; each answer is that of one that nobody looks at."""
    reference, _ = undisturbed(decoder(extra_us))
    target = Conversation(decoder(extra_us))
    assert target.ask() == reference  # it has begun
    need_core(target.pid)
    with target.busy(reference):
        yield target


def token_cpu_us(extra_us: int) -> float:
    """The CPU time of a token where nothing looks at it: it is one thread's."""
    target = Conversation(decoder(extra_us))
    target.ask()
    costs = []
    for _ in range(20):
        before = cpu_ns(target.pid)
        target.ask()
        costs.append((cpu_ns(target.pid) - before) / 8 / 1e3)
    target.end()
    return statistics.median(costs)


def rows(experiment: Experiment) -> dict[str, dict]:
    return {one["name"]: one
            for one in experiment.document["results"]["progress"][0]["targets"]}


@campaign
def test_what_runs_and_which_functions_matter() -> None:
    with serving(EXTRA_US) as target:
        page = scratch() / "map.html"
        seen = Run("discover", "--json", "--pid", str(target.pid), "--for", "8s", "--top", "0",
                   "--html", str(page), timeout=120)
        assert seen.status == 0, seen
        python = {one["function"] for one in json.loads(seen.out)["python"]["functions"]}
        assert {"Attention.forward", "FeedForward.forward", "Scorer.forward"} <= python, python
        found = Experiment(target.pid, "*:*\n", "--bisect", *OF_EACH_RUNG, progress=PROGRESS,
                           timeout=330)
        assert found.status == 0, found
        matter = {name for name, one in rows(found).items() if one["verdict"] == "matters"}
        print(f"  crowding {found.crowding}\n{found.out}")
        assert any(name.startswith("__main__") for name in matter), found
        if found.crowding is not None and found.crowding < ALONE:
            assert not [name for name in matter if "Scorer" in name], found
        joined = scratch() / "joined.html"
        for done in (Run("report", str(found.json_path)),
                     Run("discover", "--pid", str(target.pid), "--for", "4s", "--html", str(joined),
                         "--experiment", str(found.json_path), timeout=120)):
            assert done.status == 0, done
        assert page.stat().st_size > 10_000 and joined.stat().st_size > 10_000
        for pid in (target.pid, *children(target.pid)):
            expect_restored(pid)


@campaign
def test_modules_answer_as_their_place_says_and_a_gain_is_as_predicted() -> None:
    with serving(EXTRA_US) as target:
        done = Experiment(target.pid, "".join(f"{name}\n" for name in (*SERIAL, "*:Scorer.forward",
                                                                       "+libblas.so*:sgemm_")),
                          "--doses=500us,1ms,2ms", "--slice=300ms", *LIMITS, progress=PROGRESS,
                          timeout=330)
        print(done.out)
    found = rows(done)
    is_crowded = done.crowding is None or done.crowding >= ALONE
    if is_crowded and (done.status != 0 or any(found[name]["verdict"] == "uncertain" for name in SERIAL)):
        raise Skip(f"the host has other work: nothing is known, {done.out}")
    assert done.status == 0, done
    for name, calls in SERIAL.items():
        expect_k(done, name, 0.85, 1.15)
        assert abs(found[name]["calls_per_unit"] - calls) < 0.1 * calls, found[name]
    assert found["+libblas.so*:sgemm_"]["calls_per_unit"] > 0, found["+libblas.so*:sgemm_"]
    if not is_crowded:
        assert found["*:Scorer.forward"]["verdict"] != "matters", found["*:Scorer.forward"]
    # Two calls a token, each cheaper by EXTRA_US.
    k = found["*:Attention.forward"]["criticality"]
    gained = token_cpu_us(EXTRA_US) - token_cpu_us(0)
    low, high = (k[end] * 2 * EXTRA_US for end in ("low", "high"))
    print(f"  predicted gain {low:.0f} to {high:.0f} us a token, crowding {done.crowding}; real gain "
          f"{gained:.0f} us of CPU time")
    assert 0.85 * low <= gained * (done.crowding or 1) and gained <= 1.15 * high, (k, gained)


if __name__ == "__main__":
    main(globals())
