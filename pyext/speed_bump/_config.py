# SPDX-License-Identifier: MIT
"""Configuration from environment variables."""

from __future__ import annotations

import os
import sys
import time
from dataclasses import dataclass

from . import _core
from ._monitoring import get_min_delay_ns, offset_ns
from ._patterns import PatternError, TargetPattern, load_targets

_MAX_MS = 10**12


def _process_start_ns() -> int:
    """The start of this process on the clock of time.time_ns, to 10 ms."""
    try:
        with open("/proc/self/stat", "rb") as stat:
            # The command may hold anything, spaces and parentheses too.
            fields = stat.read().rpartition(b")")[2].split()
        started = int(fields[19]) * 1_000_000_000 // os.sysconf("SC_CLK_TCK")
        boottime = offset_ns(lambda: time.clock_gettime_ns(time.CLOCK_BOOTTIME))
    except (OSError, ValueError, IndexError, AttributeError):
        return time.time_ns()
    return min(started + boottime, time.time_ns())


_PROCESS_START_NS: int = _process_start_ns()


class ConfigError(Exception):
    """A variable or the targets file is wrong."""


@dataclass(frozen=True)
class Config:
    """What to slow, by how much, and when.

    Attributes:
        enabled: False when there is nothing to do.
        targets: The patterns, in order; the last that matches decides.
        delay_ns: Delay per trigger, for targets that set none.
        frequency: Every Nth matching call is delayed, for targets that set none.
        start_ns: When delays begin, on the clock of time.time_ns.
        end_ns: When they end; None: never.
    """

    enabled: bool
    targets: tuple[TargetPattern, ...]
    delay_ns: int
    frequency: int
    start_ns: int
    end_ns: int | None

    def is_in_window(self, now_ns: int | None = None) -> bool:
        """Tells whether calls are delayed at a moment of the time.time_ns clock (default: now)."""
        if not self.enabled:
            return False
        if now_ns is None:
            now_ns = time.time_ns()
        return self.start_ns <= now_ns and (self.end_ns is None or now_ns < self.end_ns)


_DISABLED = Config(enabled=False, targets=(), delay_ns=0, frequency=1, start_ns=0, end_ns=None)


def warn(message: str) -> None:
    """Prints one warning to stderr, if there is one."""
    if sys.stderr is not None:
        print(f"speed_bump: warning: {message}", file=sys.stderr)


def _integer(name: str, default: int, minimum: int, maximum: int) -> int:
    text = os.environ.get(name)
    if text is None or not text.strip():
        return default
    try:
        value = int(text)
    except ValueError:
        raise ConfigError(f"{name}: invalid integer '{text}'") from None
    if value < minimum:
        raise ConfigError(f"{name}: {value} is below minimum {minimum}")
    if value > maximum:
        raise ConfigError(f"{name}: {value} is above maximum {maximum}")
    return value


def _load(path: str) -> list[TargetPattern]:
    try:
        return load_targets(path)
    except FileNotFoundError:
        raise ConfigError(f"SPEED_BUMP_TARGETS: file not found: {path}") from None
    except (OSError, PatternError) as error:
        raise ConfigError(f"SPEED_BUMP_TARGETS: {path}: {error}") from None


def clamp_delay(delay_ns: int, source: str) -> int:
    """Raises a delay to the smallest one that can be done, with a warning that names its source."""
    minimum = get_min_delay_ns()
    if delay_ns >= minimum:
        return delay_ns
    warn(f"{source}: {delay_ns} ns is less than can be done, clamping to {minimum} ns")
    return minimum


def load_config() -> Config:
    """Reads the configuration from the environment.

    Raises:
        ConfigError: A variable or the targets file is wrong.
    """
    path = os.environ.get("SPEED_BUMP_TARGETS")
    if not path:
        return _DISABLED
    targets = _load(path)
    delay_ns = _integer("SPEED_BUMP_DELAY_NS", 1000, 0, _core.max_delay_ns)
    frequency = _integer("SPEED_BUMP_FREQUENCY", 1, 1, 2**63 - 1)
    start_ms = _integer("SPEED_BUMP_START_MS", 0, 0, _MAX_MS)
    duration_ms = _integer("SPEED_BUMP_DURATION_MS", 0, 0, _MAX_MS)
    if not targets:
        warn(f"SPEED_BUMP_TARGETS: {path} has no Python targets")
        return _DISABLED
    start_ns = _PROCESS_START_NS + start_ms * 1_000_000
    return Config(
        enabled=True,
        targets=tuple(targets),
        delay_ns=clamp_delay(delay_ns, "SPEED_BUMP_DELAY_NS"),
        frequency=frequency,
        start_ns=start_ns,
        end_ns=start_ns + duration_ms * 1_000_000 if duration_ms else None,
    )
