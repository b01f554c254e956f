# SPDX-License-Identifier: MIT
"""`discover` on services under load: what it writes is taken as it is by `check` and `attach`."""

import contextlib
import json
import math
import mmap
import os
import pathlib
import signal
import struct
import subprocess
import sys
import threading
import time

import experiment_test
import mixed_test
import pythons
import services_test
from browser import Cells, browse
from harness import (
    SPEEDBUMP, Run, Skip, _leftovers, alone, children, main, need, scratch, targets_file, wait_for,
)


LARGE_TREE = pathlib.Path(__file__).parents[1] / "programs" / "large_tree.py"


def discover(pid: int, *options: str) -> dict:
    done = subprocess.run(
        [SPEEDBUMP, "discover", "--pid", str(pid), "--json", *options],
        capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert done.returncode == 0, (done.returncode, done.stderr)
    return json.loads(done.stdout)


def is_likely(count: int, of: int, least: float, most: float) -> bool:
    """Whether so many of independent samples are what a share between `least` and `most` gives;
    wrongly not in one of a million cases."""

    def at_most(k: int, share: float) -> float:
        logs = (
            math.lgamma(of + 1) - math.lgamma(i + 1) - math.lgamma(of - i + 1)
            + i * math.log(share) + (of - i) * math.log1p(-share)
            for i in range(k + 1)
        )  # fmt: skip
        return sum(math.exp(one) for one in logs)

    return at_most(count, least) > 5e-7 and at_most(of - count, 1 - most) > 5e-7


def true_share(written: str, stacks: dict) -> tuple[float, float]:
    """Between which two the first function's share was while samples were taken. The program
    writes lines: the time, and how long it has been in each of two functions so far, in ns. So
    what kept it waiting for a CPU meanwhile is known."""
    rows = [[int(word) for word in line.split()] for line in written.split("\n")[:-1]]
    before = [row for row in rows if row[0] <= stacks["from_ns"]][-1]
    after = [row for row in rows if row[0] >= stacks["to_ns"]][0]
    within = [row for row in rows if stacks["from_ns"] <= row[0] <= stacks["to_ns"]]
    least, most = ([end - start for start, end in zip(pair[0][1:], pair[1][1:])]
                   for pair in ((within[0], within[-1]), (before, after)))  # fmt: skip
    return least[0] / (least[0] + most[1]), most[0] / (most[0] + least[1])


def waited_for_a_cpu(pid: int) -> int:
    """ns, of the first thread."""
    return int(pathlib.Path(f"/proc/{pid}/task/{pid}/schedstat").read_text().split()[1])


def discover_and_wait(pid: int, *options: str) -> tuple[dict, float]:
    """Also for how many seconds its first thread, which counts, waited for a CPU: it can take no probe
    out then."""
    with subprocess.Popen([SPEEDBUMP, "discover", "--pid", str(pid), "--json", *options],
                          stdout=subprocess.PIPE, text=True) as process:
        with Rates(lambda: waited_for_a_cpu(process.pid)) as waits:  # it is there until waited for
            out = process.stdout.read()
    assert process.returncode == 0, process.returncode
    return json.loads(out), (waits.seen[-1][1] - waits.seen[0][1]) / 1e9


class Waiting:
    """Of how many stacks the times may stand elsewhere: all that a first thread waited for a CPU, which
    counts for the few in which it was found waiting."""

    def __init__(self, pid: int, rate: int = 99):
        self._pid, self._rate, self._before = pid, rate, waited_for_a_cpu(pid)

    def stacks(self) -> float:
        return (waited_for_a_cpu(self._pid) - self._before) * self._rate / 1e9


def widened(least: float, most: float, share: float) -> tuple[float, float]:
    return max(least - share, 1e-6), min(most + share, 1 - 1e-6)


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
    with services_test.redis() as server, services_test.RedisLoad(server.port):
        targets = scratch() / "targets.txt"
        found = discover(server.pid, "--for", "4s", "-o", str(targets))
        native = found["native"]
        # Beyond what its samples saw; how many more is a matter of the host and the budget, and where
        # putting probes in place waits for a CPU it may be none: then it says so.
        assert native["watched"] > native["never_called"], native["watched"]
        assert native["never_called"] + native["not_watched"] > 100, native
        assert any(one.get("calls") for one in native["functions"]), native
        # It has no Python, and stands in system calls or works in functions of its own.
        assert found["stacks"]["python"] == 0 < found["stacks"]["native"], found["stacks"]
        assert any(one.get("self") for one in native["functions"]), native
        report = take(targets, server.pid)
        assert report["lines"], report


def test_redis_by_a_glob() -> None:
    with services_test.redis() as server, services_test.RedisLoad(server.port) as load:
        with Rates(lambda: load.requests) as rates:
            found = discover(
                server.pid, "--for", "2s", "--budget", "50", "--native", "processCommand",
                "--native", "nothing_of_this_name",
            )  # fmt: skip
        (one,) = [f for f in found["native"]["functions"] if f["name"] == "processCommand"]
        rates.expect(one, 1.3)
        assert list(one["processes"]) == [str(server.pid)]
        assert any("nothing_of_this_name" in line for line in found["native"]["no_such_function"])


def test_nginx() -> None:
    with services_test.nginx() as server:
        stop = threading.Event()

        def load() -> None:
            while not stop.is_set():
                services_test._request(server.port, 20)

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
    """Both runtimes of gunicorn, Flask and SQLite, of which buy() and sqlite3_step are called."""
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
        waiting = [Waiting(pid, 500) for pid in children(shop.pid)]
        found = discover(
            shop.pid, "--for", "4s", "--native", "libsqlite3.so*:sqlite3_*", "--budget", "30",
            "--rate", "500", "--top", "0", "-o", str(targets), "--collapsed", str(collapsed),
        )  # fmt: skip
        lumps = sum(one.stacks() for one in waiting)
        python = {one["function"]: one for one in found["python"]["functions"]}
        assert "buy" in python and python["buy"]["total"] > 0, list(python)[:20]
        stacks = found["stacks"]
        print(f"  {stacks}")
        # Its threads sleep for less than 0.1 ms at a time: some run on before they are copied.
        moved = stacks["failed_why"]["ran_meanwhile"]
        assert stacks["not_whole"] + stacks["failed"] - moved < 0.05 * stacks["all"] + lumps, (lumps, stacks)
        assert moved < 0.1 * stacks["all"], stacks
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


TWO = """
import os, time
def even(n):
    return sum(range(n))
def odd(n):
    return sum(range(n))
def serve(work):
    while True:
        work(2000)
print("ready", flush=True)
serve(even if os.fork() else odd)
"""


def body_data(dom: str, name: str) -> str:
    return dom.partition(f'data-{name}="')[2].partition('"')[0]


def test_the_page_shows_what_the_stacks_are() -> None:
    """The picture's sums, its search and its choice of a process are those of the collapsed file."""
    chromium = need("chromium")
    folder = scratch()
    # A name that would end the script element if it were written as it is.
    (folder / "a<b.py").write_text(TWO)
    parent = subprocess.Popen([need("/usr/bin/python3"), str(folder / "a<b.py")],
                              stdout=subprocess.PIPE, text=True)
    _leftovers.append(parent.kill)
    assert parent.stdout.readline() == "ready\n"
    wait_for(lambda: children(parent.pid), 10, "the child")
    child = children(parent.pid)[0]
    page, collapsed = folder / "map.html", folder / "stacks.txt"
    try:
        found = discover(parent.pid, "--for", "3s", "--html", str(page), "--collapsed",
                         str(collapsed), "--native", "libc.so.6:malloc")
    finally:
        os.kill(child, signal.SIGKILL)
    stacks = [line.rpartition(" ") for line in collapsed.read_text().splitlines()]

    def periods(*words: str) -> int:
        return sum(int(count) for stack, _, count in stacks if all(one in stack for one in words))

    assert periods() == found["stacks"]["all"] and periods(";even (") and periods(";odd (")
    for address, all_of, searched in (
        ("", periods(), None),
        ("#q=serve", periods(), periods(";serve (")),
        (f"#of=p{child}&q=odd", periods(f"({child})"), periods(f"({child})", ";odd (")),
        (f"#of=p{child}&q=even", periods(f"({child})"), 0),
    ):
        dom, asked = browse(chromium, f"file://{page}{address}")
        assert body_data(dom, "drawn") == "yes" and asked == [], (asked, len(dom), dom[:300])
        assert int(body_data(dom, "periods")) == all_of, address
        if searched is not None:
            assert f'id="hits">{searched / all_of * 100:.1f}% of the stacks' in dom, address
        rows = Cells(dom)
        assert rows.canvases == 1
        assert any(one.startswith("serve (") and "a<b.py" in one for one in rows.cells), rows.cells


def test_the_page_is_coloured_by_an_experiment() -> None:
    chromium = need("chromium")
    service = experiment_test.start("serial")
    done = experiment_test.Experiment(service.pid, "+exe:work_a\n+exe:work_b\n",
                                      "--slice=5ms", "--doses=50us", "--time=25s", "--max-slowdown=400%")
    assert all(one["blocks"] > 0 for one in done.document["results"]["progress"][0]["targets"]), done
    page = scratch() / "map.html"
    discover(service.pid, "--for", "2s", "--html", str(page), "--experiment", str(done.json_path))
    dom, _ = browse(chromium, f"file://{page}#focus=1")
    assert body_data(dom, "drawn") == "yes", dom[-2000:]
    data = json.loads(dom.partition('id="data" type="application/json">')[2].partition("<")[0])
    measured = {one["name"]: one for one in data["measured"]["targets"]}
    for target in done.document["results"]["progress"][0]["targets"]:
        one = measured[target["name"]]
        assert one["verdict"] == target["verdict"]
        assert abs(one["low"] - target["criticality"]["low"]) < 1e-6, (one, target)
        names = {data["tree"]["frames"][frame][0] for frame in one["frames"]}
        assert names == {target["name"].partition(":")[2]}, (one, names)
    bad = Run("discover", "--pid", str(service.pid), "--for", "1s", "--html", str(page),
              "--experiment", str(page))
    assert bad.status != 0 and str(page) in bad.err and page.stat().st_size > 10_000, bad.err


def test_budget() -> None:
    """What counting costs stays near what it may, on a library of 30,000 hot symbols."""
    folder = scratch()
    count = 30_000
    # In assembler: a compiler would take half a minute.
    source = "".join(
        f".type f{i}, @function\n.globl f{i}\n.p2align 4\nf{i}: push %rbx\nlea {i}(%rdi), %eax\n"
        f"pop %rbx\nret\n.size f{i}, .-f{i}\n" for i in range(count))
    table = "".join(f".quad f{i}\n" for i in range(count))
    (folder / "big.s").write_text(
        ".text\n" + source + ".data\n.globl all\n.type all, @object\nall:\n" + table
        + '.size all, .-all\n.section .note.GNU-stack,"",@progbits\n')
    (folder / "main.c").write_text(
        "#include <stdio.h>\nextern int (*all[])(int);\nint main(void) { puts(\"ready\");"
        f"fflush(stdout); for (unsigned i = 0;; i = (i + 1) % {count}) all[i](1); }}\n"
    )
    compiler = need("gcc")
    for command in (
        ["-shared", "-o", "libbig.so", "big.s"],
        ["-o", "main", "main.c", "./libbig.so"],
    ):
        subprocess.run([compiler, *command], cwd=folder, check=True)
    process = subprocess.Popen([str(folder / "main")], cwd=folder, stdout=subprocess.PIPE)
    try:
        assert process.stdout.readline() == b"ready\n"
        found, late = discover_and_wait(
            process.pid, "--for", "6s", "--budget", "10", "--native", "*libbig.so:f*", "--top", "0")
        found = found["native"]
        watched = found["watched"] + found["not_watched"] + found["refused"]
        assert watched >= count, found["watched"]
        assert len(found["functions"]) > 0
        assert found["added_cpu"] < 0.2 + late / 3, (found["added_cpu"], late)  # it counts for 3 s
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
#include <stdio.h>
#include <time.h>
#include <unistd.h>
static volatile unsigned sink;
static FILE *times;
static long now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1000000000L + t.tv_nsec;
}
__attribute__((noinline)) static void turn(unsigned n) { while (n--) sink += n; }
__attribute__((noinline)) void hot(void) { turn(3000); sink++; }
__attribute__((noinline)) void warm(void) { turn(1000); sink++; }
__attribute__((noinline)) void rare(void) { getppid(); sink++; }
/* A turn takes some us: in one that took 1 ms somebody else had the CPU, or the host had. */
static long worked(long ns) { return ns < 1000000 ? ns : 0; }
__attribute__((noinline)) void serve(unsigned i) {
    static long in_hot, in_warm, told;
    long start = now();
    hot();
    long middle = now();
    warm();
    long end = now();
    in_hot += worked(middle - start);
    in_warm += worked(end - middle);
    if (end > told + 1000000) {
        fprintf(times, "%ld %ld %ld\\n", told = end, in_hot, in_warm);
        fflush(times);
    }
    if (i % 1000 == 0) rare();
    sink++;
}
int main(int argc, char **argv) {
    times = fopen(argv[1], "w");
    for (unsigned i = 0;; i++) serve(i);
}
"""


def test_native_time_goes_where_it_goes() -> None:
    folder = scratch()
    (folder / "main.c").write_text(HOT)
    compiler = [need("gcc"), "-O2", "-fomit-frame-pointer", "-o", "main", "main.c"]
    subprocess.run(compiler, cwd=folder, check=True)
    process = subprocess.Popen([str(folder / "main"), str(folder / "times.txt")])
    collapsed, targets = folder / "stacks.txt", folder / "targets.txt"
    try:
        times = folder / "times.txt"
        wait_for(lambda: times.exists() and times.stat().st_size > 0, 10, "the first row")
        waiting = Waiting(process.pid, 500)
        found = discover(
            process.pid, "--for", "6s", "--native", "exe:*", "--collapsed", str(collapsed),
            "-o", str(targets), "--rate", "500",
        )  # fmt: skip
        lumps = waiting.stacks()
        stacks = found["stacks"]
        assert stacks["not_whole"] + stacks["failed"] <= 0.01 * stacks["all"], stacks
        counts = {"hot": 0, "warm": 0}
        for line in collapsed.read_text().splitlines():
            names = [frame.split(" (")[0] for frame in line.rpartition(" ")[0].split(";")]
            for name in counts:
                if name in names:
                    assert names[names.index(name) - 1] == "serve", names
                    counts[name] += int(line.rpartition(" ")[2])
        truth = widened(*true_share(times.read_text(), stacks),
                        lumps / sum(counts.values()))
        assert is_likely(counts["hot"], sum(counts.values()), *truth), (counts, truth)
        first = found["native"]["functions"][0]
        assert first["name"] == "turn", first
        assert first["calls_per_second"] > 0, first
        # Of what hot() and warm() take; what the clock and the file take is a matter of the host.
        assert first["active"] > 0.9 * sum(counts.values()), (first, counts)
        lines = [line for line in targets.read_text().splitlines() if line.startswith("+")]
        assert ":turn" in lines[0] and not any(":main" in line for line in lines), lines
    finally:
        process.kill()
        process.wait()


def counter(folder: pathlib.Path) -> tuple[pathlib.Path, mmap.mmap]:
    """A file that a program maps and counts its calls in."""
    path = folder / "count"
    path.write_bytes(bytes(4096))
    with path.open("r+b") as file:
        return path, mmap.mmap(file.fileno(), 4096)


# One function runs all the time and is called now and then, one very often; 20,000 are never called.
# Calls of large() take so long that a probe in each is well within the budget on any host.
FEW_OF_MANY = """
#include <fcntl.h>
#include <sys/mman.h>
static volatile unsigned sink;
__attribute__((noinline)) void small(void) { sink++; }
__attribute__((noinline)) void large(void) { for (unsigned i = 0; i < 400000; i++) small(); }
int main(int argc, char **argv) {
    int fd = open(argv[1], O_RDWR);
    volatile long *count = mmap(0, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    for (;;) { large(); ++*count; }
}
"""


class Rates:
    """How fast a count grows, by looks at it each 10 ms."""

    def __init__(self, count):
        self.seen: list[tuple[float, int]] = []  # seconds, and the count then
        self._count = count
        self._ends = threading.Event()
        self._thread = threading.Thread(target=self._look, daemon=True)

    def _look(self) -> None:
        while True:
            self.seen.append((time.monotonic(), self._count()))
            if self._ends.wait(0.01):
                return

    def __enter__(self) -> "Rates":
        self._thread.start()
        return self

    def __exit__(self, *_) -> None:
        self._ends.set()
        self._thread.join()

    def within(self, seconds: float) -> tuple[float, float]:
        """The least and the most a second, in any stretch that is so long."""
        rates, first = [], 0
        for at, count in self.seen:
            while self.seen[first + 1][0] <= at - seconds:
                first += 1
            begin, before = self.seen[first]
            if at - begin >= seconds:
                rates.append((count - before) / (at - begin))
        return min(rates), max(rates)

    def expect(self, one: dict, factor: float) -> tuple[float, float]:
        """That a function counted so many calls a second, which is done for a part of the time only:
        what runs beside it takes CPU from it, and not all of the time the same. Gives the bounds."""
        least, most = self.within(one["watched_ns"] / 1e9)
        assert least / factor < one["calls_per_second"] < most * factor, (least, most, one)
        return least, most


def test_what_runs_is_counted_and_what_does_not_is_one_number() -> None:
    folder = scratch()
    # In assembler, as a compiler would take long; each begins with an instruction that is stepped.
    never = "".join(
        f".globl never_{i}\n.type never_{i}, @function\nnever_{i}: lea {i}(%rdi), %eax\nret\n"
        f".size never_{i}, .-never_{i}\n" for i in range(20_000))
    (folder / "main.c").write_text(FEW_OF_MANY)
    (folder / "never.s").write_text('.section .note.GNU-stack,"",@progbits\n.text\n' + never)
    subprocess.run(
        [need("gcc"), "-O1", "-fno-inline", "-o", "main", "main.c", "never.s"], cwd=folder, check=True
    )
    path, shared = counter(folder)
    process = subprocess.Popen([str(folder / "main"), str(path)])
    targets = folder / "targets.txt"
    try:
        wait_for(lambda: struct.unpack_from("q", shared)[0] > 0, 10, "a call")
        with Rates(lambda: struct.unpack_from("q", shared)[0]) as rates:
            found, late = discover_and_wait(process.pid, "--for", "6s", "--budget", "5", "-o", str(targets))
        native = found["native"]
        calls = rates.seen[-1][1] - rates.seen[0][1]
        functions = {one["name"]: one for one in native["functions"]}
        small, large = functions["small"], functions["large"]
        assert {one["name"] for one in native["functions"][:2]} == {"small", "large"}, functions
        assert not large["in_moments"] and 0 < large["calls"] <= calls, (calls, large)
        _, most = rates.expect(large, 2)
        # Each call of it costs more than itself: known to be called a lot, and no more than that. How
        # often in a second is a matter of the CPU that the program had in that moment.
        assert small["in_moments"], small
        assert small["calls"] > 100 and small["calls_per_second"] < 500_000 * most, (most, small)
        assert native["added_cpu"] < 0.1 + late / 3, (native["added_cpu"], late)
        assert native["never_called"] > 0 and native["left_out"] >= 20_000, native
        assert "never_" not in json.dumps(native["functions"]) + targets.read_text()
    finally:
        process.kill()
        process.wait()


MATRICES = """
import mmap, struct, sys, numpy
file = open(sys.argv[1], "r+b")
shared = mmap.mmap(file.fileno(), 4096)
a = numpy.random.rand(150, 150)
n = 0
while True:
    a @ a
    n += 1
    struct.pack_into("q", shared, 0, n)
"""


# Takes a CPU before everything else, again and again for up to 20 ms.
HOG = """
import os, random, sys, time
os.sched_setaffinity(0, {int(sys.argv[1])})
os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1))
while True:
    until = time.perf_counter() + random.random() * 0.02
    while time.perf_counter() < until: pass
    time.sleep(random.random() * 0.02)
