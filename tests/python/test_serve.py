# SPDX-License-Identifier: MIT
"""A session from outside: the table, the socket, and the loader's death."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import pathlib
import random
import shutil
import signal
import subprocess
import sys
import threading
import time

import loader
import pytest

# What all programs begin with.
CORE = """
import importlib.machinery, importlib.util, json, os, sys, threading, time
path = sys.argv[1]
spec = importlib.util.spec_from_file_location(
    "_core", path, loader=importlib.machinery.ExtensionFileLoader("_core", path))
core = importlib.util.module_from_spec(spec)
spec.loader.exec_module(core)

def f(): pass
"""
# Serves the channels that its arguments name, one after the other, and calls f meanwhile. Each
# line of input is evaluated, the value printed.
PROGRAM = f"""{CORE}
def g(): pass
def outer():
    def inner(): pass
    return inner

def serve():
    for fd in sys.argv[2:]:
        core.serve(int(fd))
server = threading.Thread(target=serve, daemon=True)
server.start()

def took(function):
    begin = time.perf_counter()
    function()
    return time.perf_counter() - begin

stop = False
def loop():
    while not stop:
        f()
def start_loop():
    global looping
    looping = threading.Thread(target=loop, daemon=True)
    looping.start()

def start_child():
    # Calls f until there is a file, and once more; notes how long after that it was done, and whether
    # its hook is gone.
    pid = os.fork()
    if pid:
        return pid
    end, is_over = time.monotonic() + 60, False
    while not is_over:
        is_over = os.path.exists("over")
        f()
        f()
        f()
        time.sleep(0.01)
        if time.monotonic() > end:
            os._exit(2)
    with open(f"late.{{os.getpid()}}", "w") as late:
        late.write(str(time.time_ns() - os.stat("over").st_mtime_ns))
    tools = getattr(sys, "monitoring", None)
    hooked = tools and any(tools.get_tool(i) == "speed_bump" for i in range(6))
    os._exit(1 if hooked else 0)

for line in sys.stdin:
    try:
        value = eval(line)
    except Exception as error:
        value = repr(error)
    print(json.dumps(value), flush=True)
"""
# Serves when it is told to: it waits ten seconds for a session to begin, and some have much to make first.
UNSERVED = PROGRAM.replace("\nserver.start()", "")
# Begins to serve when its atexit functions are called already, and ends slowly.
ENDING = f"""{CORE}
import atexit

is_ending = threading.Event()
def serve():
    is_ending.wait()
    core.serve(int(sys.argv[2]))
threading.Thread(target=serve, daemon=True).start()

@atexit.register
def at_exit():
    is_ending.set()
    print("at exit", flush=True)
    sys.stdin.readline()

class Slow:
    def __del__(self, write=os.write, read=os.read, sleep=time.sleep):
        write(1, b"ends\\n")
        read(0, 9)  # until the loader has done what it is to do just now
        sleep(0.2)
