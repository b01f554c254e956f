#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""What looking at a large tree costs, and how long it takes until all of its functions are hooked.

  scale.py SPEEDBUMP [ROUNDS]    as root

The tree (tests/programs/large_tree.py) has 200 processes, 1,000 threads, and in each process 20,000 Python
functions and a library of 250,000 native ones. ROUNDS (3) times, in turns: nothing, `discover` for 10 and 60 s, and 10 s with next to
no counting of calls, and `attach` of all Python functions with a delay of 0, to the process that works and to all 200. Costs are CPU time
of the program, which other work on the host changes little.
"""

import contextlib
import json
import os
import pathlib
import signal
import statistics
import subprocess
import sys
import tempfile
import time

PROGRAM = pathlib.Path(__file__).parents[1] / "programs" / "large_tree.py"
FUNCTIONS, PROCESSES, THREADS, SYMBOLS = 20_000, 200, 1_000, 250_000
# A function of as many instructions as a short one of C has.
BODIES = {
    "x86_64": "push %rbp\nmov %rsp, %rbp\nlea 1(%rdi), %eax\npop %rbp\nret",
    "aarch64": "stp x29, x30, [sp, -16]!\nmov x29, sp\nadd w0, w0, 1\nldp x29, x30, [sp], 16\nret",
}


def make_library(folder: str) -> str:
    """In assembler, as a compiler would take minutes."""
    body = BODIES[os.uname().machine]
    source, library = pathlib.Path(folder) / "many.s", pathlib.Path(folder) / "libmany.so"
    with source.open("w") as file:
        file.write('.section .note.GNU-stack,"",%progbits\n.text\n')
        for number in range(SYMBOLS):
            name = f"_ZN4many7part{number // 1000:03}8step{number % 1000:04}ERKNS_5ThingEi"
            file.write(f".globl {name}\n.type {name}, %function\n{name}:\n.cfi_startproc\n{body}\n"
                       f".cfi_endproc\n.size {name}, .-{name}\n")
    subprocess.run(["gcc", "-shared", "-o", str(library), str(source)], check=True)
    return str(library)


class Tree:
    def __init__(self, library: str):
        self._process = subprocess.Popen(
            ["/usr/bin/python3", str(PROGRAM), str(FUNCTIONS), str(PROCESSES), str(THREADS), library],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.pids = [int(word) for word in self._process.stdout.readline().split()]
        assert len(self.pids) == PROCESSES, self.pids
        self._ask()

    def _ask(self) -> dict:
        self._process.stdin.write("\n")
        self._process.stdin.flush()
        return json.loads(self._process.stdout.readline())

    def _sleepers_ns(self) -> int:
        """The CPU time of all processes but the first."""
        spent = 0
        for pid in self.pids[1:]:
            for path in pathlib.Path(f"/proc/{pid}/task").glob("*/schedstat"):
                spent += int(path.read_text().split()[0])
        return spent

    @contextlib.contextmanager
    def watched(self, into: list):
        """What a unit and a waking up cost while the block ran, and the longest time without a unit."""
        before = self._sleepers_ns()
        self._ask()
        yield
        told = self._ask()
        into.append({"unit_us": told["cpu_ns"] / told["units"] / 1e3,
                     "wake_us": (self._sleepers_ns() - before) / max(1, told["wakes"]) / 1e3,
                     "longest_ms": told["longest_ns"] / 1e6})

    def end(self) -> None:
        self._process.stdin.close()
        self._process.wait()


def run(*command: str) -> tuple[str, float, float]:
    """What it wrote, how long it took, and its CPU time with that of its children."""
    with tempfile.TemporaryFile("w+") as out:
        start = time.monotonic()
        process = subprocess.Popen(command, stdout=out, stderr=subprocess.DEVNULL)
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        took = time.monotonic() - start
        assert process.returncode == 0, (command, process.returncode)
        out.seek(0)
        return out.read(), took, usage.ru_utime + usage.ru_stime


def tasks(pid: int) -> set[str]:
    return set(os.listdir(f"/proc/{pid}/task"))


def attach(speedbump: str, pid: int, *options: str) -> tuple[float, float, float]:
    """How long it took until all was armed, what that cost, and how long our own thread in the process `pid`
    waited for a CPU meanwhile, in ms: it may have held the interpreter's lock then."""
    before = tasks(pid)
    with tempfile.NamedTemporaryFile("w", suffix=".txt") as targets:
        targets.write("*:* delay=0ns\n")
        targets.flush()
        start = time.monotonic()
        process = subprocess.Popen(
            [speedbump, "attach", "--json", "-q", "--stats=50ms", *options, "--pid", str(pid),
             targets.name], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        process.stdout.readline()  # what matches
        process.stdout.readline()  # the first sample: it is armed
        took = time.monotonic() - start
        fields = pathlib.Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()
        cpu = (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
        waited = sum(int(pathlib.Path(f"/proc/{pid}/task/{task}/schedstat").read_text().split()[1])
                     for task in tasks(pid) - before)
        process.send_signal(signal.SIGINT)
        process.communicate()
        assert process.returncode == 0, process.returncode
        return took, cpu, waited / 1e6


def show(values: list[float], digits: int = 1) -> str:
    return (f"{statistics.median(values):.{digits}f} ({min(values):.{digits}f} to "
            f"{max(values):.{digits}f})")


def show_effect(what: str, on: list[dict], off: list[dict]) -> None:
    for key, name in (("unit_us", "CPU time of a unit"), ("wake_us", "CPU time of a waking up")):
        changes = [100 * (one[key] / other[key] - 1) for one, other in zip(on, off)]
        print(f"{what}: {name} {show([one[key] for one in on])} us, without "
              f"{show([one[key] for one in off])} us: {show(changes)} %")
    print(f"{what}: longest time without a unit, less waiting for a CPU "
          f"{show([one['longest_ms'] for one in on], 2)} ms, without "
          f"{show([one['longest_ms'] for one in off], 2)} ms", flush=True)


def main() -> None:
    speedbump, rounds = sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else 3
    off: list[dict] = []
    surveys = {"discover for 10 s": ["--for=10s"], "discover for 60 s": ["--for=60s"],
               "discover for 10 s, --budget 0.1": ["--for=10s", "--budget=0.1"]}  # fmt: skip
    results: dict[str, list] = {name: [] for name in (*surveys, "one", "all")}
    costs: dict[str, list] = {name: [] for name in results}
    with tempfile.TemporaryDirectory() as folder:
        tree = Tree(make_library(folder))
        for _ in range(rounds):
            with tree.watched(off):
                time.sleep(10)
            for name, options in surveys.items():
                with tree.watched(results[name]):
                    costs[name].append(run(speedbump, "discover", "--json", *options,
                                           "--pid", str(tree.pids[0])))
            for name, options in (("one", ["--no-children"]), ("all", [])):
                with tree.watched(results[name]):
                    costs[name].append(attach(speedbump, tree.pids[0], *options))
        first, _, _ = run(speedbump, "discover", "--json", "--for=5s", "--pid", str(tree.pids[0]))
        tree.end()
    for what in surveys:
        found = costs[what]
        stacks = json.loads(found[0][0])["stacks"]
        print(f"{what}: took {show([took for _, took, _ in found])} s, "
              f"{show([cpu for _, _, cpu in found], 2)} s of CPU, "
              f"{show([100 * cpu / took for _, took, cpu in found])} % of one; sampling took "
              f"{show([100 * json.loads(out)['stacks']['own_cpu'] for out, _, _ in found])} % of a CPU; "
              f"{stacks['all']} stacks, {stacks['failed']} failed")
        show_effect(what, results[what], off)
    ranked = json.loads(first)["python"]["functions"][:3]
    print("discover for 5 s, active stacks:",
          ", ".join(f"{one['function']} {one['active']}" for one in ranked))
    for name, what in (("one", "attach to one process"), ("all", "attach to all processes")):
        print(f"{what}: armed after {show([took for took, _, _ in costs[name]], 2)} s, "
              f"{show([cpu for _, cpu, _ in costs[name]], 2)} s of CPU, "
              f"our thread in the first process waited {show([ms for _, _, ms in costs[name]])} ms for a CPU")
        show_effect(what, results[name], off)


if __name__ == "__main__":
    main()