"""


@alone
def test_a_sleeping_thread_counts_for_its_time_however_late_the_ticks_are() -> None:
    sleeper = subprocess.Popen(["sleep", "1000"])
    hogs = [subprocess.Popen([sys.executable, "-c", HOG, str(cpu)]) for cpu in os.sched_getaffinity(0)]
    try:
        stacks = discover(sleeper.pid, "--for", "4s")["stacks"]
        periods = 99 * (stacks["to_ns"] - stacks["from_ns"]) / 1e9
        assert abs(stacks["all"] + stacks["failed"] - periods) <= 2, (periods, stacks)
    finally:
        for process in [sleeper, *hogs]:
            process.kill()
            process.wait()


def test_numpy() -> None:
    """The function of the BLAS that the samples show is counted."""
    python = "/usr/bin/python3"
    if subprocess.run([python, "-c", "import numpy"], capture_output=True).returncode != 0:
        raise Skip("python3-numpy is not installed")
    path, shared = counter(scratch())
    process = subprocess.Popen([python, "-c", MATRICES, str(path)])
    try:
        wait_for(lambda: struct.unpack_from("q", shared)[0] > 0, 30, "a product")
        with Rates(lambda: struct.unpack_from("q", shared)[0]) as rates:
            found = discover(process.pid, "--for", "6s")
        assert process.poll() is None, process.returncode
        gemm = found["native"]["functions"][0]
        assert "gemm" in gemm["name"], gemm
        assert gemm["active"] > 0.5 * found["stacks"]["active"], (gemm, found["stacks"])
        assert 0 < gemm["calls"] <= rates.seen[-1][1] - rates.seen[0][1], (rates.seen, gemm)
        rates.expect(gemm, 1.3)
    finally:
        process.kill()
        process.wait()


# Where the time goes is known: hash_it() half of the main thread's time, pack() the other half, in
# zlib; the second thread sleeps. Both end by what they have done, not by the clock: else what comes
# next would begin whenever a host takes the CPU away for a while, and its clocks are late then too.
KNOWN = """
import threading, time, zlib
data = bytes(range(256)) * 400
totals = [0, 0]
def took(index, function, rounds):
    start = time.thread_time_ns()
    function(rounds)
    totals[index] += time.thread_time_ns() - start
