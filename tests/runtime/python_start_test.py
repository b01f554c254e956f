# SPDX-License-Identifier: MIT
"""speedbump run slows Python from the first line of its program, and leaves no trace of how."""

import contextlib
import json
import os
import pathlib
import signal
import statistics
import subprocess
import time

from harness import (
    BUILD, MS, SPEEDBUMP, Patience, Run, Skip, calls, calls_by_pid, leave_none, main, scratch,
    targets_file, wait_for,
)

TARGETS = targets_file("*:once delay=30ms\n*:many delay=1us\n*:child delay=30ms\n")

PROGRAM = """
import time
begin = time.perf_counter_ns()
def once(): pass
once()
first = time.perf_counter_ns() - begin
def many(): pass
for _ in range(1000): many()
import json, sys
print(json.dumps({"first": first, "arguments": sys.argv[1:], "file": globals().get("__file__")}))
"""

# Until the core says that it has its hook in (pyext/src/serve.cpp).
ONCE_MORE = """
end = time.monotonic() + 30
while not getattr(sys.modules.get("_speedbump_cores"), "hooked", False) and time.monotonic() < end:
    time.sleep(0.01)
once()
"""

TRACES = """
import json, os, sys, zipimport
places = [sys.path, list(sys.path_importer_cache), list(zipimport._zip_directory_cache),
          list(sys.modules), list(os.environ.values())]
try:
    import sitecustomize
except ImportError:
    sitecustomize = None
print(json.dumps({
    "traces": [text for place in places for text in place if "/fd/" in text or "_start" in text
               and "speedbump" in text],
    "variable": os.environ.get("PYTHONPATH"),
    "custom": getattr(sitecustomize, "custom", None),
}))
"""


def interpreters() -> list[str]:
    """One of each version that there is a core for."""
    table = BUILD / "pyext" / "interpreters.tsv"
    rows = table.read_text().splitlines() if table.exists() else []
    versions: dict[str, str] = {}
    for row in rows:
        name, command, _ = row.split("\t")
        versions.setdefault(".".join(name.removeprefix("sid-").split(".")[:2]), command)
    if not versions:
        raise Skip("no Python core is built")
    return list(versions.values())


def native(pythons: list[str]) -> list[str]:
    """Those that are no script which first makes a chroot."""
    return [python for python in pythons if "/sid-" not in python]


def run(*command: str, options: tuple[str, ...] = (), targets: str = TARGETS, **more) -> Run:
    done = Run("run", "--json", *options, targets, "--", *command, **more)
    assert done.status == 0, done
    return done


def answer(done: Run) -> dict:
    """What the program printed, among the session's documents."""
    return next(json.loads(line) for line in done.out.splitlines() if '"schema"' not in line)


def file(name: str, text: str) -> str:
    path = scratch() / name
    path.write_text(text)
    return str(path)


def expect_slowed_from_the_first_line(done: Run, arguments: list[str]) -> None:
    told = answer(done)
    assert told["first"] > 29 * MS, done
    assert told["arguments"] == arguments, done
    assert (calls(done.final(), "once"), calls(done.final(), "many")) == (1, 1000), done
    assert "before it was hooked" not in done.err, done


def test_every_version_is_slowed_from_its_first_line() -> None:
    script = file("app.py", PROGRAM)
    for python in interpreters():
        expect_slowed_from_the_first_line(run(python, script, "-x"), ["-x"])


def test_every_way_to_start_a_program() -> None:
    python = native(interpreters())[-1]
    script = file("app.py", PROGRAM)
    folder = str(pathlib.Path(script).parent)
    expect_slowed_from_the_first_line(run(python, "-c", PROGRAM, "y"), ["y"])
    expect_slowed_from_the_first_line(run(python, "-m", "app", cwd=folder), [])
    expect_slowed_from_the_first_line(run(python, "-P", "-B", script), [])
    executable = pathlib.Path(file("tool", f"#!{python}\n{PROGRAM}"))
    executable.chmod(0o755)
    expect_slowed_from_the_first_line(run(str(executable), "z"), ["z"])
    expect_slowed_from_the_first_line(run("sh", "-c", f"sleep 0.1; exec {python} {script}"), [])


def test_a_virtual_environment() -> None:
    folder = scratch()
    subprocess.run(["/usr/bin/python3", "-m", "venv", "--without-pip", str(folder)], check=True)
    done = run(str(folder / "bin/python"), "-c", PROGRAM)
    expect_slowed_from_the_first_line(done, [])


