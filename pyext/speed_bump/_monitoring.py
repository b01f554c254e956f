# SPDX-License-Identifier: MIT
"""Installing the hook: what a Config says becomes the core's live table."""

from __future__ import annotations

import os
import sys
import time
from _thread import RLock
from typing import TYPE_CHECKING, NamedTuple

from . import _core

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType

    from ._config import Config
    from ._patterns import TargetPattern


class TargetStats(NamedTuple):
    """What happened at one target, in this process and those forked from it."""

    calls: int
    delays: int
    requested_ns: int
    measured_ns: int

    def __add__(self, other: object) -> TargetStats:  # type: ignore[override]
        if not isinstance(other, TargetStats):
            return NotImplemented
        return TargetStats(*(mine + its for mine, its in zip(self, other)))


# Guards what follows. Reentrant: a signal handler may come here.
_lock = RLock()
_config: Config | None = None
_slowed: list[slow] = []
# Another interpreter of this process installed the session; this one takes part.
_guest = False


def get_clock_overhead_ns() -> int:
    """The cost of one read of the clock, in nanoseconds."""
    return _core.clock_overhead_ns()


def get_min_delay_ns() -> int:
    """The smallest delay that can be asked for: two reads of the clock."""
    return 2 * _core.clock_overhead_ns()


def is_calibrated() -> bool:
    """Tells whether the clock's cost has been measured (it is, when the package is imported)."""
    return _core.clock_overhead_ns() > 0


def _descends_from(pid: int) -> bool:
    current = os.getpid()
    while current > 0:
        if current == pid:
            return True
        try:
            with open(f"/proc/{current}/stat", "rb") as stat:
                current = int(stat.read().rpartition(b")")[2].split()[1])
        except (OSError, ValueError, IndexError):
            return False
    return False


def offset_ns(clock: Callable[[], int]) -> int:
    """What time.time_ns is ahead of a clock, by the closest of three reads: between two of them the
    process may have no CPU."""
    reads = [(clock(), time.time_ns(), clock()) for _ in range(3)]
    before, wall, after = min(reads, key=lambda read: read[2] - read[0])
    return wall - (before + after) // 2


def _settings(pattern: TargetPattern, config: Config) -> _core.Settings:
    line = pattern.line
    if line.start_ns is not None or line.duration_ns is not None:
        now = time.monotonic_ns()
        start = now + (line.start_ns or 0)
        end = start + line.duration_ns if line.duration_ns else 0
    else:
        offset = offset_ns(time.monotonic_ns)
        start = max(config.start_ns - offset, 0)
        # 0 would mean that there is no end.
        end = 0 if config.end_ns is None else max(config.end_ns - offset, 1)
    return _core.Settings(
        delay_ns=min(
            config.delay_ns if line.delay_ns is None else line.delay_ns, _core.max_delay_ns
        ),
        every=config.frequency if line.every is None else line.every,
        start_ns=start,
        end_ns=end,
        enabled=line.pid is None or _descends_from(line.pid),
    )


def _base_count() -> int:
    return 0 if _config is None else len(_config.targets)


def _apply() -> None:
    """Makes the core do what _config and _slowed say."""
    global _guest
    if _config is None and not _slowed:
        _core.uninstall()
        return
    targets = () if _config is None else _config.targets
    lines = [target.line for target in targets]
    settings = [] if _config is None else [_settings(target, _config) for target in targets]
    _core.install(lines, settings)
    _guest = False
    for place, slowed in enumerate(_slowed):
        slowed._place = len(lines) + place
        _core.set_target(slowed._place, slowed._line, slowed._settings)


def _is_first_interpreter() -> bool:
    return _core.interpreter_id() == 0


def install(config: Config) -> bool:
    """Slows the functions that the config names, in all threads, from their next call on.

    Replaces what was installed before. The session belongs to the process: in a subinterpreter,
    when another interpreter installed one already, this interpreter joins it.

    Returns:
        False for a disabled config or one without targets: then nothing is changed.

    Raises:
        RuntimeError: A speedbump session is attached from outside with this very core, all tool
            ids of sys.monitoring are taken, or this is a subinterpreter with a GIL of its own and
            there is nothing to join (before Python 3.15).
    """
    global _config, _guest
    if not config.enabled or not config.targets:
        return False
    with _lock:
        if _core.has_session() and not _is_first_interpreter() and (_config is None or _guest):
            _core.join()
            _guest = True
            _config = config
            return True
        previous = _config
        _config = config
        try:
            _apply()
        except BaseException:
            _config = previous
            raise
        for sentence in _core.not_interpreted([target.line for target in config.targets]):
            if sys.stderr is not None:
                print(f"speed_bump: warning: {sentence}", file=sys.stderr)
    return True


