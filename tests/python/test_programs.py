# SPDX-License-Identifier: MIT
"""The hook in programs that do unusual things: they behave as without it."""

import pytest
from test_delays import script


def test_threads_and_running_frames(python):
    result = script(
        python,
        """
        import threading
        def f(): pass
        def warm(): pass
        go = False
        def loop():
            while not go:
                warm()
            for _ in range(10000):
                f()
        threads = [threading.Thread(target=loop) for _ in range(3)]
        for thread in threads: thread.start()
        time.sleep(0.1)
        install(config("__main__:f", delay_ns=100))
        threads += [threading.Thread(target=loop)]
        threads[-1].start()
        time.sleep(0.1)
        go = True
        for thread in threads: thread.join()
        print(json.dumps(counts()["__main__:f"]))
        """,
    )
    assert result == [40000, 40000]


def test_generators_and_coroutines_count_once(python):
    result = script(
        python,
        """
        import asyncio
        def generator():
            for value in range(5):
                got = yield value
        async def coroutine():
            for _ in range(5):
                await asyncio.sleep(0)
            return 7
        async def agenerator():
            for value in range(5):
                yield value
        async def main():
            a = await coroutine()
            b = [value async for value in agenerator()]
            return a, sum(b)
        install(config("__main__:generator", "__main__:coroutine", "__main__:agenerator",
                       delay_ns=1000))
        values = [list(generator()), list(generator()), asyncio.run(main())]
        running = generator()
        next(running)
        running.send(1)
        running.close()
        generator()  # never started
        thrown = generator()
        try:
            thrown.throw(KeyError)
        except KeyError:
            values.append("thrown")
        print(json.dumps([values, counts()]))
        """,
    )
    values, counts = result
    assert values == [[0, 1, 2, 3, 4], [0, 1, 2, 3, 4], [7, 10], "thrown"]
    assert counts == {
        "__main__:generator": [3, 3],
        "__main__:coroutine": [1, 1],
        "__main__:agenerator": [1, 1],
    }


def test_recursion_counts_each_call_and_ends_as_before(python):
    result = script(
        python,
        """
        def f(n): return n and f(n - 1)
        def endless(): return endless()
        install(config("__main__:f", "__main__:endless", delay_ns=100))
        f(500)
        try:
            endless()
        except RecursionError as error:
            message = str(error)
        print(json.dumps([counts()["__main__:f"], message[:32]]))
        """,
    )
    assert result[0][0] == 501
    assert result[1] == "maximum recursion depth exceeded"


def test_deep_recursion_survives(python):
    # 3.10 has no room for it on the C stack, with or without a hook.
    if python.version == (3, 10):
        depth = 5000
    else:
        depth = 60000
    result = script(
        python,
        f"""
        import threading
        sys.setrecursionlimit(200000)
        def f(n): return 0 if n == 0 else 1 + f(n - 1)
        install(config("__main__:f", delay_ns=0))
        deep = f({depth})
        first = counts()["__main__:f"][0]
        f(10)
        print(json.dumps([deep, first, counts()["__main__:f"][0] - first]))
        """,
    )
    assert result[0] == (5000 if python.version == (3, 10) else 60000)
    assert result[1] >= 5001 and result[2] == 11


def test_reload_and_code_made_at_run_time(python):
    python.file("loaded.py", "def f(): return 1\n")
    result = script(
        python,
        """
        import importlib
        install(config("loaded:f", "made:*", delay_ns=1000))
        import loaded
        loaded.f()
        loaded = importlib.reload(loaded)
        loaded.f()
        for _ in range(50):
            space = {"__name__": "made"}
            exec("def made(): pass", space)
            space["made"]()
        print(json.dumps(list(counts().values())))
        """,
        PYTHONPATH=f"{python.package}:{python.folder}",
    )
    assert result == [[2, 2], [100, 100]]  # the module code of the fifty counts too


def test_exceptions_tracebacks_and_tracing_are_the_same(python):
    result = script(
        python,
        """
        import traceback
        def f(n):
            if n == 0:
                raise KeyError("x")
            return f(n - 1)
        def events():
            seen = []
            sys.settrace(lambda frame, event, arg: seen.append((frame.f_code.co_name, event)))
            try:
                f(2)
            except KeyError:
                text = traceback.format_exc()
            sys.settrace(None)
            sys.setprofile(lambda frame, event, arg: seen.append((frame.f_code.co_name, event)))
            try:
                f(2)
            except KeyError:
                pass
            sys.setprofile(None)
            return seen, text
        events()  # reads source lines into linecache
        plain = events()
        install(config("*:*", delay_ns=1000))
        hooked = events()
        events()
        print(json.dumps([plain == hooked, len(plain[0])]))
        """,
    )
    assert result[0] is True and result[1] > 5