def test_children_are_slowed_from_their_first_line_too() -> None:
    for python in native(interpreters()):
        done = run(python, "-c", """
import json, os, subprocess, sys
text = "def many(): pass\\nfor _ in range(500): many()"
subprocess.run([sys.executable, "-c", text], check=True)
subprocess.Popen(["sh", "-c", sys.executable + " -c '" + text + "' & wait"]).wait()
pid = os.fork()
def child(): pass
if pid == 0:
    child()
    os._exit(0)
os.waitpid(pid, 0)
""")
        counted = calls_by_pid(done.final(), "many")
        assert sorted(counted.values()) == [500, 500], done
        assert calls(done.final(), "child") == 1, done


def test_nothing_is_left_for_the_program_to_see() -> None:
    custom = pathlib.Path(file("sitecustomize.py", "custom = 7\n")).parent
    empty = str(scratch())
    for python in native(interpreters()):
        for places, number in ((None, None), (empty, None), (f"{empty}:{custom}", 7)):
            environment = {**os.environ, **({"PYTHONPATH": places} if places else {})}
            plain = subprocess.run([python, "-c", TRACES], env=environment, capture_output=True,
                                   text=True, check=True)
            told = answer(run(python, "-c", TRACES, before=[
                "env", "-u" if places is None else f"PYTHONPATH={places}",
                *(["PYTHONPATH"] if places is None else [])]))
            assert told == json.loads(plain.stdout), (told, plain.stdout)
            assert told["traces"] == [] and told["variable"] == places, told
            assert number is None or told["custom"] == number, told


def test_options_that_keep_the_module_out_are_told_of() -> None:
    python = native(interpreters())[-1]
    for option in ("-I", "-E", "-S"):
        done = run(python, option, "-c", PROGRAM + ONCE_MORE)
        late = "ran some of its Python before it was hooked" in done.err
        # It is hooked when it is ready: here and there early enough for the first call, too.
        assert calls(done.final(), "once") == 2 or (late and calls(done.final(), "once") == 1), done


def test_children_that_are_not_followed_do_not_wait() -> None:
    python = native(interpreters())[-1]
    done = run(python, "-c", """
import json, subprocess, sys, time
def once(): pass
once()
took = []
for _ in range(5):
    begin = time.monotonic()
    subprocess.run([sys.executable, "-c", "def child(): pass\\nchild()"], check=True)
    took.append(time.monotonic() - begin)
print(json.dumps({"took": took}))
""", options=("--no-children",))
    assert (calls(done.final(), "once"), calls(done.final(), "child")) == (1, 0), done
    # One that waits does so for two seconds by its own clock; of a stall one or two may know.
    assert statistics.median(answer(done)["took"]) < 2, done


def loader_of_a_python_to_come() -> tuple[subprocess.Popen, int, pathlib.Path]:
    """The loader, the PID of its program, and a folder: `go` in there has the program become a Python,
    which says by `done` that it runs, and stays."""
    python = native(interpreters())[-1]
    folder = scratch()
    script = file("s.sh", f"""
echo $$ >{folder}/pid
while [ ! -e {folder}/go ]; do sleep 0.01; done
exec {python} -c 'import time; open("{folder}/done", "w").close(); time.sleep(1000)'
""")
    process = subprocess.Popen([SPEEDBUMP, "run", "-q", TARGETS, "--", "/bin/sh", script],
                               stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    told = folder / "pid"
    wait_for(lambda: told.exists() and told.read_text() != "", 20, "start")
    pid = int(told.read_text())

    def end() -> None:
        process.kill()
        process.wait()
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)

    leave_none(end)
    return process, pid, folder


def ns_until_it_runs(folder: pathlib.Path, patience: Patience) -> float:
    """From now on, but for the time in which it waited for a CPU."""
    took = wait_for(lambda: (folder / "done").exists(), 30, "the program")
    return took * 1000 * MS - patience.ns() - patience.stolen_ns()


def test_a_dead_loader_keeps_nobody_waiting() -> None:
    """Pythons that start after its death, and one that waits for it while it dies."""
    process, pid, folder = loader_of_a_python_to_come()
    process.kill()
    process.wait()
    patience = Patience(pid)
    (folder / "go").touch()
    assert ns_until_it_runs(folder, patience) < 1500 * MS

    # Stopped, it hooks nobody; then it dies.
    process, pid, folder = loader_of_a_python_to_come()
    time.sleep(0.2)
    process.send_signal(signal.SIGSTOP)
    (folder / "go").touch()
    time.sleep(0.5)
    waited = not (folder / "done").exists()
    patience = Patience(pid)
    process.kill()
    process.wait()
    assert ns_until_it_runs(folder, patience) < 1000 * MS
    assert waited, "it did not wait for a loader that lives"


if __name__ == "__main__":
    main(globals())