sys.slow = Slow()
"""


class Served:
    def __init__(self, python, channels, program):
        core = next((pathlib.Path(python.package) / "speed_bump").glob("_core*.so"))
        path = python.file("served.py", program)
        numbers = [channel.other.fileno() for channel in channels]
        self.process = subprocess.Popen(
            [python.command, path, str(core), *map(str, numbers)],
            env=python.environment({"PYTHONPATH": ""}),
            cwd=python.folder,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            pass_fds=numbers,
            text=True,
        )
        for channel in channels:
            channel.other.close()

    def tell(self, line):
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()

    def hear(self):
        return json.loads(self.process.stdout.readline())

    def ask(self, line):
        self.tell(line)
        return self.hear()


@pytest.fixture
def serve(python):
    started = []

    def start(count=1, program=PROGRAM):
        channels = [loader.Channel() for _ in range(count)]
        served = Served(python, channels, program)
        started.append(served)
        return served, channels

    yield start
    for served in started:
        if served.process.poll() is None:
            served.process.stdin.close()
            try:
                served.process.wait(timeout=20)
            except subprocess.TimeoutExpired:
                served.process.kill()
                pytest.fail("the served program hung at its end")
        assert served.process.returncode in (0, -signal.SIGKILL)


TEXT = "__main__:f\n__main__:outer.<locals>.inner\n!*:g\n+/bin/ls:main\n"


def wait_for(condition, timeout=10.0):
    end = time.monotonic() + timeout
    while not condition():
        assert time.monotonic() < end, "did not happen in time"
        time.sleep(0.002)


def test_session_from_begin_to_gone(python, serve):
    served, (channel,) = serve()
    table = loader.Table(4)
    table.set_target(0, 200_000_000)
    table.set_target(1, 0)
    ready = channel.begin(table, TEXT, lines=[0, 1])
    assert ready["op"] == "ready" and ready["inherited"] is False and ready["warnings"] == []
    assert ready["version"].startswith(".".join(map(str, python.version)))
    assert 0 <= ready["overhead_ns"] < 2000
    found = {(entry["line"], entry["module"], entry["name"]) for entry in ready["matched"]}
    assert found == {(0, "__main__", "f"), (1, "__main__", "outer.<locals>.inner")}
    assert ready["matched"][0]["file"].endswith("served.py")

    assert served.ask("took(f)") < 0.2 and table.hits() == 0  # not armed
    table.arm()
    assert served.ask("took(f)") >= 0.2
    served.ask("outer()()")
    hits, delays, requested, measured = table.counts(0)[served.ask("os.getpid()")]
    assert (hits, delays, requested) == (1, 1, 200_000_000) and measured >= requested
    assert table.hits(1) == 1

    channel.send({"op": "detach"})
    assert channel.receive() == {"op": "gone", "reason": "detach"}
    assert channel.receive() == {}
    assert served.ask("took(f)") < 0.2 and table.hits() == 1


def test_functions_found_later_are_told(serve):
    served, (channel,) = serve()
    table = loader.Table(1)
    assert channel.begin(table, "late:*\n")["matched"] == []
    table.arm()
    served.ask("exec('def new(): pass\\nnew()', {'__name__': 'late'})")
    names = []
    while len(names) < 2:
        message = channel.receive()
        assert message["op"] == "matched"
        names += [entry["name"] for entry in message["matched"]]
    assert sorted(names) == ["<module>", "new"]


def looked(channel):
    """The names of what a look finds, and the modules that it has seen."""
    names, modules = [], []
    while True:
        message = channel.receive()
        if message["op"] == "matched":
            names += [entry["name"] for entry in message["matched"]]
            continue
        assert message["op"] == "looked", message
        modules += message["modules"]
        if not message["more"]:
            return names, modules


def test_functions_are_looked_at_once_the_hooks_are_in(serve):
    served, (channel,) = serve()
    table = loader.Table(1)
    assert channel.begin(table, "__main__:*\n", look="later")["matched"] == []
    table.arm()
    before = [served.ask("f()")]
    assert table.hits() >= 1  # and what called it
    while "f" not in before:
        before += [one["name"] for one in channel.receive()["matched"]]
    channel.send({"op": "look"})
    names, modules = looked(channel)
    assert {"g", "outer", "outer.<locals>.inner"} <= set(names) and "f" not in names
    assert len(modules) == len(set(modules)) > 1


def test_modules_that_other_processes_told_of_are_not_looked_at(serve):
    (_, (first,)), (second, (other,)) = serve(), serve()
    first.begin(loader.Table(1), "*:*\n", look="later")
    first.send({"op": "look"})
    names, modules = looked(first)
    assert "g" in names
    # The second has one module more, and all others are the same files.
    table = loader.Table(1)
    second.ask("exec('def more(): pass', vars(sys.modules.setdefault('m', type(sys)('m'))))")
    second.ask("vars(sys.modules['m']).update(__file__='/srv/m.py')")
    other.begin(table, "*:*\n", look="later")
    known = loader.text_file(modules)
    other.send({"op": "look"}, known)
    names, more = looked(other)
    assert "more" in names and "g" not in names, names
    assert len(more) == 1 and more[0] not in modules
    table.arm()
    second.ask("g()")
    while "g" not in [one["name"] for one in other.receive()["matched"]]:
        pass
    # With nothing new it is over at once; what the reply to g() has called may be told of meanwhile.
    known = loader.text_file(modules + more)
    other.send({"op": "look"}, known)
    names, more = looked(other)
    assert more == [] and "outer" not in names, (names, more)


def task(served, thread):
    """The folder of a thread of the program."""
    return pathlib.Path(f"/proc/{served.process.pid}/task/{served.ask(thread + '.native_id')}")


def spent(served, thread):
    """Its CPU time (ns)."""
    return int((task(served, thread) / "schedstat").read_text().split()[0])


def wanted(served, thread):
    """For how long it has had a CPU, or waited for one (ns)."""
    return sum(map(int, (task(served, thread) / "schedstat").read_text().split()[:2]))


def test_a_look_leaves_the_program_its_turns(serve):
    served, (channel,) = serve(program=UNSERVED)
    served.ask("exec(''.join(f'def n{i}(): pass\\n' for i in range(30000)), globals())")
    served.ask("server.start()")
    served.ask("start_loop()")
    channel.begin(loader.Table(1), "__main__:*\n", look="later")
    before = spent(served, "server"), wanted(served, "looping")
    channel.send({"op": "look"})
    names, _ = looked(channel)
    after = spent(served, "server"), wanted(served, "looping")
    assert len(names) > 30000
    # It gives the interpreter's lock up for as long as it has held it; to give it up for no time was
    # to keep it.
    ours, its = (end - begin for begin, end in zip(before, after))
    assert its > ours / 5, (ours, its)


@contextlib.contextmanager
def stopped(served):
    """The program stands still inside."""
    served.process.send_signal(signal.SIGSTOP)
    os.waitid(os.P_PID, served.process.pid, os.WSTOPPED | os.WNOWAIT)
    try:
        yield
    finally:
        served.process.send_signal(signal.SIGCONT)


def test_a_look_gives_way_to_the_end_and_to_groups(serve):
    served, (channel,) = serve(program=UNSERVED)
    served.ask("exec(''.join(f'def n{i}(): pass\\n' for i in range(30000)), globals())")
    served.ask("server.start()")
    table = loader.Table(2)
    channel.begin(table, "__main__:*\n", lines=[0], look="later")
    with stopped(served):  # or the look may be over before the groups are sent
        channel.send({"op": "look"})
        channel.groups(1, [0], [["__main__", False, "f", False, 1]])
    messages = []
    while not messages or messages[-1]["op"] != "looked" or messages[-1]["more"]:
        messages.append(channel.receive())
    assert [one for one in messages if one["op"] == "grouped"] != []
    assert sum(len(one["matched"]) for one in messages if one["op"] == "matched") > 30000
    channel.send({"op": "look"})
    channel.send({"op": "detach"})
    while (message := channel.receive())["op"] != "gone":
        assert message["op"] in ("matched", "looked")


def test_functions_are_told_apart_while_hooks_are_in(serve):
    served, (channel,) = serve()
    table = loader.Table(6)
    ready = channel.begin(table, "__main__:*\n__main__:took\n", lines=[0, 1])
    while "server" in ready:
        ready = channel.receive()
    table.arm()
    served.ask("(f(), g(), outer()())")
    assert table.hits(0) >= 4 and sum(table.hits(i) for i in range(2, 6)) == 0

    def grouped(number):
        before = [table.hits(i) for i in range(6)]
        while (message := channel.receive())["op"] == "matched":
            pass
        assert message["op"] == "grouped" and message["number"] == number, message
        assert "reason" not in message and message["held_ns"] < 10**9
        served.ask("f()")  # what is grouped otherwise than the table says counts nothing
        assert [table.hits(i) for i in range(6)] == before
        table.arm(grouping=number)
        return [table.hits(i) for i in range(6)]

    channel.groups(1, [0], [["__main__", False, "*", True, 2], ["__main__", False, "f", False, 3],
                            ["__main__", False, "outer.*", True, None]])
    before = grouped(1)
    table.set_target(3, 200_000_000)
    assert served.ask("took(f)") >= 0.2  # took() is of a line that is not taken apart
    served.ask("(f(), g(), outer()())")
    after = [table.hits(i) - before[i] for i in range(6)]
    assert after[0] == 0 and after[1] == 1 and after[3] == 2, after
    assert after[2] == 4, after  # g, outer, and the code of the two questions

    # What is not in a group is not counted; a function that is new is told of as of its line.
    table.set_target(3, 0)
    channel.groups(2, [0], [["__main__", False, "outer.<locals>.inner", False, 5]])
    before = grouped(2)
    served.ask("exec('def late(): pass\\nlate()', {'__name__': '__main__'})")
    served.ask("(f(), g(), outer()())")
    after = [table.hits(i) - before[i] for i in range(6)]
    assert after == [0, 0, 0, 0, 0, 1], after
    names = []
    while "late" not in names:
        for entry in channel.receive()["matched"]:
            assert entry["line"] == 0
            names.append(entry["name"])
    assert "f" not in names

    # Groups of no line: each line is one target again.
    channel.groups(3, [], [])
    before = grouped(3)
    served.ask("(f(), g(), outer()())")
    after = [table.hits(i) - before[i] for i in range(6)]
    assert after[0] == 5 and sum(after) == 5, after


def test_groups_that_cannot_be_are_refused_and_nothing_changes(serve):
    served, (channel,) = serve()
    table = loader.Table(2)
    channel.begin(table, "__main__:f\n", lines=[0])
    table.arm()
    for lines, target in (([0], 2), ([2], 1)):
        channel.groups(1, lines, [["__main__", False, "f", False, target]])
        answer = channel.receive()
        assert answer["op"] == "grouped" and "that there is not" in answer["reason"], answer
    served.ask("f()")
    assert table.hits(0) == 1 and table.hits(1) == 0


def test_groups_change_under_load_and_no_call_is_lost(serve):
    served, (channel,) = serve()
    table = loader.Table(8)
    channel.begin(table, "__main__:f\n", lines=[0])
    table.arm()
    served.ask("[start_loop(), start_loop()]")
    for number in range(1, 81):
        target = number % 8
        groups = [["__main__", False, f"n{i}", False, 1] for i in range(300)]
        channel.groups(number, [0], [*groups, ["__main__", False, "f", False, target]])
        assert channel.receive()["number"] == number
        table.arm(grouping=number)
        hits = table.hits(target)
        wait_for(lambda: table.hits(target) > hits)
    served.ask("exec('global stop; stop = True')")
    served.ask("[one.join() for one in threading.enumerate()"
               " if one not in (threading.main_thread(), server)]")
    hits = [table.hits(i) for i in range(8)]
    served.ask("[f() for i in range(1000)]")
    after = [table.hits(i) - hits[i] for i in range(8)]
    assert after == [1000, 0, 0, 0, 0, 0, 0, 0], after


# Of a child that serves the second session, and calls f meanwhile.
CHILD = """
import mmap
calls = mmap.mmap(-1, 8)
def called():
    return int.from_bytes(calls[:], "little")