def test_error_in_flight_is_kept(python):
    result = script(
        python,
        """
        class Manager:
            def __enter__(self): return self
            def __exit__(self, kind, error, traceback): return kind is ValueError
        def fail(): raise ValueError("kept")
        install(config("*:*", delay_ns=0))
        with Manager():
            fail()
        try:
            fail()
        except ValueError as error:
            print(json.dumps([str(error), error.__context__]))
        """,
    )
    assert result == ["kept", None]


def test_other_monitoring_tools(python):
    if python.version < (3, 12):
        result = script(
            python,
            """
            def f(): pass
            seen = []
            sys.setprofile(lambda frame, event, arg: seen.append(event))
            install(config("__main__:f", delay_ns=1000))
            f()
            sys.setprofile(None)
            print(json.dumps([counts()["__main__:f"], seen.count("call") > 0]))
            """,
        )
        assert result == [[1, 1], True]
        return
    result = script(
        python,
        """
        def f(): pass
        monitoring = sys.monitoring
        seen = []
        taken = [id for id in range(6) if monitoring.get_tool(id) is None]
        for id in taken[:-1] if taken[-1] != 5 else taken[1:]:
            monitoring.use_tool_id(id, "other")
        other = next(id for id in range(6) if monitoring.get_tool(id) == "other")
        monitoring.register_callback(other, monitoring.events.PY_START,
                                     lambda code, offset: seen.append(code.co_name))
        monitoring.set_events(other, monitoring.events.PY_START)
        install(config("__main__:f", delay_ns=1000))
        f()
        mine = [id for id in range(6) if monitoring.get_tool(id) == "speed_bump"]
        uninstall()
        gone = [id for id in range(6) if monitoring.get_tool(id) == "speed_bump"]
        f()
        free = next(id for id in range(6) if monitoring.get_tool(id) is None)
        monitoring.use_tool_id(free, "last")
        try:
            install(config("__main__:f", delay_ns=1000))
        except RuntimeError as error:
            message = str(error)
        print(json.dumps([mine, gone, seen.count("f"), message, speed_bump.is_installed()]))
        """,
    )
    mine, gone, seen, message, installed = result
    assert len(mine) == 1 and gone == [] and seen == 2
    assert "tool ids" in message and installed is False


def test_fork_goes_on_counting(python):
    result = script(
        python,
        """
        import os, threading
        def f(): pass
        install(config("__main__:f every=2", delay_ns=100000))
        f()
        def child():
            begin = time.perf_counter()
            for _ in range(5):
                f()
            os._exit(0 if time.perf_counter() - begin > 0.0002 else 1)
        states = []
        pid = os.fork()
        if pid == 0:
            child()
        states.append(os.waitpid(pid, 0)[1])
        def fork_in_thread():
            pid = os.fork()
            if pid == 0:
                child()
            states.append(os.waitpid(pid, 0)[1])
        thread = threading.Thread(target=fork_in_thread)
        thread.start()
        thread.join()
        f()
        print(json.dumps([states, counts()]))
        """,
    )
    # The turns and the counts are those of all together.
    assert result == [[0, 0], {"__main__:f every=2": [12, 6]}]


def test_many_children(python):
    result = script(
        python,
        """
        import os
        def f(): pass
        install(config("__main__:f", delay_ns=100))
        f()
        for _ in range(300):
            pid = os.fork()
            if pid == 0:
                f()
                os._exit(0)
            os.waitpid(pid, 0)
        print(json.dumps(counts()))
        """,
    )
    assert result == {"__main__:f": [301, 301]}


def test_shutdown_while_delayed(python):
    for end in ("", "os._exit(0)", "sys.exit(0)"):
        path = python.file(
            "program.py",
            f"""
            import os, sys, threading, time
            import speed_bump
            def f(): pass
            def loop():
                while True:
                    f()
            def at_end(): f()
            import atexit
            atexit.register(at_end)
            speed_bump.slow("__main__:f", delay="20ms").__enter__()
            for _ in range(4):
                threading.Thread(target=loop, daemon=True).start()
            time.sleep(0.1)
            print("done", flush=True)
            {end}
            """,
        )
        out, err = python.run(path)
        assert out == "done\n" and err == ""


INSIDE = """
import os, sys
def f(): pass
f()
import speed_bump
from speed_bump import Config, install
from speed_bump._patterns import parse_pattern
config = Config(True, (parse_pattern("__main__:f", 1),), 1000, 1, 0, None)
states = [install(config), speed_bump.is_installed()]
f(), f()
states += [speed_bump.stats()["__main__:f"].calls]
speed_bump.uninstall()
f()
states += [speed_bump.is_installed()]
install(config)
f()
os.write(WRITER, repr(states).encode())
"""


