# SPDX-License-Identifier: MIT
"""Patterns and configuration: names, defaults and messages that existing programs rely on."""

import json

import pytest


def test_patterns_keep_their_names_and_messages(python):
    result = python.script(
        """
        import json, pickle
        from speed_bump._patterns import (
            PatternError, TargetPattern, load_targets, matches_any, parse_pattern)

        def message(line, number):
            try:
                parse_pattern(line, number)
            except PatternError as error:
                return str(error)

        spaced = parse_pattern("module : name", 1)
        parsed = parse_pattern("pkg.*:Class.* delay=10us", 1)
        by_hand = TargetPattern("pkg.*", "Class.*", "pkg.*:Class.*")
        pair = [TargetPattern("m", "f", "m:f"), parse_pattern("!m:f", 2)]
        again = pickle.loads(pickle.dumps(parsed))
        print(json.dumps({
            "colon": message("no_colon_here", 5), "module": message(":name", 3),
            "name": message("module:", 7),
            "spaced": [spaced.module_pattern, spaced.name_pattern],
            "parsed": [parsed.module_pattern, parsed.name_pattern, parsed.original],
            "none": [parse_pattern(line, 1) for line in ("", "# x", "+/bin/ls:main", "@delay=1us")],
            "matches": [by_hand.matches("pkg.a", "Class.m"), by_hand.matches("pkg", "Class.m"),
                        by_hand.matches("/srv/pkg.py", "Class.m")],
            "path": TargetPattern("*/pkg.py", "f", "").matches("/srv/pkg.py", "f"),
            "any": [matches_any(pair[:1], "m", "f"), matches_any(pair, "m", "f"),
                    matches_any([], "m", "f")],
            "frozen": [again == parsed, again.line.delay_ns],
        }))
        """
    )
    assert "Line 5" in result["colon"] and "missing ':'" in result["colon"]
    assert "Line 3" in result["module"] and "Empty module" in result["module"]
    assert "Line 7" in result["name"] and "Empty name" in result["name"]
    assert result["spaced"] == ["module", "name"]
    assert result["parsed"][:2] == ["pkg.*", "Class.*"]
    assert result["none"] == [None] * 4
    assert result["matches"] == [True, False, False] and result["path"] is True
    assert result["any"] == [True, False, False]
    assert result["frozen"] == [True, 10000]


def test_load_targets(python):
    good = python.file("good.txt", "# c\n@delay=5us\nm:f\n+/bin/ls:main\n!m:g\n\n")
    bad = python.file("bad.txt", "m:f\nno_colon\n")
    result = python.script(
        f"""
        import json, os
        from speed_bump._patterns import PatternError, load_targets
        os.mkfifo("fifo")
        def kind(path):
            try:
                load_targets(path)
            except (PatternError, OSError) as error:
                return [type(error).__name__, str(error)]
        print(json.dumps({{
            "good": [(p.original, p.exclude, p.line.delay_ns) for p in load_targets({good!r})],
            "bad": kind({bad!r}), "missing": kind("nowhere"), "fifo": kind("fifo"),
            "directory": kind(".")}}))
        """
    )
    assert [entry[1:] for entry in result["good"]] == [[False, 5000], [True, None]]
    assert result["bad"][0] == "PatternError" and "Line 2" in result["bad"][1]
    assert result["missing"][0] == "FileNotFoundError"
    assert result["fifo"][0] == "PatternError" and result["directory"][0] == "PatternError"


CONFIG = """
    import io, json, os, sys
    import speed_bump
    from speed_bump import _config
    try:
        c = speed_bump.load_config()
        print(json.dumps([c.enabled, len(c.targets), c.delay_ns, c.frequency,
                          c.start_ns - _config._PROCESS_START_NS,
                          c.end_ns and c.end_ns - c.start_ns, speed_bump.min_delay_ns]))
    except speed_bump.ConfigError as error:
        print(json.dumps(str(error)))
    """