def uninstall() -> None:
    """Takes the hook out; calls cost again what they cost before."""
    global _config, _guest
    with _lock:
        if _config is None:
            return
        _config = None
        if _guest:
            _guest = False
            _core.leave()
            return
        _apply()


def is_installed() -> bool:
    """Tells whether functions are being slowed by install() or slow()."""
    return _config is not None or bool(_slowed)


def get_config() -> Config | None:
    """The config that install() was given; None when nothing is installed."""
    return _config


def clear_cache() -> None:
    """Makes every function be matched anew at its next call."""
    _core.clear_cache()


def _names(slowed: slow | TargetPattern) -> tuple[str, str]:
    line = slowed._line
    return line.original, f"{line.module}:{line.name}"


def stats() -> dict[str, TargetStats]:
    """What happened since install(), per target as it was written; empty when not installed."""
    with _lock:
        if not is_installed():
            return {}
        counts = _core.stats()
        result: dict[str, TargetStats] = {}
        targets = () if _config is None else _config.targets
        places = list(enumerate(targets)) + [(slowed._place, slowed) for slowed in _slowed]
        for place, target in places:
            if target._line.exclude:
                continue
            name = target.original
            result[name] = TargetStats(*counts[place]) + result.get(
                name, TargetStats(0, 0, 0, 0)
            )
        return result


def _delay_ns(delay: int | str) -> int:
    value = _core.parse_duration(delay) if isinstance(delay, str) else int(delay)
    if not 0 <= value <= _core.max_delay_ns:
        raise ValueError(f"a delay is 0 to {_core.max_delay_ns // 10**9} s, not {delay}")
    return value


def set_delay(pattern: str, delay: int | str) -> int:
    """Changes the delay of installed targets at once, also of a call that is being delayed.

    Args:
        pattern: A target as it was written, with or without its options.
        delay: Nanoseconds, or a text such as "10us".

    Returns:
        How many targets were changed.

    Raises:
        ValueError: No installed target is written so, or the delay is none.
    """
    value = _delay_ns(delay)
    with _lock:
        targets = () if _config is None else _config.targets
        places = [(place, target) for place, target in enumerate(targets)]
        found = [place for place, target in places if pattern in _names(target)]
        found += [slowed._place for slowed in _slowed if pattern in _names(slowed)]
        for place in found:
            _core.set_delay(place, value)
    if not found:
        raise ValueError(f"no installed target is {pattern!r}")
    return len(found)


class slow:
    """Slows functions for the length of a with block, on top of what is installed.

    Args:
        target: ``module:name``, with globs as in a targets file.
        delay: Nanoseconds, or a text such as "10us".
        every: Every Nth matching call is delayed.
    """

    def __init__(self, target: str, delay: int | str = 1000, every: int = 1) -> None:
        from ._patterns import PatternError, parse_pattern

        pattern = parse_pattern(target, 1)
        if pattern is None or pattern.exclude:
            raise PatternError(f"Line 1: {target!r} is not a Python target")
        if every < 1:
            raise ValueError(f"every is 1 or more, not {every}")
        self.original = target
        self._line = pattern.line
        self._settings = _core.Settings(delay_ns=_delay_ns(delay), every=every)
        self._place = -1
        self._final: TargetStats | None = None

    def __enter__(self) -> slow:
        with _lock:
            if self in _slowed:
                raise RuntimeError("this slow() is entered already")
            if len(_slowed) >= _core.spare_targets:
                raise RuntimeError(f"more than {_core.spare_targets} slow() at once")
            self._final = None
            _slowed.append(self)
            try:
                if len(_slowed) == 1 and _config is None:
                    _apply()
                else:
                    taken = {other._place for other in _slowed}
                    first = _base_count()
                    self._place = next(
                        place
                        for place in range(first, first + _core.spare_targets)
                        if place not in taken
                    )
                    _core.set_target(self._place, self._line, self._settings)
            except BaseException:
                _slowed.remove(self)
                raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        with _lock:
            self._final = self.stats()
            _slowed.remove(self)
            if not _slowed and _config is None:
                _core.uninstall()
            else:
                _core.clear_target(self._place)
            self._place = -1

    def stats(self) -> TargetStats:
        """What happened at this target, also after the block."""
        with _lock:
            if self._final is not None:
                return self._final
            if self._place < 0:
                return TargetStats(0, 0, 0, 0)
            return TargetStats(*_core.stats()[self._place])
