# SPDX-License-Identifier: MIT
"""The lines of docs/patterns.md, on the frameworks that this host has: each is called by every unit of
work, makes it longer, and each progress point ticks once a unit."""

import contextlib
import fnmatch
import json
import os
import pathlib
import re
import shlex
import socket
import time
from collections.abc import Callable

import frameworks
from harness import MS, Run, Session, Skip, main, targets_file

DOCUMENT = pathlib.Path(__file__).resolve().parents[2] / "docs" / "patterns.md"
ROUNDS = 3
DELAY = 25 * MS  # much more than a unit takes
MOST_ROUNDS = 200  # until a line with every= delays


class Section:
    """What the document has of one framework."""

    def __init__(self, name: str, head: str, text: str, body: str):
        self.name, self.head, self.text, self.body = name, head, text, body
        self.progress = [
            word.strip("'") for word in re.findall(r"--progress[ =](\S+)", body)]

    @property
    def lines(self) -> dict[int, str]:
        """The targets lines by number, as speedbump takes them: without comments."""
        bare = {number: re.sub(r"(^|\s)#.*", "", line).strip()
                for number, line in enumerate(self.text.splitlines(), 1)}
        return {number: line for number, line in bare.items() if line and line[0] not in "!@"}


def sections() -> dict[str, Section]:
    found: dict[str, Section] = {}
    for part in re.split(r"^## ", DOCUMENT.read_text(), flags=re.M)[1:]:
        for name, text in re.findall(r"^```targets (\S+)\n(.*?)^```$", part, re.M | re.S):
            assert name not in found, f"two blocks of {name}"
            found[name] = Section(name, part.partition("\n")[0], text, part)
    return found


def as_target(progress: str) -> str | None:
    """A line that counts what the progress point counts, where it is a function."""
    world, _, rest = progress.partition(":")
    return {"python": rest, "native": "+" + rest}.get(world)


class Live:
    """A session and its socket."""

    def __init__(self, session: Session):
        self._stream = socket.socket(socket.AF_UNIX)
        self._stream.connect(f"/run/speedbump/{session.process.pid}")
        self._answers = self._stream.makefile()

    def ask(self, request: str) -> dict:
        self._stream.sendall(request.encode() + b"\n")
        answer = json.loads(self._answers.readline())
        assert answer["ok"], (request, answer)
        return answer

    def set(self, line: str, delay_ns: int) -> None:
        quoted = line.replace("\\", "\\\\").replace('"', '\\"')
        self.ask(f'set "{quoted}" delay={delay_ns}ns')

    def counts(self, counter: str) -> dict[int, int]:
        """The calls, or the delays, of each line so far."""
        result: dict[int, int] = {}
        for one in self.ask("status")["session"]["targets"]:
            result[one["line"]] = result.get(one["line"], 0) + one[counter]
        return result


def time_of_a_delayed_unit(live: Live, number: int, unit: Callable[[], object]) -> int:
    """The ns of the first unit in which the line delayed a call."""
    before = live.counts("delays").get(number, 0)
    for _ in range(MOST_ROUNDS):
        start = time.monotonic_ns()
        unit()
        spent = time.monotonic_ns() - start
        if live.counts("delays").get(number, 0) > before:
            return spent
    raise AssertionError(f"no call was delayed in {MOST_ROUNDS} units")


