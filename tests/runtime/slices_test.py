# SPDX-License-Identifier: MIT
"""speedbump experiment --slice of 50 ms or less: all targets at once, switched by the clock."""

import json
import signal
import socket
import subprocess
import urllib.error
import urllib.request

from browser import Cells, browse
from harness import (
    LIBRARY, PROGRAMS, Run, alone, campaign, expect_restored, leave_none, main, need, scratch,
    targets_file, wait_for,
)
from known_experiments import (
    PROGRESS, UNTIL_KNOWN, Experiment, Measuring, expect_k, expect_times, start, start_python,
)

# Until the intervals say something (expect_k), on a host as noisy as it may be.
SHORT = ("--slice=5ms", "--precision=25%", "--time=90s", "--max-slowdown=400%")
# Whatever it can say by then: nothing that is wrong.
BRIEFLY = ("--precision=15%", "--time=25s", "--max-slowdown=400%")


@alone
def test_serial_functions_are_measured_at_once() -> None:
    service = start("serial")
    done = Experiment(service.pid, "+exe:work_a\n", *SHORT, "--positive=+exe:work_b")
    assert not any("positive" in why for why in done.document["results"]["invalid_because"]), done
    assert done.status == 0, done
    document = done.document
    assert document["settings"]["slice_ns"] == 5_000_000
    slices = len(document["sliced"]["units"][0])
    assert slices > 600, done
    expect_times(done)
    for name in ("+exe:work_a", "+exe:work_b"):
        expect_k(done, name, 0.85, 1.15)
        assert done.target(name)["verdict"] != "hidden", done
    for target in document["sliced"]["targets"][:2]:
        # As many slices with a dose as without, as coins say, and none but those delayed much.
        drawn = sum(step.isupper() for step in target["steps"])
        assert abs(drawn - slices / 2) < 5 * slices ** 0.5 / 2, (drawn, slices)
        off = sum(delays for step, delays in zip(target["steps"], target["delays"])
                  if step.islower())
        assert off <= sum(target["delays"]) / 1000, (off, sum(target["delays"]))
    report = Run("report", str(done.json_path), "--json")
    assert json.loads(report.out)["results"] == document["results"]
    expect_restored(service.pid)


@alone
def test_slices_are_as_short_as_the_service_allows() -> None:
    service = start("serial")
    done = Experiment(service.pid, "+exe:work_a\n+exe:work_b\n", *UNTIL_KNOWN)
    assert done.status == 0, done
    # Ten units of 400 us and more, as a dose is up to half of them.
    assert 4_000_000 <= done.document["settings"]["slice_ns"] <= 10_000_000, done
    assert done.document["sliced"]["slice_ns"] == done.document["settings"]["slice_ns"]
    for name in ("+exe:work_a", "+exe:work_b"):
        expect_k(done, name, 0.85, 1.15)
        assert done.target(name)["verdict"] != "hidden", done
    expect_restored(service.pid)


# An effect that is spread over many slices is seen only where the host is quiet: unit.experiment_slices
# judges how well it is seen by exact runs.
@campaign
def test_slices_get_longer_where_effects_come_late() -> None:
    service = start("late")
    done = Experiment(service.pid, "+exe:work_a\n", "--max-slowdown=400%")
    assert done.status == 0, done
    slice_ns = done.document["settings"]["slice_ns"]
    assert slice_ns > 12_000_000, done
    progress = done.document["results"]["progress"][0]
    assert progress["arrives_within_slices"] * slice_ns > 150_000_000, done
    assert not progress["arrives_later"], done
    k = done.target("+exe:work_a")["criticality"]
    assert k["low"] < 1.15 * done.crowding and k["high"] > 0.85, done
    assert done.target("+exe:work_a")["verdict"] != "hidden", done


@campaign
def test_an_effect_that_comes_too_late_is_told() -> None:
    service = start("late")
    done = Experiment(service.pid, "+exe:work_a\n", "--slice=4ms", "--time=15s",
                      "--max-slowdown=400%")
    assert done.document["results"]["progress"][0]["arrives_later"], done
    assert done.target("+exe:work_a")["verdict"] != "hidden", done
    assert "or later, which is not counted: take longer slices" in done.out, done


@alone
def test_units_that_take_long_are_measured_in_long_slices() -> None:
    service = start("steps")  # of 20 ms
    done = Experiment(service.pid, "+exe:work_step\n", "--time=6s", "--max-slowdown=400%")
    assert "sliced" not in done.document and done.document["blocks"], done
    assert "one target after the other, in long slices: a unit takes" in done.out, done