def hash_it(rounds):
    n = 0
    for _ in range(rounds): n += 1
def pack(rounds):
    for _ in range(rounds): zlib.adler32(data)
def by_c(rounds):
    sorted([1], key=lambda _: pack(rounds))
def in_ten_ms(function):
    def once():
        start = time.thread_time()
        function(1000)
        return time.thread_time() - start
    # An interrupt is booked to whom it meets, and lasts longer than these calls.
    return int(10 / min(once() for _ in range(20)))
def nap(): time.sleep(1000)
threading.Thread(target=nap, daemon=True).start()
hashes, packs = in_ten_ms(hash_it), in_ten_ms(pack)
def work():
    took(0, hash_it, hashes)
    took(1, by_c, packs)
    print(time.monotonic_ns(), *totals, flush=True)
print("ready", flush=True)
print(time.monotonic_ns(), 0, 0, flush=True)
while True: work()
"""


def test_one_picture_of_both_worlds() -> None:
    for python in pythons.find():
        collapsed = scratch() / "stacks.txt"
        process = python.start(KNOWN)
        waiting = Waiting(process.pid)
        found = discover(
            process.pid, "--for", "4s", "--top", "0", "--native", "libz.so*:adler32*",
            "--collapsed", str(collapsed),
        )  # fmt: skip
        lumps = waiting.stacks()
        stacks = found["stacks"]
        assert stacks["not_whole"] + stacks["failed"] <= 0.02 * stacks["all"] + lumps, (lumps, stacks)
        lines = collapsed.read_text().splitlines()
        counts = {line.rpartition(" ")[0]: int(line.rpartition(" ")[2]) for line in lines}
        assert sum(counts.values()) == stacks["all"]

        def held(*parts: str) -> int:
            """The stacks in which these come in this order, outermost first."""
            number = 0
            for stack, count in counts.items():
                frames = iter(stack.split(";"))
                number += count if all(any(p in f for f in frames) for p in parts) else 0
            return number

        # One sleeps all of the time; the other works for as long as it has a CPU.
        napping = held("nap (", "libc.so")
        periods = 99 * (stacks["to_ns"] - stacks["from_ns"]) / 1e9
        assert 0.9 * periods < napping <= periods + 2, (python.name, periods, counts)
        hashing, packing = held("work (", "hash_it ("), held("work (", "by_c (")
        time.sleep(0.1)
        process.kill()
        written = process.stdout.read().decode()
        rows = [[int(word) for word in line.split()] for line in written.split("\n")[:-1]]
        within = [row[1:] for row in rows if stacks["from_ns"] <= row[0] <= stacks["to_ns"]]
        worked = 99 * (sum(within[-1]) - sum(within[0])) / 1e9  # periods, of CPU time
        others = stacks["all"] - napping
        # What it waits for a CPU is booked to the ns, and it is hit by so many of the clock's ticks as chance
        # has it: with both it may have more periods than there are.
        share = min(1, worked / periods)
        most = periods + 2 + 5 * (periods * share * (1 - share)) ** 0.5
        assert 0.8 * worked <= others + lumps and others <= most, (worked, others, most, lumps, stacks)
        truth = widened(*true_share(written, stacks), lumps / (hashing + packing))
        assert is_likely(hashing, hashing + packing, *truth), (python.name, truth, counts)
        in_zlib = held("work (", "by_c (", "<lambda> (", "pack (", "(libz.so")
        assert in_zlib + lumps > 0.8 * packing, (python.name, lumps, counts)
        # C code between the Python functions stays where it is, in each stack that is told to be whole.
        called, between = held("by_c (", "<lambda> ("), held("by_c (", "python3", "<lambda> (")
        print(f"  {packing} stacks in by_c(), {called} in what it calls, {between} with C between, "
              f"{in_zlib} in zlib, {stacks['not_whole']} not whole")
        assert between >= called - stacks["not_whole"], (python.name, counts)
        top = [one["function"] for one in found["python"]["functions"][:2]]
        assert sorted(top) == ["hash_it", "pack"], top
        assert held("hash_it (", "libz.so") == held("nap (", "libz.so") == 0
        assert held("pack (", "hash_it (") == held("libz.so", "pack (") == 0
        adler = [f for f in found["native"]["functions"] if f["name"].startswith("adler32")]
        assert any(one["calls"] > 0 for one in adler), found["native"]
        assert stacks["own_cpu"] < 0.2, stacks
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


FIGHTERS = """
import threading, time
go = threading.Event()
def spin():
    go.wait()
    while True: pass
