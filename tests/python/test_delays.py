# SPDX-License-Identifier: MIT
"""What is delayed, when, and what the statistics say."""

PRELUDE = """
import json, sys, time
import speed_bump
from speed_bump import Config, install, uninstall, stats
from speed_bump._patterns import parse_pattern

def config(*lines, delay_ns=1000000, frequency=1, start_ns=0, end_ns=None):
    patterns = tuple(parse_pattern(line, number) for number, line in enumerate(lines, 1))
    return Config(True, patterns, delay_ns, frequency, start_ns, end_ns)

def ms(function, calls=1):
    begin = time.perf_counter()
    for _ in range(calls):
        function()
    return (time.perf_counter() - begin) * 1000

def counts():
    return {name: list(values[:2]) for name, values in stats().items()}

"""


def script(python, code, **variables):
    import textwrap

    return python.script(PRELUDE + textwrap.dedent(code), **variables)


def test_install_and_uninstall(python):
    result = script(
        python,
        """
        def f(): pass
        def g(): pass
        states = [install(Config(False, (), 1, 1, 0, None)), install(Config(True, (), 1, 1, 0, None)),
                  speed_bump.is_installed(), speed_bump.get_config()]
        before = ms(f, 5)
        chosen = config("__main__:f")
        states += [install(chosen), speed_bump.is_installed(), speed_bump.get_config() is chosen]
        delayed, other = ms(f, 5), ms(g, 5)
        seen = counts()
        uninstall()
        uninstall()
        states += [speed_bump.is_installed(), speed_bump.get_config(), stats()]
        print(json.dumps([states, before, delayed, other, ms(f, 5), seen]))
        """,
    )
    states, before, delayed, other, after, seen = result
    assert states == [False, False, False, None, True, True, True, False, None, {}]
    assert delayed >= 5 > max(before, other, after)
    assert seen == {"__main__:f": [5, 5]}


def test_statistics_add_up(python):
    result = script(
        python,
        """
        def f(): pass
        install(config("__main__:f", delay_ns=100000))
        took = ms(f, 20) * 1e6
        print(json.dumps([list(stats()["__main__:f"]), took]))
        """,
    )
    (calls, delays, requested, measured), took = result
    assert (calls, delays, requested) == (20, 20, 2_000_000)
    assert requested <= measured <= took * 1.05


def test_frequency_delays_every_nth_call(python):
    result = script(
        python,
        """
        def f(): pass
        def g(): pass
        install(config("__main__:f", "__main__:g every=3", frequency=10, delay_ns=1000))
        ms(f, 99)
        ms(g, 10)
        print(json.dumps(counts()))
        """,
    )
    assert result == {"__main__:f": [99, 9], "__main__:g every=3": [10, 3]}


def test_window_of_the_config_and_of_a_line(python):
    result = script(
        python,
        """
        def f(): pass
        def g(): pass
        def h(): pass
        now = time.time_ns()
        seen = []
        for start, end in ((now + 10**11, None), (now - 2000, now - 1000), (now - 1000, None)):
            install(config("__main__:f", start_ns=start, end_ns=end))
            ms(f, 2)
            seen.append(counts()["__main__:f"])
        install(config("__main__:f", "__main__:g start=1s duration=60s",
                       "__main__:h duration=1s", start_ns=now + 10**11))
        ms(g), ms(h)
        time.sleep(1.2)
        ms(f), ms(g), ms(h)
        print(json.dumps([seen, list(counts().values())]))
        """,
    )
    assert result[0] == [[2, 0], [2, 0], [2, 2]]
    assert result[1] == [[1, 0], [2, 1], [2, 1]]


def test_last_line_decides_and_exclusions(python):
    result = script(
        python,
        """
        def f(): pass
        def g(): pass
        def h(): pass
        install(config("__main__:?", "__main__:g delay=2ms", "!__main__:h"))
        ms(f), ms(g), ms(h)
        print(json.dumps([counts(), stats()["__main__:g delay=2ms"].requested_ns]))
        """,
    )
    assert result == [{"__main__:?": [1, 1], "__main__:g delay=2ms": [1, 1]}, 2000000]