def test_config_defaults(python):
    targets = python.file("targets.txt", "a:b\nc:d\n")
    for disabled in (python.script(CONFIG), python.script(CONFIG, SPEED_BUMP_TARGETS="")):
        assert disabled[:4] == [False, 0, 0, 1] and disabled[5] is None
    assert python.script(CONFIG, SPEED_BUMP_TARGETS=targets)[:6] == [True, 2, 1000, 1, 0, None]
    values = python.script(
        CONFIG,
        SPEED_BUMP_TARGETS=targets,
        SPEED_BUMP_DELAY_NS="5000",
        SPEED_BUMP_FREQUENCY="10",
        SPEED_BUMP_START_MS="1000",
        SPEED_BUMP_DURATION_MS="5000",
    )
    assert values[:6] == [True, 2, 5000, 10, 10**9, 5 * 10**9]


@pytest.mark.parametrize(
    ("variable", "value", "words"),
    [
        ("SPEED_BUMP_DELAY_NS", "many", "invalid integer"),
        ("SPEED_BUMP_DELAY_NS", "-100", "below minimum"),
        ("SPEED_BUMP_DELAY_NS", "9" * 30, "above maximum"),
        ("SPEED_BUMP_FREQUENCY", "0", "below minimum"),
        ("SPEED_BUMP_START_MS", "-1", "below minimum"),
        ("SPEED_BUMP_DURATION_MS", "1.5", "invalid integer"),
    ],
)
def test_config_errors_name_the_variable(python, variable, value, words):
    targets = python.file("targets.txt", "a:b\n")
    variables = {"SPEED_BUMP_TARGETS": targets, variable: value}
    message = python.script(CONFIG, **variables)
    assert variable in message and words in message


def test_config_of_missing_file(python):
    message = python.script(CONFIG, SPEED_BUMP_TARGETS="/nowhere/targets.txt")
    assert "file not found" in message


def test_small_delay_is_clamped_with_a_warning(python):
    targets = python.file("targets.txt", "a:b\n")
    path = python.file("program.py", CONFIG)
    out, err = python.run(path, SPEED_BUMP_TARGETS=targets, SPEED_BUMP_DELAY_NS="1")
    assert "SPEED_BUMP_DELAY_NS" in err and "clamping" in err
    values = json.loads(out)
    assert values[2] == values[6]


def test_window(python):
    result = python.script(
        """
        import json
        from speed_bump import Config
        def inside(now, enabled=True, start=100, end=None):
            return Config(enabled=enabled, targets=(), delay_ns=1, frequency=1, start_ns=start,
                          end_ns=end).is_in_window(now)
        print(json.dumps([inside(99), inside(100), inside(200, end=200), inside(199, end=200),
                          inside(150, enabled=False), Config(True, (), 1, 1, 0, None).is_in_window()
                          ]))
        """
    )
    assert result == [False, True, False, True, False, True]


def test_calibration(python):
    result = python.script(
        """
        import json, time, speed_bump
        def spin(ns):
            begin = time.perf_counter_ns()
            speed_bump.spin_delay_ns(ns)
            return time.perf_counter_ns() - begin
        print(json.dumps({
            "clock": speed_bump.clock_overhead_ns, "minimum": speed_bump.min_delay_ns,
            "functions": [speed_bump.get_clock_overhead_ns(), speed_bump.get_min_delay_ns()],
            "calibrated": speed_bump.is_calibrated(), "version": speed_bump.__version__,
            "zero": min(spin(0) for _ in range(5)),
            "spins": [(ns, min(spin(ns) for _ in range(9))) for ns in (1000, 10000, 1000000)],
            "native": "native" in speed_bump.__all__ and speed_bump.native.__name__}))
        """
    )
    assert result["clock"] > 0 and result["minimum"] == 2 * result["clock"]
    assert result["functions"] == [result["clock"], result["minimum"]]
    assert result["calibrated"] is True and result["version"]
    assert result["zero"] < 100_000
    for asked, took in result["spins"]:
        assert asked <= took < 2 * asked + 3000
    assert result["native"] == "speed_bump.native"
