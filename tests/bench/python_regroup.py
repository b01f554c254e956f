# SPDX-License-Identifier: MIT
"""What it costs a Python program that its functions are told apart anew while the hooks are in.

  python_regroup.py CORE [FUNCTIONS]    under the interpreter that CORE is for

The program has FUNCTIONS functions (20,000), of which it calls 300 in turn. Printed: how long a
program without hooks and one with hooks but no change takes for a round at most, then the same while
groups change, by how many patterns; how long the interpreter's lock was held for a change, and how
long it took until the answer.
"""

import importlib.machinery
import importlib.util
import json
import pathlib
import statistics
import sys
import threading
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "python"))
import loader  # noqa: E402

ROUNDS = 20


def load_core(path: str):
    found = importlib.machinery.ExtensionFileLoader("_core", path)
    spec = importlib.util.spec_from_file_location("_core", path, loader=found)
    core = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(core)
    return core


def make_functions(count: int) -> list:
    scope: dict = {"__name__": "many"}
    exec("\n".join(f"def f{i}(): pass" for i in range(count)), scope)
    return [scope[f"f{i}"] for i in range(count)]


class Work:
    """Calls functions; knows the longest round, in us, and how many there were a second."""

    def __init__(self, functions: list) -> None:
        self.functions = functions
        self.ends = False
        self.begin()
        self.thread = threading.Thread(target=self.run)
        self.thread.start()

    def begin(self) -> None:
        self.longest, self.rounds, self.since = 0, 0, time.perf_counter_ns()

    def run(self) -> None:
        last = time.perf_counter_ns()
        while not self.ends:
            for function in self.functions:
                function()
            now = time.perf_counter_ns()
            self.longest, self.rounds, last = max(self.longest, now - last), self.rounds + 1, now

    def told(self) -> dict:
        seconds = (time.perf_counter_ns() - self.since) / 1e9
        return {"longest_us": self.longest // 1000, "rounds_per_s": round(self.rounds / seconds)}


def main() -> None:
    core, count = load_core(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 20000
    functions = make_functions(count)
    work = Work(functions[:: max(1, count // 300)])
    time.sleep(1)
    result = {"python": sys.version.split()[0], "functions": count}
    work.begin()
    time.sleep(2)
    result["plain"] = work.told()
    table, channel = loader.Table(128), loader.Channel()
    server = threading.Thread(target=core.serve, args=(channel.other.detach(),))
    server.start()
    begin = time.perf_counter_ns()
    work.begin()
    message = channel.begin(table, "many:*\n", lines=[0])
    matched = len(message["matched"])
    while matched < count:
        matched += len(channel.receive()["matched"])
    result["attach"] = {"ms": (time.perf_counter_ns() - begin) / 1e6, **work.told()}
    table.arm()
    time.sleep(1)
    work.begin()
    time.sleep(2)
    result["hooked"] = work.told()
    number = 0
    for name, groups in (
        ("of 8 globs", [["many", False, f"f{i}*", True, i] for i in range(8)]),
        ("of 128 names", [["many", False, f"f{i}", False, i] for i in range(128)]),
        ("of all names", [["many", False, f"f{i}", False, i % 128] for i in range(count)]),
    ):
        held, answered, stalls = [], [], []
        for _ in range(ROUNDS):
            number += 1
            work.begin()
            begin = time.perf_counter_ns()
            channel.groups(number, [0], groups)
            message = channel.receive()
            answered.append((time.perf_counter_ns() - begin) / 1e6)
            assert message["op"] == "grouped" and "reason" not in message, message
            table.arm(grouping=number)
            held.append(message["held_ns"] / 1e3)
            time.sleep(0.1)
            stalls.append(work.told()["longest_us"])
        result["regrouped " + name] = {
            "held_us": round(statistics.median(held), 1), "held_most_us": round(max(held), 1),
            "answer_ms": round(statistics.median(answered), 2),
            "longest_round_us": statistics.median(stalls), "longest_of_all_us": max(stalls),
        }
    channel.send({"op": "detach"})
    server.join(10)
    work.ends = True
    work.thread.join()
    print(json.dumps(result, indent=1))


if __name__ == "__main__":
    main()