def test_pid_option(python):
    result = script(
        python,
        """
        import os
        def f(): pass
        seen = []
        for pid in (os.getpid(), os.getppid(), 999999):
            install(config(f"__main__:f pid={pid}", delay_ns=1000))
            f()
            seen.append(list(counts().values())[0])
        print(json.dumps(seen))
        """,
    )
    assert result == [[1, 1], [1, 1], [1, 0]]


def test_qualified_names_are_exact(python):
    result = script(
        python,
        """
        import functools

        def outer():
            def inner(): pass
            class Local:
                def m(self): pass
            inner()
            Local().m()
            return inner

        class A:
            def m(self): pass
            class B:
                @staticmethod
                def m(): pass
                @property
                def p(self): return 1

        def wrapped(function):
            @functools.wraps(function)
            def wrapper():
                return function()
            return wrapper

        @wrapped
        def decorated(): pass

        short = lambda: None
        names = ["outer", "outer.<locals>.inner", "outer.<locals>.Local.m", "A.m", "A.B.m", "A.B.p",
                 "wrapped.<locals>.wrapper", "decorated", "<lambda>",
                 "late.<locals>.<lambda>", "inner", "m", "B.m"]

        def play():
            outer(), A().m(), A.B.m(), A.B().p, decorated(), short()
            space = {"__name__": "__main__"}
            exec(compile("def late():\\n    return (lambda: None)()", "made.py", "exec"), space)
            space["late"]()

        install(config(*("__main__:" + name for name in names), delay_ns=0))
        play()
        first = {name[9:]: values[0] for name, values in counts().items()}

        # Found before their first call, and found at their first call, must be the same.
        code = outer.__code__.replace(co_name="outer")
        outer.__code__ = code
        play()
        print(json.dumps([first, {name[9:]: values[0] for name, values in counts().items()}]))
        """,
    )
    expected = {
        "outer": 1,
        "outer.<locals>.inner": 1,
        "outer.<locals>.Local.m": 1,
        "A.m": 1,
        "A.B.m": 1,
        "A.B.p": 1,
        "wrapped.<locals>.wrapper": 1,
        "decorated": 1,
        "<lambda>": 1,
        "late.<locals>.<lambda>": 1,
        "inner": 0,
        "m": 0,
        "B.m": 0,
    }
    assert result[0] == expected
    assert result[1] == {name: 2 * count for name, count in expected.items()}


def test_module_code_and_comprehensions(python):
    python.file("loaded.py", "values = [n for n in range(3)]\ndef f(): pass\nclass C: pass\n")
    result = script(
        python,
        """
        install(config("loaded:<module>", "loaded:<listcomp>", "loaded:C", "*/loaded.py:f",
                       delay_ns=1000))
        import loaded
        loaded.f()
        print(json.dumps([values[0] for values in counts().values()]))
        """,
        PYTHONPATH=f"{python.package}:{python.folder}",
    )
    # From 3.12 on a comprehension is no function of its own.
    assert result == [1, 1 if python.version < (3, 12) else 0, 1, 1]


def test_set_delay_acts_on_a_delay_in_flight(python):
    result = script(
        python,
        """
        import signal, os
        def f(): pass
        install(config("__main__:f delay=8s"))
        pid = os.fork()
        name = "__main__:f delay=8s"
        if pid == 0:
            end = time.monotonic() + 30
            while counts()[name][0] == 0 and time.monotonic() < end:
                time.sleep(0.001)
            time.sleep(0.3)
            speed_bump.set_delay("__main__:f", "1ms")
            os._exit(0)
        took = ms(f)
        os.waitpid(pid, 0)
        before = stats()[name].requested_ns
        again = ms(f)
        requested = stats()[name].requested_ns - before
        try:
            speed_bump.set_delay("no:such", 1)
        except ValueError as error:
            message = str(error)
        print(json.dumps([took, again, requested, message, speed_bump.set_delay(name, 0)]))
        """,
    )
    took, again, requested, message, changed = result
    assert 250 < took < 4000
    assert again >= 1 and requested == 1_000_000
    assert "no:such" in message and changed == 1


