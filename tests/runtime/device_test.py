# SPDX-License-Identifier: MIT
"""speedbump experiment on hosts and a device that knows the truth (tests/programs/device): who waits for
whom, as the report and its JSON say it. device_live_test.cpp has the figures themselves."""

import json
import pathlib
import subprocess

from harness import (
    PROGRAMS, Run, Skip, _leftovers, alone, expect_restored, main, need, scratch, targets_file,
)

DEVICE = ("device:libfakedevice.so:fdLaunchKernel(stream),fdEventRecord(event,stream):"
          "fdCtxSynchronize,fdStreamSynchronize(stream),fdEventSynchronize(event)")
PROGRAM = str(PROGRAMS / "device_steps")
SCRIPT = pathlib.Path(__file__).parents[1] / "programs" / "device" / "device_steps.py"
SMALL = ("--doses=2us", "--blocks=4", "--slice=200ms")


class Steps:
    """A host with its device, and what the device says of itself."""

    def __init__(self, *arguments: str, python: bool = False):
        command = [need("/usr/bin/python3"), str(SCRIPT), str(PROGRAMS)] if python else [PROGRAM]
        self._process = subprocess.Popen([*command, *arguments], stdin=subprocess.PIPE,
                                         stdout=subprocess.PIPE, text=True)
        _leftovers.append(self._process.kill)
        assert self._process.stdout.readline() == "ready\n"
        self.pid = self._process.pid

    def totals(self) -> dict:
        self._process.stdin.write("\n")
        self._process.stdin.flush()
        return json.loads(self._process.stdout.readline())


class Experiment(Run):
    """An experiment beside the truth of the same time."""

    def __init__(self, steps: Steps, progress: str, target: str, *arguments: str):
        folder = scratch()
        self.path, self.html = folder / "result.json", folder / "report.html"
        before = steps.totals()
        super().__init__("experiment", "--pid", str(steps.pid), "--progress", progress,
                         "--progress", DEVICE, f"--output={self.path}", f"--html={self.html}",
                         *arguments, targets_file(target), timeout=120)
        after = steps.totals()
        self.truth = {name: after[name] - before[name] for name in after}

    def share(self, name: str) -> float:
        """Of all the time, in truth."""
        return self.truth[name] / self.truth["now_ns"]

    @property
    def device(self) -> dict:
        results = json.loads(self.path.read_text())["results"]
        assert len(results["progress"]) == 1, "launches rank nothing"
        return results["devices"][0]


def expect(done: Experiment, verdict: str, words: str) -> None:
    device = done.device
    print(f"  {device['verdict']}: waits {device['waiting']}, idle {device['idle']}; in truth "
          f"{done.share('wait_ns'):.3f}, {done.share('idle_ns'):.3f}")
    if device["verdict"] == "uncertain" and "had no CPU" in done.out:
        raise Skip("others have the CPUs: the report says that nothing is certain")
    assert device["verdict"] == verdict, done
    assert words in done.out, done
    per_unit = device["launches_per_unit"], device["waits_per_unit"]
    for told, name in zip(per_unit, ("launches", "waits")):
        true = done.truth[name] / done.truth["steps"]
        assert abs(told / true - 1) < 0.02, (told, true, name, done)
    # Not the same time: other load makes a host wait, or lets it.
    assert abs(device["wait_ns"] / device["unit_ns"] - done.share("wait_ns")) < 0.1, done
    assert device["idle"]["low"] <= done.share("idle_ns") + 0.1, done
    assert device["idle"]["high"] >= done.share("idle_ns") - done.share("late_ns") - 0.1, done
    again = Run("report", str(done.path), "--json")
    assert json.loads(again.out)["results"]["devices"] == [device], again


@alone
def test_a_host_that_works_longer_than_its_device() -> None:
    steps = Steps("prepare=200", "finish=2000", "kernels=4", "kernel=100", "sync=stream")
    done = Experiment(steps, "native:exe:step_done", "+exe:finish\n", *SMALL)
    expect(done, "host-bound", "host-bound: a faster device gains")
    assert "can't be seen" in done.out, done
    page = done.html.read_text()
    assert "host-bound" in page, "the page says nothing of the device"
    expect_restored(steps.pid)
    expect_restored(steps.pid, str(PROGRAMS / "libfakedevice.so"))


@alone
def test_a_device_that_works_longer_than_its_host_which_has_slack() -> None:
    steps = Steps("finish=200", "kernels=4", "kernel=400", "sync=event")
    done = Experiment(steps, "native:exe:step_done", "+exe:finish\n", "--max-slowdown=300%",
                      "--doses=400us,800us,1200us,1600us,2400us", "--blocks=6", "--slice=200ms")
    device = done.device
    assert device["verdict"] == "device-bound", done
    # Each step is queued while the one before runs: the host may take 1.6 ms.
    found = json.loads(done.path.read_text())["results"]["progress"][0]["targets"][0]
    assert found["shape"] == "hinge", done
    waited = device["wait_ns"]
    print(f"  absorbs {found['slack_ns']['value']:.0f} ns, waits {waited:.0f} ns")
    assert abs(found["slack_ns"]["value"] / waited - 1) < 0.2, (found, device)


@alone
def test_python_and_mixed_hosts() -> None:
    for arguments, verdict, words in (
        (("finish=3000", "kernels=2", "kernel=200", "sync=ctx"), "host-bound", "host-bound"),
        (("prepare=1500", "kernels=1", "kernel=1500", "sync=ctx", "mode=mixed"), "turns",
         "take turns"),
        (("kernels=2", "kernel=2000", "finish=100", "sync=event", "mode=mixed"), "device-bound",
         "device-bound: a faster host gains"),
    ):
        steps = Steps(*arguments, python=True)
        known = Run("list", "--pid", str(steps.pid), "__main__:Steps.step_done")
        if "no core is built" in known.err:
            raise Skip(known.err)
        done = Experiment(steps, "python:__main__:Steps.step_done", "__main__:Steps.finish\n",
                          *SMALL)
        expect(done, verdict, words)


def test_what_is_no_device_is_told() -> None:
    steps = Steps("prepare=1000")
    for progress, status, words in (
        ("device:libfakedevice.so:fdLaunchKernel", 2, "device:BINARY:LAUNCH,...:WAIT"),
        ("device:libfakedevice.so:fdLaunchKernel(queue):fdCtxSynchronize", 2, "must be stream"),
        ("device:libfakedevice.so:fdLaunchKernel:fdNothing", 1, "fdNothing is in none"),
        ("device:cuda", 1, "is in the processes"),
    ):
        done = Run("experiment", "--pid", str(steps.pid), "--progress", "native:exe:step_done",
                   "--progress", progress, targets_file("+exe:prepare\n"))
        assert done.status == status and words in done.err, done


if __name__ == "__main__":
    main(globals())
