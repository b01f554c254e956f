# SPDX-License-Identifier: MIT
"""speedbump experiment --slice of 50 ms or less: all targets at once, switched by the clock."""

import json
import re
import signal
import socket
import subprocess
import time
import urllib.error
import urllib.request

from browser import Cells, browse
from harness import (
    LIBRARY, SPEEDBUMP, Run, campaign, expect_restored, main, need, scratch, targets_file, wait_for,
)
from known_experiments import PROGRESS, Experiment, expect_k, start, start_python

# Until the intervals say something (expect_k), on a host as noisy as it may be.
SHORT = ("--slice=5ms", "--precision=25%", "--time=90s", "--max-slowdown=400%")
# Whatever it can say by then: nothing that is wrong.
BRIEFLY = ("--precision=15%", "--time=25s", "--max-slowdown=400%")


def test_serial_functions_are_measured_at_once() -> None:
    service = start("serial")
    done = Experiment(service.pid, "+exe:work_a\n", *SHORT, "--positive=+exe:work_b")
    assert not any("positive" in why for why in done.document["results"]["invalid_because"]), done
    assert done.status == 0, done
    document = done.document
    assert document["settings"]["slice_ns"] == 5_000_000
    slices = len(document["sliced"]["units"][0])
    assert slices > 600, done
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


def test_python_and_native_functions_of_one_service() -> None:
    service = start_python("mixed")
    names = ("__main__:work_a", "+libslowlib.so:lib_work")
    done = Experiment(service.pid, "\n".join(names) + "\n", *SHORT,
                      progress="python:__main__:unit_done")
    assert done.status == 0, done
    for name in names:
        expect_k(done, name, 0.85, 1.15)
        assert done.target(name)["verdict"] != "hidden", done
    expect_restored(service.pid, LIBRARY)


def test_the_function_that_ends_a_unit_can_be_delayed_itself() -> None:
    service = start_python("serial")
    done = Experiment(service.pid, "__main__:unit_done\n", *SHORT,
                      progress="python:__main__:unit_done")
    assert done.status == 0, done
    expect_k(done, "__main__:unit_done", 0.85, 1.15)


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


def test_delays_beyond_the_guard_are_halved() -> None:
    service = start("serial")
    done = Experiment(service.pid, "+exe:work_a\n", "--doses=2ms", "--slice=5ms", "--time=8s",
                      "--max-slowdown=150%")
    assert "halved" in done.err and "--max-slowdown 150%" in done.err, done
    assert done.document["targets"][0]["doses_ns"][0] < 2_000_000, done
    assert done.document["sliced"]["targets"][0]["dose_ns"] < 2_000_000, done
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
        experiment = subprocess.Popen(
            [SPEEDBUMP, "experiment", "--pid", str(service.pid), "--progress", PROGRESS,
             "--slice=5ms", "--doses=100us", targets_file("+exe:work_a\n")],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )
        time.sleep(5)
        experiment.send_signal(how)
        out, err = experiment.communicate(timeout=20)
        if how == signal.SIGINT:
            assert "ended by: interrupted" in out, out + err
        expect_restored(service.pid)


def test_service_that_ends_gives_what_was_measured() -> None:
    service = start("serial")
    experiment = subprocess.Popen(
        [SPEEDBUMP, "experiment", "--pid", str(service.pid), "--progress", PROGRESS, "--slice=5ms",
         "--doses=50us", "--json", "--time=60s", targets_file("+exe:work_a\n")],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )
    time.sleep(8)
    service.kill()
    service.wait()
    out, err = experiment.communicate(timeout=30)
    document = json.loads(out)
    assert document["stopped"] == "the processes ended" and not document["complete"], err
    assert len(document["sliced"]["units"][0]) > 100, err


def test_live_page_grows_while_it_runs() -> None:
    chromium = need("chromium")
    service = start("serial")
    folder = scratch()
    experiment = subprocess.Popen(
        [SPEEDBUMP, "experiment", "--pid", str(service.pid), "--progress", PROGRESS, "--slice=5ms",
         "--doses=50us", "--time=300s", "--live=0", f"--output={folder}/r.json",
         targets_file("+exe:work_a\n")],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )
    address = re.search(r"http://127\.0\.0\.1:\d+/[0-9a-f]{32}/", experiment.stderr.readline())[0]

    def measured() -> int:
        with urllib.request.urlopen(address + "data") as answer:
            return json.loads(answer.read()).get("slices", 0)

    wait_for(lambda: measured() > 1000, 60, "1000 slices")
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
    before = measured()
    wait_for(lambda: measured() > before, 30, "more slices")
    # Who watches sees the end.
    experiment.send_signal(signal.SIGINT)
    ended: dict = {}

    def is_over() -> bool:
        ended.clear()
        ended.update(json.loads(urllib.request.urlopen(address + "data").read()))
        return "live" not in ended

    wait_for(is_over, 10, "the end")
    assert ended["experiment"]["stopped"] == "interrupted" and ended["history"], ended
    out, err = experiment.communicate(timeout=20)
    assert "ended by: interrupted" in out, out + err
    expect_restored(service.pid)


def test_live_page_of_arms_and_a_port_that_is_taken() -> None:
    service = start("serial")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        done = Run("experiment", "--pid", str(service.pid), "--progress", PROGRESS, f"--live={port}",
                   targets_file("+exe:work_a\n"))
        assert done.status != 0 and f"port {port}" in done.err and "--live 0" in done.err, done
    experiment = subprocess.Popen(
        [SPEEDBUMP, "experiment", "--pid", str(service.pid), "--progress", PROGRESS, "--blocks=30",
         "--doses=50us,100us", "--live=0", targets_file("+exe:work_a\n")],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )
    address = experiment.stderr.readline().split()[-1]

    def known() -> list:
        data = json.loads(urllib.request.urlopen(address + "data").read())
        return [one for one in data.get("experiment", {}).get("results", {}).get("progress", [])
                if one["targets"][0]["blocks"] > 2]

    wait_for(known, 60, "three blocks")
    experiment.send_signal(signal.SIGINT)
    out, err = experiment.communicate(timeout=20)
    assert "ended by: interrupted" in out, out + err


def test_html_report_draws_its_plots() -> None:
    chromium = need("chromium")
    service = start("serial")
    done = Experiment(service.pid, "+exe:work_a\n+exe:work_b\n", "--slice=5ms", "--time=15s")
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
