# SPDX-License-Identifier: MIT
"""Compares the stack reader with CPython 3.15's own RemoteUnwinder, on the same processes.

    remote_unwinder.py SPEEDBUMP SID_ROOT [SECONDS]

Needs root. Each program runs in the sid root's Python 3.15; both readers read it in turn, twice.
Prints a table: calls per second of work and success rate of each, and the ratio.
"""

import json
import os
import pathlib
import re
import subprocess
import sys

SOURCE = pathlib.Path(__file__).resolve().parents[2]

READER = r"""
import json, sys, time
from _remote_debugging import RemoteUnwinder

pid, seconds, cached = int(sys.argv[1]), float(sys.argv[2]), sys.argv[3] == "cached"
unwinder = RemoteUnwinder(pid, all_threads=True, cache_frames=cached)
attempts = good = 0
work = 0.0
start = time.perf_counter()
while time.perf_counter() - start < seconds:
    before = time.perf_counter()
    try:
        unwinder.get_stack_trace()
        good += 1
    except (RuntimeError, OSError, UnicodeDecodeError):
        pass
    work += time.perf_counter() - before
    attempts += 1
print(json.dumps({"calls": attempts / work, "success": good / attempts}))
"""


def programs() -> dict[str, str]:
    """The programs that `bench inspect` runs."""
    text = (SOURCE / "user/stacks/bench_programs.h").read_text()
    names = {"kBasicProgram": "basic", "kDeepStaticProgram": "deep_static",
             "kThreadsProgram": "threads"}  # fmt: skip
    found = re.findall(r'(k\w+Program) = R"\((.*?)\n\)";', text, re.DOTALL)
    return {names[name]: code + "\n" for name, code in found}


def main() -> None:
    speedbump, root = sys.argv[1], sys.argv[2]
    seconds = sys.argv[3] if len(sys.argv) > 3 else "3"
    if "SPEEDBUMP_OWN_MOUNTS" not in os.environ:
        os.environ["SPEEDBUMP_OWN_MOUNTS"] = "yes"
        os.execvp("unshare", ["unshare", "--mount", sys.executable, *sys.argv])
    # RemoteUnwinder opens the interpreter by the name that /proc gives it there.
    subprocess.run(["mount", "-t", "proc", "proc", f"{root}/proc"], check=True)
    inside = ["chroot", root, "python3.15"]
    print(f"{'program':<12} {'speedbump':>12} {'cached':>12} {'uncached':>12} {'ratio':>7}"
          f" {'success':>9} {'theirs':>9}")  # fmt: skip
    for name, code in programs().items():
        target = subprocess.Popen([*inside, "-c", code], stdout=subprocess.PIPE)
        try:
            assert target.stdout is not None
            assert target.stdout.readline() == b"ready\n"
            pid = str(target.pid)
            best: dict[str, tuple[float, float]] = {}
            for _ in range(2):
                done = subprocess.run(
                    [speedbump, "bench", "inspect", "--pid", pid, "-d", seconds, "--json", "-q"],
                    capture_output=True, check=True,
                )  # fmt: skip
                own = json.loads(done.stdout)
                runs = [("own", own["calls_per_second_of_work"], own["success_share"])]
                for mode in ("cached", "uncached"):
                    done = subprocess.run(
                        [*inside, "-c", READER, pid, seconds, mode], capture_output=True, check=True
                    )
                    theirs = json.loads(done.stdout)
                    runs.append((mode, theirs["calls"], theirs["success"]))
                for kind, calls, success in runs:
                    best[kind] = max(best.get(kind, (0, 0)), (calls, success))
            ratio = best["own"][0] / best["cached"][0]
            print(f"{name:<12} {best['own'][0]:>10.0f}/s {best['cached'][0]:>10.0f}/s"
                  f" {best['uncached'][0]:>10.0f}/s {ratio:>6.1f}x {best['own'][1]:>9.3%}"
                  f" {best['cached'][1]:>9.3%}", flush=True)  # fmt: skip
        finally:
            target.kill()
            target.wait()


if __name__ == "__main__":
    main()
