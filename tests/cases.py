# SPDX-License-Identifier: MIT
"""Names the cases of Python test files: one a line, `test_NAME` or `Class.test_NAME`.

    cases.py FILE

A function that is marked @campaign, which runs for minutes, is followed by " campaign".
"""

import ast
import pathlib
import sys
from collections.abc import Iterator


def _is_campaign(test: ast.FunctionDef) -> bool:
    return any(isinstance(mark, ast.Name) and mark.id == "campaign" for mark in test.decorator_list)


def cases(path: str | pathlib.Path) -> Iterator[tuple[str, bool]]:
    """The name of each test function of a file, and whether it is a campaign."""
    for item in ast.parse(pathlib.Path(path).read_text()).body:
        inside, prefix = [item], ""
        if isinstance(item, ast.ClassDef):
            inside, prefix = item.body, item.name + "."
        for test in inside:
            if isinstance(test, ast.FunctionDef) and test.name.startswith("test_"):
                yield prefix + test.name, _is_campaign(test)


if __name__ == "__main__":
    for name, is_campaign in cases(sys.argv[1]):
        print(name + (" campaign" if is_campaign else ""))
