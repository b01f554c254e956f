# SPDX-License-Identifier: MIT
"""speedbump experiment --bisect and --whole on a service of thousands of Python functions, of which it is
known which ones matter (tests/programs/known_packages.py)."""

import contextlib
import pathlib
import subprocess

from harness import (
    LIBRARY, Run, Skip, alone, campaign, children, expect_restored, main, need, targets_file,
)
from known_experiments import Experiment, expect_k, start_service
from pythons import find

SERVICE = pathlib.Path(__file__).parents[1] / "programs" / "known_packages.py"
PROGRESS = "python:__main__:unit_done"
# A unit is one busy process, and another one is busy beside it.
LIMITS = ("--max-cpu=2", "--max-slowdown=400%", "--precision=15%", "--time=90s")
BRIEFLY = (*LIMITS[:-1], "--time=40s")
# Where the service's processes wait for CPUs, what one of them takes the others do lack: then it matters.
ALONE = 1.2


def start(python: str, functions: int, *library: str) -> subprocess.Popen:
    service = start_service(python, str(SERVICE), str(functions), *library)
    done = Run("list", "--pid", str(service.pid), "__main__:unit_done")
    if "no core is built" in done.err:
        raise Skip(done.err)
    return service


def rungs(done: Experiment) -> list[dict]:
    """Of each rung, verdicts of the groups by name, and which were followed."""
    told = []
    for rung in done.document["rungs"]:
        results = rung["results"]["progress"][0]["targets"]
        followed = {rung["targets"][index]["name"] for index in rung["followed"]}
        assert followed, rung
        told.append({one["name"]: (one["verdict"], one["name"] in followed) for one in results})
    return told


def verdicts(done: Experiment) -> dict[str, str]:
    return {one["name"]: one["verdict"]
            for one in done.document["results"]["progress"][0]["targets"]}


def expect_cart(done: Experiment) -> None:
    """It is the one that matters, and how it was found is told."""
    assert done.status == 0, done
    found = verdicts(done)
    assert found.get("shop.views:Cart.total") == "matters", done
    expect_k(done, "shop.views:Cart.total", 0.75, 1.25)
    if done.crowding is not None and done.crowding < ALONE:
        assert not [one for one in found if one.startswith("audit") and found[one] == "matters"], done
    steps = rungs(done)
    assert list(steps[0]) == ["*:*"] and steps[0]["*:*"][1], steps
    groups = {name for step in steps for name in step}
    assert not [name for name in groups if name.startswith("lib")], groups  # nobody calls them
    assert "bisect, rung 1" in done.out and "taken apart" in done.out, done
    first = done.document["rungs"][0]["targets"][0]
    assert first["function_count"] > 1000, first


@alone
def test_one_function_of_thousands_is_found() -> None:
    service = start(need("/usr/bin/python3"), 5000)
    done = Experiment(service.pid, "*:*\n", "--bisect", *LIMITS, progress=PROGRESS, timeout=380)
    expect_cart(done)
    report = Run("report", str(done.json_path))
    assert "bisect, rung 1" in report.out, report
    for pid in (service.pid, *children(service.pid)):
        expect_restored(pid)


@campaign
def test_python_and_native_functions_are_found_together() -> None:
    pythons = [python for python in find() if python.root is None]  # the last is the newest
    service = start(pythons[-1].command[0], 20000, LIBRARY)
    done = Experiment(service.pid, "*:*\n!shop.codec:*\n+libslowlib.so:*\n", "--bisect", *LIMITS,
                      progress=PROGRESS, timeout=390)
    assert verdicts(done).get(f"+{LIBRARY}:lib_work") == "matters", done
    assert verdicts(done).get("shop.views:Cart.total") == "matters", done
    names = {name for step in rungs(done) for name in step} | verdicts(done).keys()
    assert not [name for name in names if name.startswith("shop.codec")], names  # excluded


@campaign
def test_what_is_hidden_is_not_taken_apart() -> None:
    service = start(need("/usr/bin/python3"), 1000)
    done = Experiment(service.pid, "audit*:*\n", "--bisect", *LIMITS, progress=PROGRESS, timeout=380)
    print(f"  crowding: {done.crowding}")
    if done.crowding is None or done.crowding >= ALONE:
        raise Skip("the host has other work: what is hidden can't be told")
    assert "matters" not in verdicts(done).values(), done
    for rung in done.document.get("rungs", ()):  # in doubt, on a busy host
        assert "matters" not in {one["verdict"] for one in rung["results"]["progress"][0]["targets"]}


@alone
def test_a_whole_runtime_is_one_target() -> None:
    service = start(need("/usr/bin/python3"), 1000, LIBRARY)
    done = Experiment(service.pid, "!audit*:*\n!__main__:*\n+libslowlib.so:lib_*\n+exe:main\n",
                      "--whole=python,native", *BRIEFLY, progress=PROGRESS, timeout=180)
    assert done.status == 0, done
    found = verdicts(done)
    assert set(found) == {"*:*", "+libslowlib.so:lib_* +exe:main"}, done
    # On a host that has other work it may not be known yet; hidden it never is.
    print(f"  crowding: {done.crowding}, {found}")
    assert found["*:*"] in ("matters", "uncertain"), done
    assert done.target("*:*")["criticality"]["high"] > 0.85, done
    # Two functions a unit, one after the other.
    calls = done.target("*:*")["calls_per_unit"]
    assert 1.9 < calls < 2.1, done
    done = Run("experiment", "--pid", str(service.pid), "--progress", PROGRESS, "--whole=python",
               "--blocks=2")
    assert done.status in (0, 1) and "*:*" in done.out, done
    done = Run("experiment", "--pid", str(service.pid), "--progress", PROGRESS, "--whole=native",
               targets_file("app:f\n"))
    assert done.status == 2 and "+libfoo.so*:*" in done.err, done
    done = Run("experiment", "--pid", str(service.pid), "--progress", PROGRESS, "--whole=native",
               "--bisect", targets_file("app:f\n"))
    assert done.status == 2 and "excludes" in done.err, done


if __name__ == "__main__":
    with contextlib.suppress(BrokenPipeError):
        main(globals())
