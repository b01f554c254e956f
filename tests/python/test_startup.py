# SPDX-License-Identifier: MIT
"""Activation by the environment alone, and by python -m speed_bump."""

PROGRAM = """
import json, sys, time
def f(): pass
begin = time.perf_counter()
for _ in range(5):
    f()
took = time.perf_counter() - begin
loaded = "speed_bump" in sys.modules
calls = sys.modules["speed_bump"].stats()["*:f"].calls if loaded else 0
print(json.dumps([took, loaded, calls, sys.argv[1:], __name__, sys.path[0]]))
"""


def test_variable_alone_activates(python):
    targets = python.file("targets.txt", "*:f\n+/bin/ls:main\n")
    installed = python.installed()
    took, loaded, calls = python.script(
        PROGRAM, **installed, SPEED_BUMP_TARGETS=targets, SPEED_BUMP_DELAY_NS="2000000"
    )[:3]
    assert took >= 0.01 and loaded and calls == 5
    for variables in ({}, {"SPEED_BUMP_TARGETS": ""}):
        took, loaded, calls = python.script(PROGRAM, **installed, **variables)[:3]
        assert took < 0.01 and not loaded


def test_program_starts_whatever_is_wrong(python):
    installed = python.installed()
    program = python.file("p.py", "print('ran')\n")
    bad = python.file("bad.txt", "no_colon\n")
    good = python.file("good.txt", "m:f\n")
    for variables in (
        {"SPEED_BUMP_TARGETS": "/nowhere"},
        {"SPEED_BUMP_TARGETS": "/"},
        {"SPEED_BUMP_TARGETS": bad},
        {"SPEED_BUMP_TARGETS": good, "SPEED_BUMP_DELAY_NS": "x"},
        {"SPEED_BUMP_TARGETS": good, "SPEED_BUMP_FREQUENCY": "-1"},
        {"SPEED_BUMP_TARGETS": good, "SPEED_BUMP_DURATION_MS": "9" * 40},
    ):
        out, err = python.run(program, **installed, **variables)
        assert out == "ran\n"
        assert len(err.splitlines()) == 1 and err.startswith("speed_bump: not slowing: ")
        out, err = python.run(program, status=2, **installed, **variables, SPEED_BUMP_STRICT="1")
        assert out == "" and len(err.splitlines()) == 1


def test_install_after_the_environment_replaces(python):
    targets = python.file("targets.txt", "*:f delay=1ns\n")
    result = python.script(
        """
        import json, speed_bump
        def f(): pass
        f()
        first = list(speed_bump.stats())
        config = speed_bump.load_config()
        states = [speed_bump.is_installed(), speed_bump.install(config)]
        f()
        print(json.dumps([first, states, speed_bump.stats()["*:f delay=1ns"].calls]))
        """,
        **python.installed(),
        SPEED_BUMP_TARGETS=targets,
    )
    assert result == [["*:f delay=1ns"], [True, True], 1]


def test_command_line(python):
    import json

    targets = python.file("targets.txt", "*:f\n")
    script = python.file("app.py", PROGRAM)
    out, err = python.run("-m", "speed_bump", "-t", targets, "--delay", "2ms", script, "-t", "x")
    took, loaded, calls, arguments, name, place = json.loads(out)
    assert took >= 0.01 and loaded and calls == 5
    assert arguments == ["-t", "x"] and name == "__main__" and place == str(python.folder)
    out, err = python.run(
        "-m", "speed_bump", "-t", targets, "--every", "5", "--start", "0s", "-m", "app", "-q",
        PYTHONPATH=f"{python.package}:{python.folder}",
    )
    took, loaded, calls, arguments, name, place = json.loads(out)
    assert calls == 5 and arguments == ["-q"] and name == "__main__"


def test_command_line_errors(python):
    targets = python.file("targets.txt", "*:f\n")
    bad = python.file("bad.txt", "no_colon\n")
    for arguments in (
        ["-t", targets],
        ["app.py"],
        ["-t", "/nowhere", "app.py"],
        ["-t", bad, "app.py"],
        ["-t", targets, "--delay", "fast", "app.py"],
        ["-t", targets, "--every", "0", "app.py"],
        ["-t", targets, "--nonsense", "app.py"],
        ["-t", targets, "/nowhere.py"],
    ):
        out, err = python.run("-m", "speed_bump", *arguments, status=2)
        assert out == "" and "speed_bump" in err and "Traceback" not in err


def test_traceback_and_status_of_the_program(python):
    targets = python.file("targets.txt", "*:f\n")
    script = python.file("app.py", "import sys\ndef f(): sys.exit(7)\nf()\n")
    python.run("-m", "speed_bump", "-t", targets, script, status=7)
    script = python.file("app.py", "def f(): 1 / 0\nf()\n")
    out, err = python.run("-m", "speed_bump", "-t", targets, script, status=1)
    assert "ZeroDivisionError" in err