def call():
    f()
    calls[:] = (called() + 1).to_bytes(8, "little")
    time.sleep(0.001)
def serve_in_child(fd, calls_before):
    pid = os.fork()
    if pid:
        return pid
    server = threading.Thread(target=core.serve, args=(fd,))
    call()
    while calls_before and not os.path.exists("over"):
        call()
    server.start()
    while server.is_alive():
        call() if calls_before else time.sleep(0.001)
    os._exit(0)
"""
WITH_CHILD = PROGRAM.replace("sys.argv[2:]:", "sys.argv[2:3]:").replace(
    "\nfor line in sys.stdin:", CHILD + "\nfor line in sys.stdin:")


def test_child_is_told_of_the_groups_that_there_are(python, serve):
    served, (first, second) = serve(2, WITH_CHILD)
    table = loader.Table(3)
    first.begin(table, "__main__:f\n", lines=[0])
    table.arm()
    first.groups(1, [0], [["__main__", False, "f", False, 1]])
    assert first.receive()["number"] == 1
    table.arm(grouping=1)
    child = served.ask("serve_in_child(int(sys.argv[3]), True)")
    fd = loader.text_file({"lines": [0], "groups": [["__main__", False, "f", False, 2]]})
    wait_for(lambda: table.counts(1).get(child, (0,))[0] > 0)
    (python.folder / "over").touch()
    # Nobody can tell it of other groups: what it counts by its own would be another group's.
    table.arm(grouping=2)
    hits, called = table.hits(1), served.ask("called()")
    wait_for(lambda: served.ask("called()") > called + 10)
    assert table.hits(1) - hits in range(2) and table.hits(2) == 0
    second.send({"op": "begin", "session": "s1", "lines": [0], "targets": "__main__:f\n",
                 "groups": 2}, table.settings_fd, table.counters_fd, fd)
    ready = second.receive()
    assert ready["op"] == "ready" and ready["inherited"] is True, ready
    wait_for(lambda: table.counts(2).get(child, (0,))[0] > 0)
    second.groups(3, [0], [["__main__", False, "f", False, 2]])
    assert second.receive()["number"] == 3
    second.send({"op": "detach"})
    assert second.receive()["op"] == "gone"
    assert served.ask(f"os.waitpid({child}, 0)[1]") == 0
    os.close(fd)


def test_many_matches_come_in_packets(serve):
    served, (channel,) = serve()
    served.ask("exec('for i in range(500): exec(f\"def n{i}(): pass\", globals())')")
    table = loader.Table(1)
    message = channel.begin(table, "__main__:n[0-9]*\n")
    names = [entry["name"] for entry in message["matched"]]
    while len(names) < 500:
        names += [entry["name"] for entry in channel.receive()["matched"]]
    assert sorted(names) == sorted(f"n{i}" for i in range(500))


def test_table_acts_at_once_also_on_a_delay_in_flight(serve):
    served, (channel,) = serve()
    table = loader.Table(1)
    table.set_target(0, 9_000_000_000)
    channel.begin(table, "__main__:f\n")
    ended = 0
    for end in (
        lambda: table.arm(False),
        lambda: table.set_target(0, 1_000_000),
        lambda: table.set_target(0, 0),
        lambda: table.set_target(0, 9_000_000_000, enabled=0),
    ):
        table.set_target(0, 9_000_000_000)
        table.arm()
        hits = table.hits()
        served.tell("took(f)")
        wait_for(lambda: table.hits() > hits)
        time.sleep(0.05)
        end()
        assert 0.04 < served.hear() < 2
        ended += 1
        # What it had spun is counted, whatever it was changed to.
        (counts,) = table.counts(0).values()
        assert counts[1] == ended and counts[3] > 40_000_000 * ended, counts
    table.set_target(0, 200_000_000, every=3)
    assert [served.ask("took(f)") >= 0.2 for _ in range(6)].count(True) == 2
    for settings in (
        {"root_mask": 0}, {"end_ns": 1}, {"start_ns": time.monotonic_ns() + 10**11}
    ):
        table.set_target(0, 200_000_000, **settings)
        assert served.ask("took(f)") < 0.2


def test_roots(serve):
    served, (channel,) = serve()
    table = loader.Table(1)
    channel.begin(table, "__main__:f\n", roots=6)
    table.arm()
    table.set_target(0, 200_000_000, root_mask=1)
    assert served.ask("took(f)") < 0.2
    table.set_target(0, 200_000_000, root_mask=3)
    assert served.ask("took(f)") >= 0.2


def test_hang_up_ends_the_delay_in_flight(serve):
    served, (channel,) = serve()
    table = loader.Table(1)
    table.set_target(0, 9_000_000_000)
    channel.begin(table, "__main__:f\n")
    table.arm()
    served.tell("took(f)")
    wait_for(lambda: table.hits() > 0)
    channel.close()
    assert served.hear() < 2
    served.ask("server.join(5)")
    hits = table.hits()
    assert served.ask("took(f)") < 2 and table.hits() == hits


OWNER = """
import os, sys, time
sys.path.insert(0, sys.argv[1])
import loader
table = loader.Table(1)
table.set_target(0, int(sys.argv[3]))
table.own()
channel = loader.Channel()
import socket
channel.socket.close()
channel.socket = socket.socket(fileno=int(sys.argv[2]))
channel.socket.settimeout(30)
assert channel.begin(table, "__main__:f\\n")["op"] == "ready"
table.arm()
print(table.settings_fd, flush=True)
time.sleep(60)
"""


@pytest.mark.parametrize("delay_ns", [1000, 10_000_000_000])
def test_killed_loader_ends_delays_in_children_too(python, serve, delay_ns):
    served, (channel,) = serve()
    number = channel.socket.fileno()
    owner = subprocess.Popen(
        [sys.executable, "-c", OWNER, os.path.dirname(loader.__file__), str(number),
         str(delay_ns)],
        pass_fds=[number], stdout=subprocess.PIPE, text=True,
    )
    channel.close()
    assert owner.stdout.readline()
    # Children without a socket, and the served program itself; each in a delay or between two.
    children = [served.ask("start_child()") for _ in range(2)]
    served.tell("took(lambda: [f() for _ in range(3)])")
    time.sleep(0.2)
    owner.kill()
    owner.wait()
    (python.folder / "over").touch()
    died = time.monotonic()
    served.hear()
    for child in children:
        assert served.ask(f"os.waitpid({child}, 0)[1]") == 0
    assert time.monotonic() - died < 5
    assert all(int(path.read_text()) < 1e9 for path in python.folder.glob("late.*"))
    assert len(list(python.folder.glob("late.*"))) == 2


def test_program_that_ends_says_so(serve):
    served, (channel,) = serve()
    table = loader.Table(1)
    table.set_target(0, 1000)
    channel.begin(table, "__main__:f\n")
    table.arm()
    served.ask("start_loop()")
    served.process.stdin.close()
    assert served.process.wait(timeout=30) == 0
    assert channel.receive() == {"op": "gone", "reason": "exit"}


def test_session_that_begins_in_a_program_that_ends(serve):
    """Too late to be told of the end; the thread asks for a GIL that nobody gets any more."""
    for step in ("begin", "detach", "close"):
        served, (channel,) = serve(1, ENDING)
        assert served.process.stdout.readline() == "at exit\n"
        table = loader.Table(1)
        if step != "begin":
            assert channel.begin(table, "__main__:f\n")["op"] == "ready"
        served.tell("go on")
        assert served.process.stdout.readline() == "ends\n"
        if step == "begin":
            channel.send({"op": "begin", "session": "s1", "lines": [0], "targets": "__main__:f\n"},
                         table.settings_fd, table.counters_fd)
        elif step == "detach":
            channel.send({"op": "detach"})
        else:
            channel.socket.close()
        served.tell("end")
        assert served.process.wait(timeout=30) == 0, step


def test_forked_child_goes_on_and_can_be_served_again(serve):
    served, (first, second) = serve(2)
    table = loader.Table(1)
    table.set_target(0, 1000)
    first.begin(table, "__main__:f\n")
    table.arm()
    parent = served.ask("os.getpid()")
    served.ask("f()")
    child = served.ask(
        "(lambda pid: pid or ([f() for _ in range(3)], core.serve(int(sys.argv[3])), f(),"
        " os._exit(0)))(os.fork())"
    )
    ready = second.begin(table, "__main__:f\n")
    assert ready["op"] == "ready" and ready["inherited"] is True and ready["pid"] == child
    counts = table.counts(0)
    assert counts[parent][:2] == (1, 1) and counts[child][:2] == (3, 3)
    second.send({"op": "detach"})
    assert second.receive()["op"] == "gone"
    assert served.ask(f"os.waitpid({child}, 0)[1]") == 0
    assert table.counts(0)[child][0] == 3  # the child's last call came after its detach
    served.ask("f()")
    assert table.counts(0)[parent][0] == 2
    assert first.socket is not None
    first.send({"op": "detach"})
    assert first.receive()["op"] == "gone"


@pytest.mark.parametrize("calls_before", [False, True])
def test_child_of_a_session_that_is_over_is_served_by_the_next(python, serve, calls_before):
    """What it inherited is of a loader that is gone, whether a call has taken its hook out or not."""
    served, (first, second) = serve(2, WITH_CHILD)
    tables = [loader.Table(1), loader.Table(1)]
    first.begin(tables[0], "__main__:f\n")
    tables[0].arm()
    child = served.ask(f"serve_in_child(int(sys.argv[3]), {calls_before})")
    wait_for(lambda: tables[0].counts(0).get(child, (0,))[0] > 0)
    first.send({"op": "detach"})
    assert first.receive() == {"op": "gone", "reason": "detach"}
    tables[0].close()
    hits = tables[0].hits()
    (python.folder / "over").touch()
    ready = second.begin(tables[1], "__main__:f\n", session="s2")
    assert ready["op"] == "ready" and ready["inherited"] is False, ready
    assert [one["name"] for one in ready["matched"]] == ["f"]
    tables[1].arm()
    if calls_before:
        wait_for(lambda: tables[1].counts(0).get(child, (0,))[0] > 10)
    second.send({"op": "detach"})
    assert second.receive()["op"] == "gone"
    assert served.ask(f"os.waitpid({child}, 0)[1]") == 0
    assert tables[0].hits() - hits in range(2)  # one call may have begun before the table closed


def test_closed_table_removes_hooks_without_a_socket(python, serve):
    served, (channel,) = serve()
    table = loader.Table(1)
    table.set_target(0, 1000)
    channel.begin(table, "__main__:f\n")
    table.arm()
    tools = "[sys.monitoring.get_tool(i) for i in range(6)].count('speed_bump')"
    if python.version < (3, 12):
        tools = "0"
    served.tell(
        f"(lambda pid: os.waitpid(pid, 0)[1] if pid else (f(), os.read(0, 9), f(),"
        f" os._exit({tools})))(os.fork())"
    )
    wait_for(lambda: table.hits() == 1)
    table.close()
    served.tell("go on")
    assert served.hear() == 0
    assert table.hits() == 1


def test_detach_while_the_interpreter_ends(python, serve):
    """A process that ended just as its loader left hung for good: now and then, on a busy machine."""
    rng = random.Random(5)
    for _ in range(60):
        served, (channel,) = serve()
        table = loader.Table(1)
        channel.begin(table, "__main__:f\n")
        leave = threading.Timer(rng.uniform(0, 0.003), channel.socket.close)
        leave.start()
        time.sleep(rng.uniform(0, 0.003))
        served.process.stdin.close()
        assert served.process.wait(timeout=20) == 0
        leave.join()


def test_attach_and_detach_many_times(python, serve):
    served, channels = serve(100)
    served.ask("start_loop()")
    table = loader.Table(1)
    table.set_target(0, 1000)
    table.arm()
    for channel in channels:
        before = table.hits()
        assert channel.begin(table, "__main__:f\n")["op"] == "ready"
        wait_for(lambda: table.hits() > before)
        channel.send({"op": "detach"})
        message = channel.receive()
        while message["op"] == "matched":
            message = channel.receive()
        assert message["op"] == "gone"
        channel.close()
    # The slots of one process are used again, not one a session; without a GIL each thread keeps
    # the one of its last session.
    assert python.name.endswith("t") or len(table.counts(0)) == 1
    served.ask("globals().update(stop=True)")


def test_refusals(serve):
    served, channels = serve(9)
    table = loader.Table(1)

    def refused(channel, *arguments, **options):
        message = channel.begin(*arguments, **options)
        assert message["op"] == "refused" and channel.receive() == {}
        return message["reason"]

    assert "no_colon" in refused(channels[0], table, "no_colon\n")
    assert "name" in refused(channels[1], table, "m:f\n", session="")
    small = loader.Table(1)
    assert "fewer targets" in refused(channels[2], small, "m:f\nm:g\n")
    damaged = loader.Table(1)
    damaged.settings[0:4] = b"\xff\xff\xff\xff"
    assert "damaged" in refused(channels[3], damaged, "m:f\n")
    channels[4].send({"op": "begin", "session": "x", "targets": "m:f\n"})
    assert channels[4].receive()["op"] == "refused"
    channels[5].send(b"\x00nonsense")
    assert channels[5].receive()["op"] == "refused"
    channels[6].send(b'{"op": 5}')
    assert channels[6].receive() == {}
    channels[7].close()
    assert channels[8].begin(table, "__main__:f\n")["op"] == "ready"


def test_table_that_others_could_change_is_refused(serve):
    """Its size, or what it says where things lie: a mapping must not fault, a target not decide."""
    served, channels = serve(4)
    sizes = {"settings": 128, "counters": 64 + 64 + 64 * 128}
    for channel, (unsealed, size) in zip(channels, [*sizes.items(), *sizes.items()]):
        table = loader.Table(1)
        fd = os.memfd_create(unsealed, os.MFD_ALLOW_SEALING)
        os.ftruncate(fd, size)
        os.pwrite(fd, getattr(table, unsealed)[:], 0)
        if channel in channels[2:]:  # long enough once, and short now
            os.ftruncate(fd, 64)
            future_write = 0x10 if unsealed == "settings" else 0
            fcntl.fcntl(fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | future_write)
        setattr(table, f"{unsealed}_fd", fd)
        message = channel.begin(table, "__main__:f\n")
        assert message["op"] == "refused" and "damaged" in message["reason"]


def test_settings_are_the_loaders_alone(serve):
    served, (channel,) = serve()
    table = loader.Table(1)
    assert channel.begin(table, "__main__:f\n")["op"] == "ready"
    table.arm()
    maps = served.ask("[l for l in open('/proc/self/maps') if 'memfd:settings' in l]")
    assert maps and all(line.split()[1] == "r--s" for line in maps)
    # What the other mapping holds is counted, whatever it is.
    rng = random.Random(7)
    for _ in range(300):
        at = rng.randrange(0, len(table.counters) - 64)
        table.counters[at:at + 64] = rng.randbytes(64)
        served.ask("f()")
    channel.send({"op": "detach"})
    assert channel.receive()["op"] == "gone"
    assert served.ask("1 + 1") == 2


def test_second_session_is_refused(serve):
    served, (first, second) = serve(2)
    table = loader.Table(1)
    assert first.begin(table, "__main__:f\n")["op"] == "ready"
    served.tell("threading.Thread(target=core.serve, args=(os.dup(int(sys.argv[3])),)).start()")
    message = second.begin(table, "__main__:f\n", session="another")
    assert message["op"] == "refused" and "another session" in message["reason"]
    served.hear()
    first.send({"op": "detach"})
    assert first.receive()["op"] == "gone"


def test_long_targets_come_in_a_file(serve):
    served, (channel,) = serve()
    text = "".join(f"module{i}:function\n" for i in range(20000)) + "__main__:f\n"
    fd = os.memfd_create("targets")
    os.write(fd, text.encode())
    table = loader.Table(20001)
    channel.send({"op": "begin", "session": "s", "lines": list(range(19990, 20001))},
                 table.settings_fd, table.counters_fd, fd)
    assert [entry["line"] for entry in channel.receive()["matched"]] == [20000]



def test_a_look_that_no_descriptor_is_free_for_is_at_all(serve):
    served, (channel,) = serve()
    table = loader.Table(2)
    channel.begin(table, "__main__:*\n", lines=[0], look="later")
    table.arm()
    served.ask("exec('import resource\\nn = os.dup(0)\\nos.close(n)')")
    served.ask("resource.setrlimit(resource.RLIMIT_NOFILE, (n, n))")
    known = loader.text_file([1, 2, 3])
    channel.send({"op": "look"}, known)
    names, _ = looked(channel)
    assert {"g", "outer", "outer.<locals>.inner"} <= set(names)
    channel.groups(1, [0], [["__main__", False, "f", False, 1]])
    while (message := channel.receive())["op"] == "matched":
        pass
    assert message["op"] == "grouped" and "without a file" in message["reason"], message
    hits = table.hits()
    served.ask("f()")
    assert table.hits() > hits and table.hits(1) == 0
    channel.send({"op": "detach"})
    while (message := channel.receive())["op"] == "matched":
        pass
    assert message == {"op": "gone", "reason": "detach"}


# Kills the process for a getpid().
WITHOUT_GETPID = """
import ctypes, struct
def forbid_getpid():
    steps = struct.pack("@HBBIHBBIHBBIHBBI", 0x20, 0, 0, 0, 0x15, 0, 1, NUMBER,
                        6, 0, 0, 0x80000000, 6, 0, 0, 0x7fff0000)
    buffer = ctypes.create_string_buffer(steps, len(steps))
    head = ctypes.create_string_buffer(struct.pack("@HP", 4, ctypes.addressof(buffer)))
    libc = ctypes.CDLL(None)
    libc.prctl(38, *(ctypes.c_ulong(number) for number in (1, 0, 0, 0)))
    libc.prctl(22, ctypes.c_ulong(2), ctypes.byref(head), ctypes.c_ulong(0), ctypes.c_ulong(0))
