# SPDX-License-Identifier: MIT
"""Target patterns: the Python lines of a targets file, read by the project's one parser."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, field

from . import _core


class PatternError(Exception):
    """A line of a targets file is wrong."""


@dataclass(frozen=True)
class TargetPattern:
    """One target, or with ``exclude`` one exclusion."""

    module_pattern: str
    name_pattern: str
    original: str
    _line: _core.Line = field(default=None, compare=False, repr=False)  # type: ignore[assignment]

    def __post_init__(self) -> None:
        if self._line is None:
            line = _core.Line(self.module_pattern, self.name_pattern)
            object.__setattr__(self, "_line", line)

    def __reduce__(self) -> tuple[object, ...]:
        return (_restore, (self.module_pattern, self.name_pattern, self.original))

    @property
    def exclude(self) -> bool:
        """Whether functions that match are left alone."""
        return self._line.exclude

    @property
    def line(self) -> _core.Line:
        """The parsed line with its options."""
        return self._line

    def matches(self, module: str, name: str) -> bool:
        """Tells whether the pattern names the function.

        Args:
            module: Dotted module name, or the path of the file.
            name: Qualified name.
        """
        return self._line.matches(module, _path(module), name)


def _restore(module: str, name: str, original: str) -> TargetPattern:
    """Makes an unpickled pattern: from its line, options and all, where it has one."""
    try:
        pattern = parse_pattern(original, 1)
    except PatternError:
        pattern = None
    if pattern is None or (pattern.module_pattern, pattern.name_pattern) != (module, name):
        return TargetPattern(module, name, original)
    return pattern


def _path(module: str) -> str:
    return module if "/" in module else ""


def _make_pattern(line: _core.Line) -> TargetPattern:
    return TargetPattern(line.module, line.name, line.original, line)


def _raise_first(errors: Sequence[tuple[int, str, str]]) -> None:
    if errors:
        number, message, details = errors[0]
        raise PatternError(f"Line {number}: {message}\n{details}")


def parse_pattern(line: str, line_number: int) -> TargetPattern | None:
    """Parses one line of a targets file.

    Args:
        line: The line.
        line_number: Its number, for messages.

    Returns:
        The pattern; None for a line without a Python target (empty, comment, native, default).

    Raises:
        PatternError: The line is wrong.
    """
    lines, errors = _core.parse(os.fsencode(line), "pattern", line_number)
    _raise_first(errors)
    patterns = [_make_pattern(found) for found in lines if found.is_python]
    return patterns[0] if patterns else None


def load_targets(path: str | os.PathLike[str]) -> list[TargetPattern]:
    """Reads the Python targets and exclusions of a targets file, in order.

    Raises:
        FileNotFoundError: There is no such file (other OSErrors for other reasons).
        PatternError: A line is wrong, or the file is none that can be read.
    """
    try:
        lines, errors = _core.load(os.fsencode(path))
    except ValueError as error:
        raise PatternError(str(error)) from None
    _raise_first(errors)
    return [_make_pattern(line) for line in lines if line.is_python]


def matches_any(
    patterns: Sequence[TargetPattern], module_name: str, qualified_name: str
) -> bool:
    """Tells whether the patterns together select the function: the last that matches decides."""
    lines = [pattern.line for pattern in patterns]
    place = _core.deciding_line(lines, module_name, _path(module_name), qualified_name)
    return place is not None
