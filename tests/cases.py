# SPDX-License-Identifier: MIT
"""Names the cases of Python test files: one a line, `test_NAME` or `Class.test_NAME`.

    cases.py FILE

Behind a name are its marks: "campaign" of what runs for minutes, "alone" of that beside which no other
test runs.
"""

import ast
import pathlib
import sys
from collections.abc import Iterator

MARKS = ("campaign", "alone")


def _marks(test: ast.FunctionDef) -> list[str]:
    marked = [mark.id for mark in test.decorator_list if isinstance(mark, ast.Name)]
    return [mark for mark in MARKS if mark in marked]


def cases(path: str | pathlib.Path) -> Iterator[tuple[str, list[str]]]:
    """The name of each test function of a file, and its marks."""
    for item in ast.parse(pathlib.Path(path).read_text()).body:
        inside, prefix = [item], ""
        if isinstance(item, ast.ClassDef):
            inside, prefix = item.body, item.name + "."
        for test in inside:
            if isinstance(test, ast.FunctionDef) and test.name.startswith("test_"):
                yield prefix + test.name, _marks(test)


if __name__ == "__main__":
    for name, marks in cases(sys.argv[1]):
        print(" ".join((name, *marks)))