def forbidden_child():
    pid = os.fork()
    if pid:
        return [pid, os.waitpid(pid, 0)[1]]
    forbid_getpid()
    f()
    f()
    os._exit(0)
""".replace("NUMBER", "39" if os.uname().machine == "x86_64" else "172")


def test_a_child_that_may_not_ask_for_its_pid_is_slowed(serve):
    served, (channel,) = serve(
        program=PROGRAM.replace("\nfor line in sys.stdin:", WITHOUT_GETPID + "\nfor line in sys.stdin:")
    )
    table = loader.Table(1)
    channel.begin(table, "__main__:f\n")
    table.arm()
    child, status = served.ask("forbidden_child()")
    assert status == 0
    assert table.counts(0)[child][0] == 2
    channel.send({"op": "detach"})
    assert channel.receive()["op"] == "gone"


FORKING = """
sys.setswitchinterval(1e-6)
stop, left = False, []
def fork_all_the_time():
    while not stop:
        pid = os.fork()
        if pid:
            left.append(os.waitpid(pid, 0)[1])
            continue
        f()
        f()
        tools = getattr(sys, "monitoring", None)
        # Without a GIL a thread may be in the middle of it.
        tools = getattr(sys, "_is_gil_enabled", lambda: True)() and tools
        hooked = tools and any(map(tools.get_tool, range(6)))
        os._exit(2 if hooked or core.has_session() else 0)