def test_slow_block(python):
    result = script(
        python,
        """
        def f(): pass
        def g(): pass
        with speed_bump.slow("__main__:f", delay="1ms") as outer:
            inside = [speed_bump.is_installed(), ms(f, 3) >= 3]
            with speed_bump.slow("__main__:*", delay=2000000, every=2) as inner:
                ms(f, 3), ms(g)
            ms(f)
        kept = [list(outer.stats()[:2]), list(inner.stats()[:2]), speed_bump.is_installed()]
        install(config("__main__:f", delay_ns=1000))
        f()
        with speed_bump.slow("__main__:g", delay=1) as over:
            f(), g()
            live = counts()
        f(), g()
        print(json.dumps([inside, kept, live, counts()]))
        """,
    )
    inside, kept, live, after = result
    assert inside == [True, True]
    assert kept[0] == [4, 4] and kept[2] is False
    assert kept[1][0] >= 4 and kept[1][1] == kept[1][0] // 2
    assert live == {"__main__:f": [2, 2], "__main__:g": [1, 1]}
    assert after == {"__main__:f": [3, 3]}


def test_slow_refuses_what_is_no_target(python):
    result = script(
        python,
        """
        def kind(*arguments, **options):
            try:
                speed_bump.slow(*arguments, **options)
            except Exception as error:
                return type(error).__name__
        print(json.dumps([kind("nothing"), kind("+/bin/ls:main"), kind("a:b", delay="fast"),
                          kind("a:b", delay=-1), kind("a:b", delay="11s"), kind("a:b", every=0)]))
        """,
    )
    assert result == ["PatternError"] * 2 + ["ValueError"] * 4


def test_clear_cache_and_reinstall_look_again(python):
    result = script(
        python,
        """
        def f(): pass
        install(config("other:f", delay_ns=1000))
        f()
        f.__globals__["__name__"] = "other"
        f()
        before = counts()
        speed_bump.clear_cache()
        f()
        cleared = counts()
        install(config("never:f", delay_ns=1000))
        f()
        none = counts()
        uninstall()
        speed_bump.clear_cache()
        install(config("other:f", delay_ns=1000))
        f()
        print(json.dumps([before, cleared, none, counts()]))
        """,
    )
    assert result == [
        {"other:f": [0, 0]},
        {"other:f": [1, 1]},
        {"never:f": [0, 0]},
        {"other:f": [1, 1]},
    ]


def test_builtins_are_reported(python):
    path = python.file(
        "program.py",
        PRELUDE
        + "import collections, math\ninstall(config('math:sqrt', 'builtins:str.join', 'collections:OrderedDict',"
        + "'json:dumps', '*:len'))\nmath.sqrt(4)\nprint(json.dumps(counts()))\n",
    )
    out, err = python.run(path)
    assert "line 1: 'math:sqrt' is a builtin: it is not interpreted" in err
    assert "line 2: 'builtins:str.join' is a builtin" in err
    assert "line 3: 'collections:OrderedDict' is a class" in err
    assert "json:dumps" not in err and "len" not in err
    assert '"math:sqrt": [0, 0]' in out


def test_functions_with_odd_globals(python):
    # A name that is no str, a globals without __name__: the hook passes over them.
    result = script(
        python,
        """
        import types
        def f(): return 1
        odd = types.FunctionType(f.__code__.replace(co_firstlineno=77), {"__name__": 5})
        bare = types.FunctionType(f.__code__.replace(co_firstlineno=78), {})
        install(config("*:*", delay_ns=0))
        print(json.dumps([odd(), bare(), f()]))
        """,
    )
    assert result == [1, 1, 1]