@alone
def test_python_and_native_functions_of_one_service() -> None:
    service = start_python("mixed")
    names = ("__main__:work_a", "+libslowlib.so:lib_work")
    done = Experiment(service.pid, "\n".join(names) + "\n", *SHORT,
                      progress="python:__main__:unit_done")
    assert done.status == 0, done
    expect_times(done)
    for name in names:
        expect_k(done, name, 0.85, 1.15)
        assert done.target(name)["verdict"] != "hidden", done
    expect_restored(service.pid, LIBRARY)


@alone
def test_the_function_that_ends_a_unit_can_be_delayed_itself() -> None:
    service = start_python("serial")
    done = Experiment(service.pid, "__main__:unit_done\n", *SHORT,
                      progress="python:__main__:unit_done")
    assert done.status == 0, done
    expect_k(done, "__main__:unit_done", 0.85, 1.15)


@alone
def test_what_nobody_waits_for_does_not_matter() -> None:
    service = start("apart")
    done = Experiment(service.pid, "+exe:work_on\n+exe:work_off\n", "--slice=5ms", *BRIEFLY)
    assert done.status == 0, done
    assert done.target("+exe:work_on")["verdict"] != "hidden", done
    assert done.target("+exe:work_on")["criticality"]["high"] > 0.8, done
    if done.crowding is not None and done.crowding < 1.2:  # else it does take the other one's CPU
        assert done.target("+exe:work_off")["verdict"] != "matters", done


@campaign
def test_slack_is_not_taken_for_something_that_matters() -> None:
    service = start("slack")
    done = Experiment(service.pid, "+exe:work_short\n", "--doses=1ms", "--slice=5ms", *BRIEFLY)
    assert done.status == 0, done
    found = done.target("+exe:work_short")
    assert found["verdict"] != "matters", done
    if found["shape"] == "hinge":
        assert found["slack_ns"]["low"] < 500_000 and found["slack_ns"]["high"] > 300_000, found
        assert found["gain_ns_per_us"] is None, found


@alone
def test_the_few_of_a_hundred_that_matter_are_found() -> None:
    """Each has a dose in 3 % of the slices."""
    service = subprocess.Popen([PROGRAMS / "hundred", "7"], stdin=subprocess.PIPE,
                               stdout=subprocess.PIPE, text=True)
    leave_none(service.kill)
    critical = {f"+exe:f_{int(word):02}" for word in service.stdout.readline().split()[1:]}
    lines = "".join(f"+exe:f_{number:02}\n" for number in range(100))
    done = Experiment(service.pid, lines, "--slice=5ms", "--time=20s", "--max-slowdown=150%")
    assert done.status == 0, done
    assert 0.02 < done.document["sliced"]["chance"] < 0.04, done
    for target in done.document["sliced"]["targets"]:
        drawn, slices = sum(map(str.isupper, target["steps"])), len(target["steps"])
        assert abs(drawn - 0.03 * slices) < 5 * (0.03 * slices) ** 0.5, (drawn, slices)
    targets = done.document["results"]["progress"][0]["targets"]
    found = {one["name"] for one in targets if one["verdict"] == "matters"}
    assert len(found - critical) <= 1, (found, critical)
    hidden = {one["name"] for one in targets if one["verdict"] == "hidden"}
    assert not hidden & critical, (hidden, critical)
    # On a busy host little is known of each in 20 s, but what its interval leaves out is not so.
    values = {one["name"]: one["criticality"] for one in targets}

    def may_be(name: str, low: float, high: float) -> bool:
        return values[name]["low"] <= high and low <= values[name]["high"]

    assert all(may_be(name, 0.7, 1.3) for name in critical), (critical, values)
    others = [may_be(name, -0.2, 0.2) for name in values.keys() - critical]
    assert sum(others) > 0.9 * len(others), (critical, values)
    service.kill()
    service.wait()


@alone
def test_delays_beyond_the_guard_are_left_out() -> None:
    """Beyond it for seconds: what only a few slices in a row are beyond is seen or not by chance."""
    service = start("serial")
    done = Experiment(service.pid, "+exe:work_a\n", "--doses=2ms", "--slice=5ms", "--time=12s",
                      "--max-slowdown=30%")
    assert "left out" in done.err and "--max-slowdown 30%" in done.err, done
    steps = done.document["sliced"]["targets"][0]["steps"]
    assert "B" in steps[-200:] and not {"D", "E"} & set(steps[-200:]), done
    assert done.target("+exe:work_a")["verdict"] == "matters", done
    expect_restored(service.pid)


@alone
def test_delays_beyond_the_guard_are_left_out_of_a_slow_service_too() -> None:
    """Some 50 units a second: between two looks of the guard there are too few to tell."""
    service = start("steps")
    done = Experiment(service.pid, "+exe:work_step\n", "--doses=20ms", "--slice=50ms", "--time=20s",
                      "--max-slowdown=20%", "--max-cpu=2")
    assert "left out" in done.err and "--max-slowdown 20%" in done.err, done
    expect_restored(service.pid)