forking = threading.Thread(target=fork_all_the_time)
forking.start()
while not left:  # or the calibration may be over before its first turn
    time.sleep(0.001)
"""


def test_children_of_a_calibration_keep_nothing_of_it(serve):
    """They are forked while it has its hook in, and no loader has them."""
    text = PROGRAM.replace("\nserver.start()", FORKING + "\nserver.start()")
    text = text.replace("core.serve(int(fd))", "core.hook_overhead_ns()")
    for _ in range(8):
        served, _ = serve(1, text)
        served.ask("server.join()")
        served.ask("globals().update(stop=True)")
        served.ask("forking.join()")
        assert set(served.ask("left")) == {0}


# Functions that the collector has put aside, as a server does before it forks.
FROZEN = """
class Frozen:
    def method(self): pass
    replaced = method
Frozen.replaced.__code__ = Frozen.replaced.__code__.replace(co_name="other")
import gc
gc.freeze()
"""


def test_functions_that_are_frozen_are_found(python, serve):
    if python.name.endswith("t"):
        pytest.skip("its collector shows no frozen objects: they are found when they are called")
    text = PROGRAM.replace("\nfor line in sys.stdin:", FROZEN + "\nfor line in sys.stdin:")
    for looks in ("now", "later"):
        served, (channel,) = serve(1, text)
        assert served.ask("gc.get_freeze_count()") > 0  # it has come so far
        table = loader.Table(2)
        ready = channel.begin(table, "__main__:f\n__main__:Frozen.method\n", look=looks)
        names = {entry["name"] for entry in ready["matched"]}
        assert names == ({"f", "Frozen.method"} if looks == "now" else set())
        table.arm()
        served.ask("Frozen().method()")
        assert table.hits(1) == 1
        channel.send({"op": "detach"})
        while channel.receive()["op"] != "gone":
            pass


def test_threads_are_in_hooks_when_sessions_end(python, serve):
    """They find the end all at once, and the table where it was."""
    served, channels = serve(60)
    served.ask("[start_loop() for _ in range(3)]")
    before = []
    for number, channel in enumerate(channels):
        table = loader.Table(1)
        table.set_target(0, (0, 5000)[number % 2])
        assert channel.begin(table, "__main__:f\n", look="later")["op"] == "ready"
        table.arm()
        wait_for(lambda: table.hits() > 100)  # noqa: B023
        if number % 4 < 2:
            table.close()
        channel.send({"op": "detach"})
        while channel.receive()["op"] != "gone":
            pass
        before.append([table, table.hits()])
        channel.close()
    assert [table.hits() for table, _ in before] == [hits for _, hits in before]
    maps = served.ask("[l for l in open('/proc/self/maps') if 'memfd:' in l]")
    assert maps == []
    if python.version >= (3, 12):
        assert served.ask("[sys.monitoring.get_tool(i) for i in range(6)]") == [None] * 6
    served.ask("globals().update(stop=True)")


# A frame evaluation function of somebody else (PEP 523), who calls what was there before, or, as
# PyTorch's compiler does, puts that back when it leaves.
OTHER_HOOK = """
typedef void* (*evaluate)(void*, void*, int);
evaluate _PyInterpreterState_GetEvalFrameFunc(void*);
void _PyInterpreterState_SetEvalFrameFunc(void*, evaluate);
void* PyInterpreterState_Get(void);
static evaluate before;
static void* other(void* thread, void* frame, int thrown) { return before(thread, frame, thrown); }
int is_in_front(void) {
    return _PyInterpreterState_GetEvalFrameFunc(PyInterpreterState_Get()) == other;
}
void put_in_front(void) {
    before = _PyInterpreterState_GetEvalFrameFunc(PyInterpreterState_Get());
    _PyInterpreterState_SetEvalFrameFunc(PyInterpreterState_Get(), other);
}
void leave(void) { _PyInterpreterState_SetEvalFrameFunc(PyInterpreterState_Get(), before); }
unsigned long here(void) { return (unsigned long)__builtin_frame_address(0); }
"""
WITH_OTHER_HOOK = """
import ctypes
other = ctypes.PyDLL("./other.so")
other.here.restype = ctypes.c_ulong
sys.setrecursionlimit(200000)
def deepen(end):
    return 1 if other.here() < end else deepen(end) + 1
