# SPDX-License-Identifier: MIT
"""`discover` on services under load: what it writes is taken as it is by `check` and `attach`."""

import json
import pathlib
import subprocess
import sys
import threading
import time

import mixed_test
import pythons
import services_test
from harness import *


def discover(pid: int, *options: str) -> dict:
    done = subprocess.run(
        [SPEEDBUMP, "discover", "--pid", str(pid), "--json", *options],
        capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert done.returncode == 0, (done.returncode, done.stderr)
    return json.loads(done.stdout)


def take(targets: pathlib.Path, pid: int) -> dict:
    """Feeds the file to `check` and `attach`; what check made of it."""
    lines = [line for line in targets.read_text().splitlines() if line[:1] not in ("", "#")]
    assert len(lines) > 0
    checked = subprocess.run(
        [SPEEDBUMP, "check", str(targets), "--pid", str(pid), "--json"],
        capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert checked.returncode == 0, checked.stderr
    attached = subprocess.run(
        [SPEEDBUMP, "attach", str(targets), "--pid", str(pid), "--duration", "500ms", "-q"],
        capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert attached.returncode == 0, attached.stderr
    return json.loads(checked.stdout)


def test_redis() -> None:
    with services_test.redis() as (server, port), services_test.RedisLoad(port):
        targets = scratch() / "targets.txt"
        found = discover(server.pid, "--for", "4s", "-o", str(targets))
        native = found["native"]
        assert native["watched"] > 500, native["watched"]
        assert native["never_called"], "nothing is never called"
        assert any(one.get("calls") for one in native["functions"]), native
        # It has no Python, and stands in system calls or works in functions of its own.
        assert found["stacks"]["python"] == 0 < found["stacks"]["native"], found["stacks"]
        assert any(one.get("self") for one in native["functions"]), native
        report = take(targets, server.pid)
        assert report["lines"], report


def test_redis_by_a_glob() -> None:
    with services_test.redis() as (server, port), services_test.RedisLoad(port) as load:
        before = load.requests
        start = time.monotonic()
        found = discover(
            server.pid, "--for", "2s", "--budget", "50", "--native", "processCommand",
            "--native", "nothing_of_this_name",
        )  # fmt: skip
        rate = (load.requests - before) / (time.monotonic() - start)
        (one,) = [f for f in found["native"]["functions"] if f["name"] == "processCommand"]
        assert rate / 3 < one["calls_per_second"] < rate * 3, (rate, one)
        assert list(one["processes"]) == [str(server.pid)]
        assert any("nothing_of_this_name" in line for line in found["native"]["no_such_function"])


def test_nginx() -> None:
    with services_test.nginx() as (server, port):
        stop = threading.Event()

        def load() -> None:
            while not stop.is_set():
                services_test._request(port, 20)

        thread = threading.Thread(target=load)
        thread.start()
        try:
            targets = scratch() / "targets.txt"
            found = discover(server.pid, "--for", "3s", "-o", str(targets))
            assert len(found["pids"]) == 3, found["pids"]
            assert found["native"]["functions"], found
            take(targets, server.pid)
        finally:
            stop.set()
            thread.join()


def test_the_shop() -> None:
    """Both worlds of gunicorn, Flask and SQLite, of which buy() and sqlite3_step are called."""
    shop = mixed_test.Shop()
    stop = threading.Event()

    def load() -> None:
        number = 0
        while not stop.is_set():
            shop.buy(number := number + 1)

    thread = threading.Thread(target=load)
    thread.start()
    try:
        folder = scratch()
        targets, collapsed = folder / "targets.txt", folder / "stacks.txt"
        found = discover(
            shop.pid, "--for", "4s", "--native", "libsqlite3.so*:sqlite3_*", "--budget", "30",
            "--rate", "500", "--top", "0", "-o", str(targets), "--collapsed", str(collapsed),
        )  # fmt: skip
        python = {one["function"]: one for one in found["python"]["functions"]}
        assert "buy" in python and python["buy"]["total"] > 0, list(python)[:20]
        stacks = found["stacks"]
        assert stacks["not_whole"] + stacks["failed"] < 0.05 * stacks["all"], stacks
        native = {one["name"]: one for one in found["native"]["functions"]}
        assert "sqlite3_step" in native, list(native)
        assert len(native["sqlite3_step"]["processes"]) == 2, native["sqlite3_step"]
        # One picture: SQLite's work below the handler that asked for it.
        below = [line for line in collapsed.read_text().splitlines() if ";buy (" in line]
        assert any("sqlite3_step (libsqlite3" in line.split(";buy (")[1] for line in below), below
        report = take(targets, shop.pid)
        assert report["lines"], report
    finally:
        stop.set()
        thread.join()
        shop.end()


def test_budget() -> None:
    """What counting costs stays near what it may, on a library of 30,000 hot symbols."""
    folder = scratch()
    count = 30_000
    source = "".join(f"int f{i}(int x) {{ return x + {i}; }}\n" for i in range(count))
    table = ",".join(f"f{i}" for i in range(count))
    (folder / "big.c").write_text(source + f"int (*all[])(int) = {{{table}}};\n")
    (folder / "main.c").write_text(
        "#include <stdio.h>\nextern int (*all[])(int);\nint main(void) { puts(\"ready\");"
        f"fflush(stdout); for (unsigned i = 0;; i = (i + 1) % {count}) all[i](1); }}\n"
    )
    compiler = need("gcc")
    for command in (
        ["-O1", "-shared", "-fPIC", "-o", "libbig.so", "big.c"],
        ["-o", "main", "main.c", "./libbig.so"],
    ):
        subprocess.run([compiler, *command], cwd=folder, check=True)
    process = subprocess.Popen([str(folder / "main")], cwd=folder, stdout=subprocess.PIPE)
    try:
        assert process.stdout.readline() == b"ready\n"
        found = discover(
            process.pid, "--for", "6s", "--budget", "10", "--native", "*libbig.so:f*", "--top", "0"
        )["native"]
        watched = found["watched"] + found["not_watched"] + found["refused"]
        assert watched >= count, found["watched"]
        assert len(found["functions"]) > 0
        assert found["added_cpu"] < 0.2, found["added_cpu"]
        print(f"  {found['watched']} watched, {found['added_cpu']:.1%} of a CPU added")
    finally:
        process.kill()
        process.wait()


INLINED = """
#include <unistd.h>
static inline __attribute__((always_inline)) int tiny(int x) { return x * 31 + getppid(); }
__attribute__((noinline)) int first(int x) { return tiny(x) + 1; }
__attribute__((noinline)) int second(int x) { return tiny(x) ^ tiny(x + 1); }
int main(void) { for (int x = 0;; usleep(1000)) x = first(x) + second(x); }
"""


def test_inlined_functions_are_named() -> None:
    for separate in (False, True):
        folder = scratch()
        (folder / "main.c").write_text(INLINED)
        compiler = [need("gcc"), "-O2", "-g", "-Wl,--build-id", "-o", "main", "main.c"]
        subprocess.run(compiler, cwd=folder, check=True)
        if separate:
            for command in (
                ["objcopy", "--only-keep-debug", "main", "main.debug"],
                ["objcopy", "--strip-debug", "--add-gnu-debuglink=main.debug", "main"],
            ):
                subprocess.run(command, cwd=folder, check=True)
        process = subprocess.Popen([str(folder / "main")])
        try:
            time.sleep(0.2)
            native = discover(
                process.pid, "--for", "1s", "--native", "tiny", "--native", "second"
            )["native"]
            (tiny,) = native["inlined"]
            assert tiny["name"] == "tiny" and tiny["places"] == 3, tiny
            assert tiny["callers"] == ["first", "second"] and tiny["path"].endswith("/main"), tiny
            assert native["no_such_function"] == ["+*:tiny"], native
            (second,) = native["functions"]
            assert second["name"] == "second" and second["calls"] > 0, second
            shown = Run("discover", "--pid", str(process.pid), "--for", "500ms", "--native", "tiny")
            assert "main:tiny in first, second\n" in shown.out, shown
        finally:
            process.kill()
            process.wait()


# hot() has three times the work of warm(); no frame pointers, and a system call now and then.
HOT = """
#include <unistd.h>
static volatile unsigned sink;
__attribute__((noinline)) static void turn(unsigned n) { while (n--) sink += n; }
__attribute__((noinline)) void hot(void) { turn(3000); sink++; }
__attribute__((noinline)) void warm(void) { turn(1000); sink++; }
__attribute__((noinline)) void rare(void) { getppid(); sink++; }
__attribute__((noinline)) void serve(unsigned i) {
    hot(); warm(); if (i % 1000 == 0) rare(); sink++;
}
int main(void) { for (unsigned i = 0;; i++) serve(i); }
"""


def test_native_time_goes_where_it_goes() -> None:
    folder = scratch()
    (folder / "main.c").write_text(HOT)
    compiler = [need("gcc"), "-O2", "-fomit-frame-pointer", "-o", "main", "main.c"]
    subprocess.run(compiler, cwd=folder, check=True)
    process = subprocess.Popen([str(folder / "main")])
    collapsed, targets = folder / "stacks.txt", folder / "targets.txt"
    try:
        found = discover(
            process.pid, "--for", "4s", "--native", "exe:*", "--collapsed", str(collapsed),
            "-o", str(targets), "--budget", "30",
        )  # fmt: skip
        stacks = found["stacks"]
        assert stacks["not_whole"] + stacks["failed"] <= 0.05 * stacks["all"], stacks
        counts = {"hot": 0, "warm": 0}
        for line in collapsed.read_text().splitlines():
            names = [frame.split(" (")[0] for frame in line.rpartition(" ")[0].split(";")]
            for name in counts:
                if name in names:
                    assert names[names.index(name) - 1] == "serve", names
                    counts[name] += int(line.rpartition(" ")[2])
        assert 2.2 < counts["hot"] / counts["warm"] < 4, counts
        first = found["native"]["functions"][0]
        assert first["name"] == "turn" and first["active"] > 0.8 * stacks["active"], first
        lines = [line for line in targets.read_text().splitlines() if line.startswith("+")]
        assert ":turn" in lines[0] and not any(":main" in line for line in lines), lines
    finally:
        process.kill()
        process.wait()


# Where the time goes is known: hash() half of the main thread's time, pack() the other half, in
# zlib; the second thread sleeps.
KNOWN = """
import threading, time, zlib
data = bytes(range(256)) * 400
def hash_it(until):
    n = 0
    while time.perf_counter() < until: n += 1
def pack(until):
    while time.perf_counter() < until: zlib.adler32(data)
def by_c(until):
    sorted([1], key=lambda _: pack(until))
def nap(): time.sleep(1000)
threading.Thread(target=nap, daemon=True).start()
def work():
    hash_it(time.perf_counter() + 0.01)
    by_c(time.perf_counter() + 0.01)
print("ready", flush=True)
while True: work()
"""


def test_one_picture_of_both_worlds() -> None:
    for python in pythons.find():
        process = python.start(KNOWN)
        collapsed = scratch() / "stacks.txt"

        def look() -> None:
            found = discover(
                process.pid, "--for", "2s", "--top", "0", "--native", "libz.so*:adler32*",
                "--collapsed", str(collapsed),
            )  # fmt: skip
            stacks = found["stacks"]
            assert stacks["not_whole"] + stacks["failed"] <= 0.02 * stacks["all"], stacks
            lines = collapsed.read_text().splitlines()
            counts = {line.rpartition(" ")[0]: int(line.rpartition(" ")[2]) for line in lines}
            assert sum(counts.values()) == stacks["all"]

            def share(*parts: str) -> float:
                """Of the stacks in which these come in this order, outermost first."""
                held = 0
                for stack, count in counts.items():
                    frames = iter(stack.split(";"))
                    held += count if all(any(p in f for f in frames) for p in parts) else 0
                return held / stacks["all"]

            assert 0.4 < share("nap (", "libc.so") < 0.6, (python.name, counts)
            assert 0.15 < share("work (", "hash_it (") < 0.35, share("hash_it (")
            packing = share("work (", "by_c (", "<lambda> (", "pack (", "(libz.so")
            assert 0.15 < packing < 0.35, packing
            # C code between the Python functions stays where it is.
            assert share("by_c (", "python3", "<lambda> (") > 0.9 * packing
            top = [one["function"] for one in found["python"]["functions"][:2]]
            assert sorted(top) == ["hash_it", "pack"], top
            assert share("hash_it (", "libz.so") == share("nap (", "libz.so") == 0
            assert share("pack (", "hash_it (") == share("libz.so", "pack (") == 0
            adler = [f for f in found["native"]["functions"] if f["name"].startswith("adler32")]
            assert any(one["calls"] > 0 for one in adler), found["native"]
            assert stacks["own_cpu"] < 0.2, stacks

        repeat(2, look)
        process.kill()
        process.wait()
        print(f"  Python {python.name}")


SHOP = """
import functools, time
class Cart:
    def price(self):
        def vat(): pass
        return vat
def logged(function):
    @functools.wraps(function)
    def wrapper(*arguments): return function(*arguments)
    return wrapper
@logged
def pay(): pass
print("ready", flush=True)
time.sleep(1000)
"""


def test_python_functions_are_listed() -> None:
    for python in pythons.find():
        process = python.start(SHOP)

        def listed(*arguments: str) -> list[str]:
            done = Run("list", "--pid", str(process.pid), *arguments)
            assert done.status == 0, done
            return done.out.splitlines()

        names = ["Cart.price", "Cart.price.<locals>.vat", "logged", "logged.<locals>.wrapper",
                 "pay"]  # fmt: skip
        assert sorted(listed("__main__:*")) == [f"__main__:{name}" for name in names], python.name
        assert listed("Cart.*") == ["__main__:Cart.price", "__main__:Cart.price.<locals>.vat"]
        native = listed("--no-python", "*PyObject_Call*")
        assert native and all(line.startswith("+") for line in native), native
        targets = scratch() / "targets.txt"
        targets.write_text("\n".join(listed("__main__:*")))
        checked = Run("check", str(targets))
        assert checked.status == 0, checked
        process.kill()
        process.wait()


# Threads that want the interpreter's lock all the time make the core slow to leave.
CROWD = """
import sys, threading
sys.setswitchinterval(0.05)
def spin():
    while True: pass
for _ in range(3): threading.Thread(target=spin, daemon=True).start()
print("ready", flush=True)
spin()
"""


def test_the_next_session_can_begin_when_a_command_has_ended() -> None:
    found = pythons.find()
    for python in (found[0], found[-1]):
        process = python.start(CROWD)
        path = targets_file("__main__:spin delay=0")
        for _ in range(3):
            done = Run("list", "--pid", str(process.pid), "__main__:spin")
            assert done.status == 0 and "__main__:spin" in done.out, done
            done = Run("attach", "--pid", str(process.pid), "--duration=10ms", path)
            assert done.status == 0 and "another session" not in done.err, done
        process.kill()
        process.wait()


if __name__ == "__main__":
    main(globals())
