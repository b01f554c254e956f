# SPDX-License-Identifier: MIT
"""Sums up the JUnit files that ctest wrote.

    count_tests.py FOLDER RUN... failed=0|1

Reads FOLDER/RUN.xml for each run, or FOLDER/RUN.log, that of a build that failed. Prints the failed
and the skipped tests, the skipped ones with their reason, then what the failed ones said of it, and
as last line "N passed, M failed, K skipped". Where only the end of a log is kept, that is there. Each
case that the sources of a run's tests name must have a result there: one that was not even registered
has failed. Exits 1 when a test or a step before failed.
"""

import os
import pathlib
import re
import sys
import xml.etree.ElementTree

TESTS = pathlib.Path(__file__).resolve().parents[1] / "tests"
sys.path.insert(0, str(TESTS))
from cases import cases  # noqa: E402

LINES, LINE = 24, 400  # of what a failed test said, and the length of one


def is_of_other_machine(stem: str) -> bool:
    """Some tests are of one machine, and built on that alone."""
    machine = re.search(r"_(x86_64|aarch64)_test$", stem)
    return machine is not None and machine[1] != os.uname().machine


def google_cases(pattern: str, prefix: str) -> set[str]:
    return {
        f"{prefix}.{path.stem.removesuffix('_test')}.{suite}.{case}"
        for path in TESTS.glob(pattern)
        if not is_of_other_machine(path.stem)
        for suite, case in re.findall(r"^TEST(?:_F|_P)?\((\w+),\s*(\w+)\)", path.read_text(), re.M)
    }


def without_parameter(name: str) -> str:
    """Suite.Case of Instance/Suite.Case/parameter."""
    return re.sub(r"\w+/(\w+\.\w+)/.*$", r"\1", name)


def python_cases(pattern: str, prefix: str, are_campaigns: bool = False) -> set[str]:
    return {
        f"{prefix}.{re.sub('^test_|_test$', '', path.stem)}.{name.replace('test_', '', 1)}"
        for path in TESTS.glob(pattern)
        for name, marks in cases(path)
        if ("campaign" in marks) == are_campaigns
    }


def files(pattern: str, prefix: str, *others: str) -> set[str]:
    return {f"{prefix}.{path.stem}" for path in TESTS.glob(pattern)} - set(others)


def wanted(run: str) -> set[str]:
    """The tests that a run must have, by its sources."""
    unit = google_cases("unit/*_test.cpp", "unit")
    fuzz = files("fuzz/fuzz_*.cpp", "fuzz")
    return {
        "check": files("check/*.sh", "check", "check.files") | files("check/*.py", "check"),
        "unit": unit | python_cases("cli/usage_test.py", "cli"),
        "runtime": python_cases("runtime/*_test.py", "runtime")
        | python_cases("cli/session_test.py", "cli")
        | google_cases("runtime/*_test.cpp", "runtime")
        | google_cases("runtime/inject/*_test.cpp", "runtime"),
        "python": python_cases("python/test_*.py", "python"),
        "fuzz": fuzz,
        "asan": unit | fuzz,
        "tsan": unit,
        "tidy": {"tidy"},
        "campaign": python_cases("runtime/*_test.py", "runtime", are_campaigns=True),
    }.get(run, set())


def skip_reason(case: xml.etree.ElementTree.Element) -> str:
    """What the test printed about its being skipped."""
    output = case.findtext("system-out") or ""
    for line in output.splitlines():
        if "skip" in line.lower():
            return line.strip()
    element = case.find("skipped")
    return (element.get("message") if element is not None else None) or "no reason given"


def failure(case: xml.etree.ElementTree.Element) -> list[str]:
    """The lines of a failed test's output that say why, or its last ones."""
    return telling(case.findtext("system-out") or "")


def telling(output: str) -> list[str]:
    """The lines that say what went wrong, or the last ones."""
    lines = [line.rstrip() for line in output.splitlines() if line.strip()]
    chosen: set[int] = set()
    for number, line in enumerate(lines):
        if re.search(r": Failure$|Error\b|^E  |FAIL|runtime error|panic|BUG:|: error: ", line):
            chosen.update(range(number, number + 6 if line.endswith(": Failure") else number + 1))
        if re.match(r"\w*Error: ", line):  # the end of a traceback: where, and the next words of what
            chosen.update(range(max(number - 2, 0), number + 15))
    kept = [line for number, line in enumerate(lines) if number in chosen] or lines
    return [shortened(line) for line in kept[-LINES:]]


def shortened(line: str) -> str:
    """Both ends of a long line."""
    return line if len(line) <= LINE else f"{line[:LINE // 2]} [...] {line[-LINE // 2:]}"


def is_skip(case: xml.etree.ElementTree.Element) -> bool:
    """Whether the test chose to be skipped; one that could not be started has failed."""
    element = case.find("skipped")
    message = (element.get("message") if element is not None else None) or ""
    return case.get("status") == "disabled" or message.startswith("SKIP_")


def main() -> int:
    folder, *runs = sys.argv[1:]
    passed = failed = skipped = 0
    wrong = False
    reasons: list[str] = []
    for run in runs:
        if run.startswith("failed="):
            wrong = run != "failed=0"
            continue
        path = os.path.join(folder, run + ".xml")
        tests = list(xml.etree.ElementTree.parse(path).iter("testcase")) if os.path.exists(path) else []
        ran = {without_parameter(case.get("name", "")) for case in tests}
        for case in tests:
            name = f"{run}: {case.get('name')}"
            if case.get("status") == "run":
                passed += 1
            elif is_skip(case):
                skipped += 1
                print(f"skipped  {name}: {skip_reason(case)}")
            else:
                failed += 1
                print(f"FAILED   {name}")
                reasons += [f"-- {name}", *failure(case)]
        time = sum(float(case.get("time", 0)) for case in tests)
        print(f"{run}: {len(tests)} tests, {time:.0f} s")
        missing = wanted(run) - ran
        build = os.path.join(folder, run + ".log")
        if not tests:
            missing.add("any test")
        if os.path.exists(build):
            reasons += [f"-- {run}, whose build failed", *telling(pathlib.Path(build).read_text())]
            missing = {"any test"}
        for name in sorted(missing):
            print(f"FAILED   {run}: {name} did not run")
        failed += len(missing)
    print("\n".join(reasons), end="\n" if reasons else "")
    print(f"{passed} passed, {failed} failed, {skipped} skipped")
    return 1 if wrong or failed else 0


if __name__ == "__main__":
    sys.exit(main())