def go_deep(share):
    # Until so much of a thread's stack is used.
    threading.stack_size(32 << 20)
    result = []
    def run():
        try:
            result.append(deepen(other.here() - int(share * (32 << 20))))
        except RecursionError:
            result.append(None)
    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    return result[0]
"""


@pytest.fixture
def beside_another(python, serve):
    if python.version >= (3, 12):
        pytest.skip("each tool of sys.monitoring has its own place")
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("no C compiler")
    (python.folder / "other.c").write_text(OTHER_HOOK)
    subprocess.run([compiler, "-O2", "-shared", "-fPIC", "-o", "other.so", "other.c"],
                   cwd=python.folder, check=True)
    served, (channel,) = serve(
        program=PROGRAM.replace("\nfor line in sys.stdin:", WITH_OTHER_HOOK + "\nfor line in sys.stdin:")
    )
    return served, channel, loader.Table(1)


@pytest.fixture
def behind_another(beside_another):
    """Called by ours, which came later and has counted one call of f()."""
    served, channel, table = beside_another
    served.ask("other.put_in_front()")
    channel.begin(table, "__main__:f\n")
    table.arm()
    served.ask("f()")
    assert table.hits() == 1
    return served, channel, table


def test_another_hook_that_came_later_stays_where_it_is(beside_another):
    served, channel, table = beside_another
    channel.begin(table, "__main__:f\n")
    served.ask("other.put_in_front()")
    table.arm()
    served.ask("f()")
    assert table.hits() == 1
    # With half of the stack used ours would go, but it is called by the other.
    assert served.ask("go_deep(0.7)") > 1000
    assert served.ask("other.is_in_front()") == 1
    served.ask("f()")
    assert table.hits() == 2
    channel.send({"op": "detach"})
    assert channel.receive()["op"] == "gone"
    assert served.ask("other.is_in_front()") == 1
    served.ask("f()")
    served.ask("other.leave()")
    served.ask("f()")
    assert table.hits() == 2


def test_another_hook_that_was_there_comes_in_front_again(behind_another):
    """As PyTorch's compiler does where one thread comes to it before the other has left: a circle."""
    served, channel, table = behind_another
    served.ask("other.put_in_front()")
    served.ask("f()")
    assert table.hits() == 2
    assert served.ask("other.is_in_front()") == 1
    served.ask("other.leave()")  # to ours
    served.ask("f()")
    assert table.hits() == 3
    channel.send({"op": "detach"})
    assert channel.receive()["op"] == "gone"
    served.ask("f()")
    assert table.hits() == 3


def test_another_hook_that_was_there_takes_ours_along(behind_another):
    served, channel, table = behind_another
    served.ask("other.leave()")
    wait_for(lambda: served.ask("f()") is None and table.hits() > 1)
    served.ask("other.put_in_front()")
    hits = table.hits()
    served.ask("f()")
    assert table.hits() == hits + 1
    served.ask("other.leave()")
    channel.send({"op": "detach"})
    assert channel.receive()["op"] == "gone"
    served.ask("f()")
    assert table.hits() == hits + 1
