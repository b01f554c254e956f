# SPDX-License-Identifier: MIT
"""Subinterpreters of a program that is attached to: entered, or left alone with a word."""

from __future__ import annotations

import random
import time

import loader
import pytest
import test_serve
from test_serve import PROGRAM, UNSERVED, looked, spent, task, wait_for, wanted

serve = test_serve.serve  # a fixture

# make(alone=True): with a GIL of its own, if this version has such.
INTERPRETERS = """
try:
    import _interpreters as i
    make = lambda alone=False: i.create("isolated" if alone else "legacy")
    run = i.exec
except ImportError:
    import _xxsubinterpreters as i
    if sys.version_info >= (3, 12):
        make = lambda alone=False: i.create(isolated=alone)
    else:
        make = lambda alone=False: i.create()
    run = i.run_string
"""
# A function of libc that returns 0.
HOOK_IN_C = """
import ctypes
hook = ctypes.cast(ctypes.CDLL(None).sched_yield, ctypes.c_void_p)
assert ctypes.pythonapi.PySys_AddAuditHook(hook, None) == 0
"""
# Makes and ends interpreters all the time, each with much to look at, which report what they have
# worked out.
CHURN = """
made = []
wrong = []
INSIDE = '''
import os
for i in range(1000):
    exec(f"def n{{i}}(): pass")
class Fib:
    def h(self, n):
        return n if n < 2 else self.h(n - 1) + self.h(n - 2)
os.write({}, str(Fib().h(11)).encode())
'''
def churn(alone):
    reader, writer = os.pipe()
    while not stop:
        id = make(alone)
        failure = run(id, INSIDE.format(writer))
        result = os.read(reader, 100)
        if failure is not None or result != b"89":
            wrong.append([repr(failure), repr(result)])
        i.destroy(id)
        made.append(1)
churning = [threading.Thread(target=churn, args=(alone,)) for alone in KINDS]
for one in churning: one.start()
"""


def program(text=INTERPRETERS, base=PROGRAM):
    return base.replace("\nfor line in sys.stdin:", text + "\nfor line in sys.stdin:")


def has_gil(python):
    return not python.name.endswith("t")


def has_guards(python):  # PEP 788
    return python.version >= (3, 15)


def test_those_that_share_the_gil_are_hooked(python, serve):
    if not has_gil(python) and not has_guards(python):
        pytest.skip("there is no GIL to share")
    served, (channel,) = serve(program=program())
    served.ask("globals().update(id=make())")
    served.ask("run(id, 'def h(): pass')")
    table = loader.Table(1)
    ready = channel.begin(table, "__main__:h\n")
    assert ready["warnings"] == [] and [m["name"] for m in ready["matched"]] == ["h"]
    table.set_target(0, 1000)
    table.arm()
    served.ask("run(id, 'h(); h()')")
    assert table.hits() == 2
    channel.send({"op": "detach"})
    assert channel.receive()["op"] == "gone"
    served.ask("run(id, 'h()')")
    assert table.hits() == 2
    if python.version >= (3, 12):
        served.ask("run(id, 'import sys; assert not any(map(sys.monitoring.get_tool, range(6)))')")
    served.ask("i.destroy(id)")


def test_those_with_a_gil_of_their_own_are_left_alone_and_named(python, serve):
    if python.version < (3, 12):
        pytest.skip("all interpreters share one GIL")
    served, (channel,) = serve(program=program())
    served.ask("globals().update(id=make(True), other=make(True))")
    served.ask("run(id, 'def h(): pass')")
    table = loader.Table(1)
    ready = channel.begin(table, "__main__:[hf]\n")
    table.arm()
    if has_guards(python):
        assert ready["warnings"] == []
    else:
        assert [text[:30] for text in ready["warnings"]] == ["2 subinterpreters are left alo"]
    served.ask("run(id, 'h(); h()')")
    served.ask("f()")
    assert table.hits() == (3 if has_guards(python) else 1)
    channel.send({"op": "detach"})
    while channel.receive()["op"] != "gone":
        pass
    served.ask("run(id, 'h()')")
    assert table.hits() == (3 if has_guards(python) else 1)
    served.ask("[i.destroy(id), i.destroy(other)]")


def test_one_with_audit_hooks_is_left_alone(python, serve):
    """It would be told of the callback, and run its code on our thread."""
    if python.version < (3, 12) or has_guards(python) or not has_gil(python):
        pytest.skip("none is told of, or it is no matter")
    served, (channel,) = serve(program=program())
    served.ask("globals().update(id=make())")
    served.ask("run(id, 'import sys; told = []; sys.addaudithook(lambda *a: told.append(a))')")
    ready = channel.begin(loader.Table(1), "__main__:f\n")
    assert [text[:30] for text in ready["warnings"]] == ["1 subinterpreter is left alone"]
    served.ask("""run(id, 'assert not [a for a in told if "monitoring" in a[0]]')""")
    channel.send({"op": "detach"})
    assert channel.receive()["op"] == "gone"
    served.ask("i.destroy(id)")