for _ in range(100): threading.Thread(target=spin, daemon=True).start()
go.set()
print("ready", flush=True)
time.sleep(1000)
"""


def test_threads_that_fight_for_the_interpreter_are_all_counted() -> None:
    """Each of them sleeps for the 5 ms of a turn, and runs for a moment to ask for the next."""
    found = pythons.find()
    for python in {found[0], found[-1]}:
        process = python.start(FIGHTERS)
        time.sleep(0.5)
        stacks = discover(process.pid, "--for", "4s")["stacks"]
        process.kill()
        process.wait()
        print(f"  Python {python.name}: {stacks}")
        times = 101 * 99 * (stacks["to_ns"] - stacks["from_ns"]) / 1e9
        assert abs(stacks["all"] + stacks["failed"] - times) < 0.05 * times, (times, stacks)
        assert stacks["failed"] < 0.02 * times, (times, stacks)


def test_in_a_large_tree_calls_are_counted_where_it_runs() -> None:
    tree = subprocess.Popen(
        [need("/usr/bin/python3"), str(LARGE_TREE), "1000", "40", "80"],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    _leftovers.append(tree.kill)
    pids = {int(word) for word in tree.stdout.readline().split()}
    assert len(pids) == 40, pids
    waiting = Waiting(tree.pid)
    found = discover(tree.pid, "--for", "4s")
    lumps = waiting.stacks()
    native = found["native"]
    assert native["processes_not_watched"] == 32, native
    counted = {int(pid) for one in native["functions"] for pid in one.get("processes", ())}
    assert counted <= pids and len(counted) <= 8, (counted, pids)
    assert tree.pid in counted, (tree.pid, counted, native["functions"])
    # The one thread that works without pause: all others together are a fifth of it at most.
    active = {one["function"]: one["active"] for one in found["python"]["functions"]}
    assert active["heavy"] + lumps > active["light"] > 0, (lumps, active)
    tree.stdin.close()
    tree.wait(timeout=30)


# What it runs is read from its line: an entrypoint that waits for its turn.
BECOMES = 'read line; exec "$0" -c "$1"'
SPINS = """
def spin():
    while True: sum(range(1000))
