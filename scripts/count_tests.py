# SPDX-License-Identifier: MIT
"""Sums up the JUnit files that ctest wrote.

    count_tests.py FOLDER RUN=LEAST... failed=0|1

Reads FOLDER/RUN.xml for each run. Prints the failed and the skipped tests, the skipped ones with
their reason, and as last line "N passed, M failed, K skipped". A test that a run lacks to LEAST
has failed. Exits 1 when a test or a step before failed.
"""

import os
import sys
import xml.etree.ElementTree


def skip_reason(case: xml.etree.ElementTree.Element) -> str:
    """What the test printed about its being skipped."""
    output = case.findtext("system-out") or ""
    for line in output.splitlines():
        if "skip" in line.lower():
            return line.strip()
    element = case.find("skipped")
    return (element.get("message") if element is not None else None) or "no reason given"


def is_skip(case: xml.etree.ElementTree.Element) -> bool:
    """Whether the test chose to be skipped; one that could not be started has failed."""
    element = case.find("skipped")
    message = (element.get("message") if element is not None else None) or ""
    return case.get("status") == "disabled" or message.startswith("SKIP_")


def main() -> int:
    folder = sys.argv[1]
    passed = failed = skipped = 0
    wrong = False
    for argument in sys.argv[2:]:
        run, number = argument.split("=")
        if run == "failed":
            wrong = wrong or number != "0"
            continue
        path = os.path.join(folder, run + ".xml")
        cases = []
        if os.path.exists(path):
            cases = list(xml.etree.ElementTree.parse(path).getroot().iter("testcase"))
        ran = 0
        for case in cases:
            name = f"{run}: {case.get('name')}"
            if case.get("status") == "run":
                passed += 1
                ran += 1
            elif is_skip(case):
                skipped += 1
                ran += 1
                print(f"skipped  {name}: {skip_reason(case)}")
            else:
                failed += 1
                ran += 1
                print(f"FAILED   {name}")
        print(f"{run}: {ran} tests")
        missing = int(number) - ran
        if missing > 0:
            print(f"FAILED   {run}: {ran} tests, at least {number} expected")
            failed += missing
    print(f"{passed} passed, {failed} failed, {skipped} skipped")
    return 1 if wrong or failed else 0


if __name__ == "__main__":
    sys.exit(main())