def test_one_with_audit_hooks_in_c_is_left_alone(python, serve):
    """They are told of what happens in all interpreters."""
    if python.version < (3, 12) or has_guards(python) or not has_gil(python):
        pytest.skip("none is told of, or it is no matter")
    served, (channel,) = serve(program=program(INTERPRETERS + HOOK_IN_C))
    served.ask("globals().update(id=make())")
    ready = channel.begin(loader.Table(1), "__main__:f\n")
    assert [text[:30] for text in ready["warnings"]] == ["1 subinterpreter is left alone"]
    served.ask("i.destroy(id)")


def waits(served, thread):
    """How often a thread of the program has waited for something."""
    lines = (task(served, thread) / "status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("voluntary_ctxt"))


def test_a_look_into_one_leaves_the_program_its_turns(python, serve):
    if not has_gil(python):
        pytest.skip("there is no GIL to share")
    served, (channel,) = serve(program=program(base=UNSERVED))
    served.ask("globals().update(id=make())")
    served.ask("""run(id, 'for k in range(30000): exec(f"def n{k}(): pass")')""")
    served.ask("server.start()")
    served.ask("start_loop()")
    channel.begin(loader.Table(1), "__main__:n*\n", look="later")
    before = spent(served, "server"), wanted(served, "looping")
    channel.send({"op": "look"})
    names, _ = looked(channel)
    after = spent(served, "server"), wanted(served, "looping")
    assert sum(name[0] == "n" for name in names) == len(set(names)) == 30000
    ours, its = (end - begin for begin, end in zip(before, after))
    assert its > ours / 5, (ours, its)
    # And it gives way to the end.
    channel.send({"op": "look"})
    channel.send({"op": "detach"})
    while (message := channel.receive())["op"] != "gone":
        assert message["op"] in ("matched", "looked")
    served.ask("globals().update(stop=True)")
    served.ask("i.destroy(id)")


@pytest.mark.parametrize("looks", ["now", "later"])
def test_a_look_into_one_with_many_functions_comes_to_its_end(python, serve, looks):
    """Each visit goes further than those before, which it has to pass over, and waits once after."""
    if not has_gil(python):
        pytest.skip("there is no GIL to share")
    many = 100000
    served, (channel,) = serve(program=program(base=UNSERVED))
    served.ask("globals().update(id=make())")
    served.ask(f"""run(id, 'for k in range({many}): exec(f"def n{{k}}(): pass")')""")
    served.ask("server.start()")
    before = waits(served, "server")
    message = channel.begin(loader.Table(1), "__main__:n*\n", look=looks)
    assert message["warnings"] == []
    if looks == "now" and not has_guards(python):  # there it waits after each ms
        assert waits(served, "server") - before < 50
    if looks == "later":
        channel.send({"op": "look"})
    names = [one["name"] for one in message["matched"]]
    while len(names) < many:
        names += [one["name"] for one in channel.receive()["matched"]]
    assert len(set(names)) == many
    served.ask("i.destroy(id)")


@pytest.mark.parametrize("alone", [False, True])
def test_interpreters_that_begin_and_end_all_the_time(python, serve, alone):
    if alone and python.version < (3, 12):
        pytest.skip("all interpreters share one GIL")
    sessions = 60
    text = INTERPRETERS + CHURN.replace("KINDS", repr([alone]))
    served, channels = serve(sessions, program=program(text))
    rng = random.Random(11)
    table = loader.Table(1)
    table.set_target(0, 1000)
    table.arm()
    made = 0
    for number, channel in enumerate(channels):
        before = table.hits()
        looks = "later" if number % 4 < 2 else "now"
        ready = channel.begin(table, "__main__:*\n" if number % 2 else "__main__:Fib.h\n", look=looks)
        assert ready["op"] == "ready", ready
        if looks == "later":
            channel.send({"op": "look"})
        time.sleep(rng.uniform(0, 0.03))
        if number % 2:
            served.ask("f()")
            wait_for(lambda: table.hits() > before)
        channel.send({"op": "detach"})
        while (message := channel.receive())["op"] != "gone":
            assert message["op"] in ("matched", "looked"), message
        channel.close()
        made, past = served.ask("len(made)"), made
        if number % 10 == 0:
            wait_for(lambda: served.ask("len(made)") > past)  # noqa: B023
    served.ask("globals().update(stop=True)")
    served.ask("[one.join() for one in churning]")
    assert served.ask("wrong") == []
    assert served.ask("len(made)") > 5