spin()
"""


def test_a_program_that_becomes_another_is_seen_as_what_it_is() -> None:
    shell = os.path.realpath("/bin/sh")
    process = subprocess.Popen([shell, "-c", BECOMES, need("/usr/bin/python3"), SPINS],
                               stdin=subprocess.PIPE)  # fmt: skip
    _leftovers.append(process.kill)
    survey = subprocess.Popen(
        [SPEEDBUMP, "discover", "--pid", str(process.pid), "--json", "--for", "8s"],
        stdout=subprocess.PIPE, text=True)
    _leftovers.append(survey.kill)

    def is_sampled() -> bool:
        """Whether what the shell maps is open."""
        for link in pathlib.Path(f"/proc/{survey.pid}/fd").iterdir():
            with contextlib.suppress(OSError):
                if os.readlink(link) == shell:
                    return True
        return False

    wait_for(is_sampled, 30, "the shell to be sampled")
    process.stdin.write(b"\n")
    process.stdin.flush()
    found = json.loads(survey.communicate(timeout=120)[0])
    process.kill()
    process.wait()
    spins = [one for one in found["python"]["functions"] if one["function"] == "spin"]
    assert spins and spins[0]["active"] > 0, found


def listing_of(pid: int, *arguments: str) -> Run:
    done = Run("list", "--pid", str(pid), *arguments)
    if "no core is built" in done.err:
        raise Skip(done.err)
    assert done.status == 0, done
    return done


def test_python_functions_are_listed() -> None:
    for python in pythons.find():
        process = python.start(SHOP)

        def listed(*arguments: str) -> list[str]:
            return listing_of(process.pid, *arguments).out.splitlines()

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
            assert "__main__:spin" in listing_of(process.pid, "__main__:spin").out
            done = Run("attach", "--pid", str(process.pid), "--duration=10ms", path)
            assert done.status == 0 and "another session" not in done.err, done
        process.kill()
        process.wait()


if __name__ == "__main__":
    main(globals())
