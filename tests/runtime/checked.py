# SPDX-License-Identifier: MIT
"""Programs of others that check their own results (tests/programs/checked): each tells the digest of
what it has done for each line that it reads. Whatever looks at them or slows them, the digest and how
they end on SIGTERM stay the same."""

import contextlib
import dataclasses
import pathlib
import signal
import subprocess
import time
from collections.abc import Callable, Iterable, Iterator

from harness import Session, Until, leave_none, scratch

LEAST = 1000  # calls that must be counted
ENOUGH = 60  # s, after which no other round is begun: a hit takes 0.5 us on one host, 20 us on another
CHECKED = pathlib.Path(__file__).resolve().parents[1] / "programs" / "checked"


@dataclasses.dataclass
class Program:
    command: list[str]
    files: tuple[str, ...]  # all functions of these are probed
    rounds: int = 3


class Conversation:
    """A program that answers each line with one."""

    def __init__(self, program: Program):
        self._process = subprocess.Popen(program.command, stdin=subprocess.PIPE, text=True,
                                         stdout=subprocess.PIPE, cwd=scratch())
        leave_none(self._kill)
        self.pid = self._process.pid

    def ask(self) -> str:
        self._process.stdin.write("round\n")
        self._process.stdin.flush()
        answer = self._process.stdout.readline()
        assert answer, f"{self._process.args} ended with {self._process.wait()}"
        return answer.strip()

    @contextlib.contextmanager
    def busy(self, reference: str) -> Iterator[None]:
        """The program works all the time; each of its answers must be the reference."""
        answers: list[str] = []
        worker = Until(lambda _: answers.append(self.ask()))
        try:
            yield
        finally:
            worker.end()
        assert answers and set(answers) == {reference}, (answers, reference)

    def end(self) -> int:
        self._process.send_signal(signal.SIGTERM)
        return self._process.wait(timeout=30)

    def _kill(self) -> None:
        self._process.kill()
        self._process.wait()


def undisturbed(program: Program) -> tuple[str, int]:
    """What it says where nothing is done to it, and its exit status after SIGTERM."""
    plain = Conversation(program)
    answer = plain.ask()
    return answer, plain.end()


@contextlib.contextmanager
def all_probed(files: Iterable[str], pid: int, *options: str) -> Iterator[Callable[[], bool]]:
    """Every function of these files that can be probed is, with a delay of 0; some must be called.
    Yields what tells whether they have been."""
    targets = "".join(f"+{file}:* delay=0ns\n" for file in files)
    with Session(targets, "-q", *options, pid=pid) as session:
        yield lambda: _counted(session.documents[-1]) > LEAST
        final = session.stop()
    counted = _counted(final)
    print(f"  {len(final['targets'])} functions, {counted} calls", flush=True)
    assert counted > LEAST, counted


def _counted(document: dict) -> int:
    return sum(one["calls"] for one in document["targets"])


def compare(program: Program, *options: str) -> None:
    """What a program says and how it ends, with all functions of its libraries probed and without."""
    reference, status = undisturbed(program)
    target = Conversation(program)
    assert target.ask() == reference, "its answers differ from run to run"
    with all_probed(program.files, target.pid, *options) as has_called:
        begun = time.monotonic()
        for done in range(program.rounds):
            if done and time.monotonic() - begun > ENOUGH:
                break
            assert target.ask() == reference
        # It takes the session up to some seconds to see that nobody else maps them; until then processes
        # that live for milliseconds are missed (docs/targets-file.md, new processes).
        for _ in range(50):
            if has_called():
                break
            assert target.ask() == reference
    assert target.ask() == reference
    assert target.end() == status
