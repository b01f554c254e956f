# SPDX-License-Identifier: MIT
"""Slows chosen Python functions down by a spin, to find out which code matters.

``SPEED_BUMP_TARGETS=targets.txt python app.py`` needs no import; ``python -m speed_bump -t
targets.txt app.py`` needs no variable; and ``with speed_bump.slow("module:name"):`` needs no file.
"""

from __future__ import annotations

from . import native
from ._config import Config, ConfigError, load_config
from ._core import spin_delay_ns
from ._monitoring import (
    TargetStats,
    clear_cache,
    get_clock_overhead_ns,
    get_config,
    get_min_delay_ns,
    install,
    is_calibrated,
    is_installed,
    set_delay,
    slow,
    stats,
    uninstall,
)
from ._patterns import PatternError, TargetPattern

__version__ = "0.1.0"

clock_overhead_ns: int = get_clock_overhead_ns()
min_delay_ns: int = get_min_delay_ns()

__all__ = [
    "Config",
    "ConfigError",
    "PatternError",
    "TargetPattern",
    "TargetStats",
    "__version__",
    "clear_cache",
    "clock_overhead_ns",
    "get_clock_overhead_ns",
    "get_config",
    "get_min_delay_ns",
    "install",
    "is_calibrated",
    "is_installed",
    "load_config",
    "min_delay_ns",
    "native",
    "set_delay",
    "slow",
    "spin_delay_ns",
    "stats",
    "uninstall",
]