def prove(name: str, start: Callable[[], contextlib.AbstractContextManager]) -> None:
    section = sections()[name]
    lines = section.lines
    points = {point: line for point in section.progress if (line := as_target(point))}
    text = section.text
    for line in points.values():
        if line not in lines.values():
            text += line + "\n"
            lines = {**lines, len(text.splitlines()): line}
    assert lines, f"no lines of {name} in {DOCUMENT}"
    with start() as program:
        program.unit()
        with Session(text, "--delay=0ns", "--missing=error", pid=program.pid) as session:
            live = Live(session)
            program.unit()  # Python functions are matched when they first run
            before = live.counts("calls")
            for _ in range(ROUNDS):
                program.unit()
            after = live.counts("calls")
            called = {number: after.get(number, 0) - before.get(number, 0) for number in lines}
            print("  " + ", ".join(f"{line} {called[number] / ROUNDS:g}"
                                   for number, line in lines.items()), flush=True)
            if any("no core is built" in warning for warning in session.warnings):
                raise Skip("".join(session.warnings).strip())
            uncalled = [lines[number] for number, calls in called.items() if calls < ROUNDS]
            assert not uncalled, f"not called by each unit: {uncalled}"
            for point, line in points.items():
                ticks = [called[number] for number, one in lines.items() if one == line]
                assert ticks in ([ROUNDS], [ROUNDS * program.requests]), (point, ticks)
            for number, line in section.lines.items():
                live.set(line, DELAY)
                spent = time_of_a_delayed_unit(live, number, program.unit)
                live.set(line, 0)
                assert spent > DELAY * 0.97, f"{line}: a unit takes {spent} ns"
            program.unit()
            session.stop()


def test_flask() -> None:
    prove("flask", frameworks.flask)


def test_django() -> None:
    prove("django", frameworks.django)


def test_fastapi() -> None:
    prove("fastapi", frameworks.fastapi)


def test_celery() -> None:
    prove("celery", frameworks.celery)


def test_asyncio() -> None:
    prove("asyncio", frameworks.asyncio)


def test_numpy() -> None:
    prove("numpy", frameworks.numpy)


def test_databases() -> None:
    prove("databases", frameworks.database_client)


def test_pytorch() -> None:
    prove("pytorch", frameworks.pytorch)


def test_nginx() -> None:
    prove("nginx", frameworks.nginx_server)


def test_redis() -> None:
    prove("redis", frameworks.redis_server)


def test_postgresql() -> None:
    prove("postgresql", frameworks.database_server)


def test_openssl() -> None:
    prove("openssl", frameworks.openssl)


def test_libc() -> None:
    prove("libc", frameworks.libc)


def test_all_lines_are_read_and_all_sections_say_what_they_were_tried_on() -> None:
    """Also those of frameworks that no test has: `check` takes them, and they do not claim more."""
    tried = {name.removeprefix("test_") for name in globals() if name.startswith("test_")}
    for name, section in sections().items():
        done = Run("check", "--json", targets_file(section.text), "--exe", frameworks.PYTHON)
        read = {one["line"] for one in done.final()["lines"]}
        assert read >= set(section.lines), (name, done)
        says = re.search(r"^(Tried on|Not tried)", section.body, re.M)
        assert says, f"{section.head} does not say what it was tried on"
        assert (says[0] == "Tried on") == (name in tried), (name, says[0])


def test_the_table_says_what_the_sections_say() -> None:
    """Its progress points are theirs, and each of its patterns is one of their lines or a wider one."""
    by_link = {re.sub("[^a-z0-9 ]", "", section.head.lower()).replace(" ", "-"): section
               for section in sections().values()}
    rows = re.findall(r"^\| \[[^]]+\]\(#(\S+)\) \|(.*)\| `(\S+)` \|$", DOCUMENT.read_text(), re.M)
    assert {link for link, *_ in rows} == set(by_link), (rows, by_link)
    for link, patterns, point in rows:
        section = by_link[link]
        assert point in section.progress, (link, point, section.progress)
        lines = [line.split()[0] for line in section.lines.values()]
        names = [line.partition(":")[2] if line[0] == "+" else line for line in lines]
        for pattern in re.findall("`([^`]+)`", patterns):
            assert fnmatch.filter(names, pattern), (link, pattern, names)


def test_the_worked_commands_are_understood() -> None:
    """All but what is appended to them: a progress point that is none."""
    text = DOCUMENT.read_text().replace("\\\n", " ")
    commands = re.findall(r"^\$ speedbump experiment (.*)$", text, re.M)
    assert len(commands) >= len(sections()), commands
    for command in commands:
        words = shlex.split(re.sub(r"\$\([^)]*\)|\bPID\b", str(os.getpid()), command))
        words[-1:] = ["--progress", "native:nothing", targets_file("")]
        done = Run("experiment", *words)
        assert done.status == 2 and "'native:nothing' is not" in done.err, (command, str(done))


if __name__ == "__main__":
    main(globals())
