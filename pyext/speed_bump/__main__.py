# SPDX-License-Identifier: MIT
"""python -m speed_bump [options] script.py [args], or [options] -m module [args]."""

from __future__ import annotations

import argparse
import dataclasses
import os
import sys
import time
import types

from . import _core
from ._config import ConfigError, Config, clamp_delay, load_config
from ._monitoring import install
from ._patterns import PatternError, load_targets

_WITH_VALUE = ("-t", "--targets", "--delay", "--every", "--start", "--duration")


def _split(arguments: list[str]) -> tuple[list[str], list[str]]:
    """Splits into this command's own options, and the program with its arguments."""
    place = 0
    while place < len(arguments):
        argument = arguments[place]
        if argument == "--":
            return arguments[:place], arguments[place + 1 :]
        if argument == "-m" or not argument.startswith("-"):
            break
        place += 2 if argument in _WITH_VALUE else 1
    return arguments[:place], arguments[place:]


def _options(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m speed_bump",
        usage="%(prog)s [options] (script.py | -m module) [args...]",
        description="Runs a Python program with chosen functions slowed down.",
        epilog="Options in the targets file win over the ones given here.",
        allow_abbrev=False,
    )
    parser.add_argument("-t", "--targets", help="targets file (default: SPEED_BUMP_TARGETS)")
    parser.add_argument("--delay", help="delay per trigger, such as 10us")
    parser.add_argument("--every", type=int, help="delay every Nth matching call")
    parser.add_argument("--start", help="begin this long after now, such as 5s")
    parser.add_argument("--duration", help="go on for this long, such as 30s")
    return parser.parse_args(arguments)


def _config(options: argparse.Namespace) -> Config:
    if options.targets is None and not os.environ.get("SPEED_BUMP_TARGETS"):
        raise ConfigError("name a targets file with -t, or in SPEED_BUMP_TARGETS")
    if options.targets is None:
        config = load_config()
    else:
        targets = tuple(load_targets(options.targets))
        config = Config(bool(targets), targets, 1000, 1, time.time_ns(), None)
    if options.delay is not None:
        delay_ns = clamp_delay(_core.parse_duration(options.delay), "--delay")
        config = dataclasses.replace(config, delay_ns=delay_ns)
    if options.every is not None:
        if options.every < 1:
            raise ConfigError("--every: below minimum 1")
        config = dataclasses.replace(config, frequency=options.every)
    if options.start is not None:
        start_ns = time.time_ns() + _core.parse_duration(options.start)
        config = dataclasses.replace(config, start_ns=start_ns)
    if options.duration is not None:
        length = _core.parse_duration(options.duration)
        end_ns = max(config.start_ns, time.time_ns()) + length if length else None
        config = dataclasses.replace(config, end_ns=end_ns)
    return config


def _run_script(path: str) -> None:
    if os.path.isdir(path) or path.endswith((".zip", ".pyz")):
        import runpy

        runpy.run_path(path, run_name="__main__")
        return
    import io

    sys.path[0] = os.path.dirname(os.path.abspath(path))
    with io.open_code(path) as file:
        code = compile(file.read(), path, "exec")
    module = types.ModuleType("__main__")
    module.__dict__.update(__file__=path, __builtins__=__builtins__, __spec__=None)
    sys.modules["__main__"] = module
    exec(code, module.__dict__)


def _run_module(name: str) -> None:
    import runpy

    sys.path[0] = os.getcwd()
    runpy.run_module(name, run_name="__main__", alter_sys=True)


def main() -> int:
    """Runs the program that the command line names; the status of a usage error is 2."""
    own, program = _split(sys.argv[1:])
    options = _options(own)
    if not program or program == ["-m"]:
        print("speed_bump: no program to run: name a script, or -m and a module", file=sys.stderr)
        return 2
    try:
        install(_config(options))
    except (ConfigError, PatternError, OSError, ValueError) as error:
        print(f"speed_bump: {error}", file=sys.stderr)
        return 2
    if program[0] == "-m":
        sys.argv = program[1:]
        _run_module(program[1])
    else:
        sys.argv = program
        try:
            _run_script(program[0])
        except FileNotFoundError as error:
            if error.filename != program[0]:
                raise
            print(f"speed_bump: {program[0]}: {error.strerror}", file=sys.stderr)
            return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