def in_subinterpreter(python, source, more=""):
    """What `source` writes to WRITER in a subinterpreter of a program that slows its f, and the counts after
    a call of it before and one behind."""
    inside = python.file("inside.py", source)
    failure, written, after = script(
        python,
        f"""
        try:
            import _interpreters as interpreters
            run = interpreters.exec
        except ImportError:
            import _xxsubinterpreters as interpreters
            run = interpreters.run_string
        import os
        def f(): pass
        install(config("__main__:f", delay_ns=1000))
        f()
        id = interpreters.create()
        reader, writer = os.pipe()
        prelude = f"import sys; sys.path[:0] = {{sys.path!r}}; WRITER = {{writer}}{more}"
        try:
            failure = run(id, prelude + open({inside!r}).read())
        except Exception as error:
            failure = str(error)
        os.close(writer)
        written = os.read(reader, 1000).decode()
        interpreters.destroy(id)
        f()
        print(json.dumps([repr(failure), written, counts()]))
        """,
    )
    if "does not support loading in subinterpreters" in failure:
        pytest.skip("this core was built with pybind11 2, which subinterpreters refuse")
    assert failure == "None"
    return written, after


def test_subinterpreters(python):
    if python.version < (3, 12):
        result = script(
            python,
            """
            import _xxsubinterpreters as interpreters
            def f(): pass
            install(config("__main__:f", delay_ns=1000))
            id = interpreters.create()
            try:
                interpreters.run_string(id, f"import sys; sys.path[:0] = {sys.path!r}\\n"
                                            "import speed_bump")
                message = "imported"
            except interpreters.RunFailedError as error:
                message = str(error)
            interpreters.destroy(id)
            f()
            print(json.dumps([message, counts()]))
            """,
        )
        # A core made with pybind11 2 is shared between the interpreters and never made anew.
        assert "from Python 3.12 on" in result[0] or result[0] == "imported"
        assert result[1] == {"__main__:f": [1, 1]}
        return
    states, after = in_subinterpreter(python, INSIDE)
    assert states == "[True, True, 3, False]"
    assert after == {"__main__:f": [5, 5]}


# What one with a GIL of its own is told that asks for what is the others' too.
ASIDE = """
import os, sys
import speed_bump
from speed_bump import Config, _core, install
from speed_bump._patterns import parse_pattern
config = Config(True, (parse_pattern("__main__:f", 1),), 1000, 1, 0, None)
told = []
def ask(what):
    try:
        what()
    except RuntimeError as error:
        told.append("GIL of its own" in str(error))
    else:
        told.append(None)
if JOINS:
    ask(lambda: install(config))
for what in (_core.uninstall, lambda: _core.install([], []), speed_bump.slow("__main__:f").__enter__,
             lambda: speed_bump.slow("__main__:g").__enter__(), lambda: _core.set_delay(0, 0)):
    ask(what)
os.write(WRITER, repr(told).encode())
"""


@pytest.mark.parametrize("joins", [False, True])
def test_a_subinterpreter_with_a_gil_of_its_own_changes_nothing(python, joins):
    """The table would be gone under the threads of the main one, for which nothing waits."""
    if not (3, 12) <= python.version < (3, 15) or python.name.endswith("t"):
        pytest.skip("none has its own, or its threads can be waited for")
    told, after = in_subinterpreter(python, ASIDE, f"; JOINS = {joins}")
    assert told == str([None] * joins + [True] * 5)
    assert after == {"__main__:f": [2, 2]}


def test_install_cycles_leave_nothing(python):
    result = script(
        python,
        """
        import resource
        def f(): pass
        def cycle(times):
            for _ in range(times):
                install(config("__main__:f", delay_ns=100))
                f()
                uninstall()
                f()
        def rss():
            with open("/proc/self/statm") as statm:
                return int(statm.read().split()[1]) * 4
        def maps():
            with open("/proc/self/maps") as maps:
                return len(maps.readlines())
        cycle(50)
        before = rss(), maps()
        cycle(300)
        print(json.dumps([before, [rss(), maps()]]))
        """,
    )
    before, after = result
    assert after[0] - before[0] < 1024 and after[1] - before[1] <= 2


def test_free_threaded_delays_in_parallel(python):
    if not python.name.endswith("t"):
        import pytest

        pytest.skip("not a free-threaded build")
    result = script(
        python,
        """
        import threading
        def f(): pass
        def g(): pass
        install(config("__main__:f delay=9s", "__main__:g"))
        delayed = threading.Thread(target=f)
        delayed.start()
        end = time.monotonic() + 30
        while counts()["__main__:f delay=9s"][0] == 0 and time.monotonic() < end:
            time.sleep(0.001)
        g()
        beside = counts()
        speed_bump.set_delay("__main__:f", 0)
        delayed.join()
        print(json.dumps([sys._is_gil_enabled(), beside, counts()]))
        """,
    )
    gil, beside, after = result
    assert gil is False
    assert beside == {"__main__:f delay=9s": [1, 0], "__main__:g": [1, 1]}
    assert after == {"__main__:f delay=9s": [1, 1], "__main__:g": [1, 1]}