def test_what_cannot_be_told_by_slice_is_refused() -> None:
    service = start("serial")
    for arguments, why in (
            (("--slice=5ms", "--blocks=4"), "no blocks to count"),
            (("--slice=5ms", "--bisect"), "--bisect measures group by group"),
            (("--slice=500us",), "1ms is the shortest"),
            (("--slice=5ms", "--progress=command:echo 1"), "command:echo 1 can't be told by slice"),
    ):
        done = Run("experiment", "--pid", str(service.pid), "--progress", PROGRESS, *arguments,
                   targets_file("+exe:work_a\n"))
        assert done.status == 2 and why in done.err, done


def test_interrupt_and_kill_leave_the_service_as_it_was() -> None:
    service = start("serial")
    for how in (signal.SIGINT, signal.SIGKILL):
        running = Measuring(service.pid, "+exe:work_a\n", "--slice=5ms", "--doses=100us")
        running.wait_for(200)
        _, out, err = running.end(how)
        if how == signal.SIGINT:
            assert "ended by: interrupted" in out, out + err
        expect_restored(service.pid)


def test_service_that_ends_gives_what_was_measured() -> None:
    service = start("serial")
    running = Measuring(service.pid, "+exe:work_a\n", "--slice=5ms", "--doses=50us", "--json",
                        "--time=300s")
    running.wait_for(200)
    service.kill()
    service.wait()
    _, out, err = running.end()
    document = json.loads(out)
    assert document["stopped"] == "the processes ended" and not document["complete"], err
    assert len(document["sliced"]["units"][0]) > 100, err


def test_live_page_grows_while_it_runs() -> None:
    chromium = need("chromium")
    service = start("serial")
    running = Measuring(service.pid, "+exe:work_a\n", "--slice=5ms", "--doses=50us",
                        "--time=300s", f"--output={scratch()}/r.json")
    address = running.address
    running.wait_for(1000)
    dom, asked = browse(chromium, address, direct=True)
    assert 'data-drawn="live"' in dom and "Still measuring" in dom, dom[-2000:]
    assert "+exe:work_a" in Cells(dom).cells, dom[-2000:]
    assert asked == [], asked
    for other in (address[:-2] + "/", address[:-33], address + "r.json"):
        try:
            urllib.request.urlopen(other)
            raise AssertionError(f"{other} is served")
        except urllib.error.HTTPError as error:
            assert error.code == 404, error
    running.wait_for(running.measured() + 1)
    # Who watches sees the end.
    running.process.send_signal(signal.SIGINT)
    ended: dict = {}

    def is_over() -> bool:
        ended.clear()
        ended.update(running.data())
        return "live" not in ended

    wait_for(is_over, 10, "the end")
    _, out, err = running.end()
    said = f"{ended['experiment']['stopped']}, history {ended['history']}\n{out}{err}"
    assert ended["experiment"]["stopped"] == "interrupted" and ended["history"], said
    assert "ended by: interrupted" in out, out + err
    expect_restored(service.pid)


def test_live_page_of_arms_and_a_port_that_is_taken() -> None:
    service = start("serial")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        done = Run("experiment", "--pid", str(service.pid), "--progress", PROGRESS, f"--live={port}",
                   targets_file("+exe:work_a\n"))
        assert done.status != 0 and f"port {port}" in done.err and "--live 0" in done.err, done
    running = Measuring(service.pid, "+exe:work_a\n", "--blocks=30", "--doses=50us,100us")
    running.wait_for(3)
    _, out, err = running.end(signal.SIGINT)
    assert "ended by: interrupted" in out, out + err


def test_html_report_draws_its_plots() -> None:
    chromium = need("chromium")
    service = start("serial")
    # With doses and slices of its own it would begin anew where they seem to bend or to arrive late,
    # and of what is left of the time there may be no two moments to draw a line through; where CPUs
    # are scarce effects do come late, and then it takes some 2,700 slices until anything is told.
    done = Experiment(service.pid, "+exe:work_a\n+exe:work_b\n", "--slice=5ms", "--doses=50us",
                      "--time=25s", "--max-slowdown=400%")
    assert done.document["results"]["progress"][0]["targets"][0]["blocks"] > 0, done
    dom, asked = browse(chromium, f"file://{done.html_path}")
    assert 'data-drawn="yes"' in dom, dom[-2000:]
    assert asked == [], asked
    page = Cells(dom)
    # The ranking, a plot of each target, over time, when it arrives, and the noise.
    assert page.canvases == 6, page.canvases
    for target in done.document["results"]["progress"][0]["targets"]:
        assert f"{target['criticality']['value']:.3f}" in page.cells, page.cells


if __name__ == "__main__":
    main(globals())
