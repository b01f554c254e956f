# SPDX-License-Identifier: MIT
"""What the runtime tests share: programs to slow, sessions that slow them, and a runner.

What else the machine does may spoil no test: a delay is at least what was asked for by the clock, and
at most that by the CPU time it took, whoever else wants the CPU; and what a program must do soon it
must do soon but for the time in which it waited for a CPU (`Patience`).
"""

import atexit
import contextlib
import ctypes
import functools
import json
import os
import pathlib
import platform
import shutil
import signal
import socket
import statistics
import struct
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Callable, Iterator

from services import Missing, children, need, program_below, wait_for  # noqa: F401 (for the tests)

_BUILD = pathlib.Path(__file__).resolve().parent.parent.parent / "build"
SPEEDBUMP = os.environ.get("SPEEDBUMP_BINARY", str(_BUILD / "speedbump"))
_BUILT = pathlib.Path(os.environ.get("SPEEDBUMP_PROGRAMS", _BUILD / "programs"))
BUILD = _BUILT.parent


def scratch() -> pathlib.Path:
    """A new folder that goes away when the test program ends."""
    folder = pathlib.Path(tempfile.mkdtemp(prefix="speedbump-test-"))
    folder.chmod(0o755)
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder


# A copy of one's own: what a session does depends on who else maps a file, and tests run beside others.
PROGRAMS = pathlib.Path(shutil.copytree(_BUILT, scratch() / "programs"))
PUPPET = str(PROGRAMS / "puppet")
FORKSTORM = str(PROGRAMS / "forkstorm")
LIBRARY = str(PROGRAMS / "libslowlib.so")
NOTHING_RAN = 77

MS = 1_000_000  # ns
# In an emulated machine all processors take turns on one of the host: what the kernel charges a
# process another may have had, and all it does takes long.
EMULATED = os.environ.get("SPEEDBUMP_TEST_EMULATED") == "1"

_leftovers: list[Callable[[], None]] = []  # of the test that runs


def leave_none(clean_up: Callable[[], None]) -> None:
    """Ends something that a test has started, when the test ends, however that may be."""
    _leftovers.append(clean_up)


class Skip(Missing):
    """Raised by a test that this host cannot run, with the reason."""


def need_jumps() -> None:
    """Skips where the in-process engine is refused, whatever it is asked for."""
    if platform.machine() != "x86_64":
        raise Skip("the in-process engine is for x86-64")


def on_each_clock(test: Callable[[], None]) -> Callable[[], None]:
    """Marks a test of the in-process engine that is run with each clock of its hooks: the time stamp
    counter where the kernel trusts it, and the vDSO."""

    @functools.wraps(test)
    def run() -> None:
        sources = pathlib.Path("/sys/devices/system/clocksource/clocksource0/available_clocksource")
        if "tsc" in sources.read_text().split():
            test()
        os.environ["SPEEDBUMP_WITHOUT"] = "tsc"
        try:
            test()
        finally:
            del os.environ["SPEEDBUMP_WITHOUT"]

    return run


def campaign(test: Callable[[], None]) -> Callable[[], None]:
    """Marks a test that runs for minutes: `scripts/test.sh --long` runs it, or its name."""
    test.is_campaign = True
    return test


def alone(test: Callable[[], None]) -> Callable[[], None]:
    """Marks a test beside which no other runs: it judges the pace of a program that wants all CPUs, or
    takes one from all."""
    return test


# --- programs to slow


class Puppet:
    """A tests/programs/puppet process and the line that it hears on."""

    def __init__(self, pid: int, stream, process: subprocess.Popen | None = None):
        self.pid = pid
        self.process = process
        self._stream = stream

    def ask(self, command: str) -> str:
        self.send(command)
        return self.hear()

    def send(self, command: str) -> None:
        self._stream[1].write(command + "\n")
        self._stream[1].flush()

    def hear(self) -> str:
        line = self._stream[0].readline().strip()
        if line.startswith("error"):
            raise RuntimeError(line)
        return line

    def call(self, name: str, count: int) -> float:
        """Calls the function, gives ns per call."""
        return int(self.ask(f"call {name} {count}")) / count

    def each(self, name: str, count: int, pause_us: int = 0) -> list[int]:
        """Calls the function, gives the ns of each call."""
        return [int(word) for word in self.ask(f"each {name} {count} {pause_us}").split()]

    def cost(self, name: str, count: int, spin_ns: int = 0) -> list[tuple[int, int]]:
        """Calls the function after as long a spin, gives the ns and the ns of CPU time of each call."""
        words = [int(word) for word in self.ask(f"cost {name} {count} {spin_ns}").split()]
        return list(zip(words[:count], words[count:]))

    def births(self, count: int, name: str) -> list[int]:
        """Makes children, gives the ns of the first call of each."""
        return [int(word) for word in self.ask(f"births {count} {name}").split()]

    def offspring(self, command: str) -> "Puppet":
        """child, orphan or newpid: another puppet, a descendant of this one."""
        path = str(scratch() / "s")
        listener = socket.socket(socket.AF_UNIX)
        listener.bind(path)
        os.chmod(path, 0o777)  # whoever the puppet is
        listener.listen()
        self.ask(f"{command} {path}")
        connection, _ = listener.accept()
        listener.close()
        stream = connection.makefile("r"), connection.makefile("w")
        # Its own idea, and its parent's, may be of another PID namespace.
        credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)
        child = Puppet(struct.unpack("3i", credentials)[0], stream)
        _leftovers.append(child.kill)
        assert child.hear().startswith("ready")
        return child

    def exec(self, path: str) -> None:
        assert self.ask(f"exec {path}").startswith("ready")

    def end(self) -> int:
        """Closes its input and gives the exit status."""
        self._stream[1].close()
        return self.process.wait(timeout=20)

    def kill(self) -> None:
        if self.process:
            self.process.kill()
            self.process.wait()
        elif self.pid:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGKILL)
            wait_for(lambda: not lives(self.pid), 20, f"the end of {self.pid}")


def start_puppet(path: str = PUPPET, before: list[str] = [], **options) -> Puppet:
    """Starts a puppet, `before` being a command that execs it (chroot, setpriv)."""
    process = subprocess.Popen(
        [*before, path], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, **options
    )
    puppet = Puppet(process.pid, (process.stdout, process.stdin), process)
    _leftovers.append(puppet.kill)
    line = puppet.hear()
    assert line.startswith("ready"), f"{path} says {line!r}"
    return puppet


def as_nobody(*capabilities: str) -> list[str]:
    """A command that execs another as user nobody with these capabilities."""
    wanted = ",".join(f"+{name}" for name in capabilities)
    before = [need("setpriv"), "--reuid=65534", "--regid=65534", "--clear-groups"]
    if wanted:
        before += [f"--inh-caps=-all,{wanted}", f"--ambient-caps=-all,{wanted}",
                   f"--bounding-set=-all,{wanted}"]
    else:
        before += ["--inh-caps=-all", "--bounding-set=-all"]
    return before


def readable(path: str) -> str:
    """A copy of a file where anybody can read and run it."""
    copy = scratch() / pathlib.Path(path).name
    shutil.copy(path, copy)
    copy.chmod(0o755)
    return str(copy)


# --- CPUs


@contextlib.contextmanager
def one_cpu_for_all(others: int = 0) -> Iterator[None]:
    """On which so many busy processes run, too: whose wait is over has to wait for it again."""
    cpus = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(cpus)})
    busy = [subprocess.Popen(["setsid", "sh", "-c", "while :; do :; done"]) for _ in range(others)]
    leave_none(lambda: [(one.kill(), one.wait()) for one in busy])
    try:
        yield
    finally:
        os.sched_setaffinity(0, cpus)
        for one in busy:
            one.kill()
            one.wait()


# --- sessions


def targets_file(text: str | bytes) -> str:
    path = scratch() / "targets.txt"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return str(path)


def environment(without: str = "") -> dict[str, str]:
    own = dict(os.environ)
    if without:
        own["SPEEDBUMP_WITHOUT"] = without
    return own


def without_rights() -> None:
    """For `preexec_fn`: what is executed then may attach nothing, though it is root's."""
    for capability in (21, 38, 39):  # CAP_SYS_ADMIN, CAP_PERFMON, CAP_BPF
        assert ctypes.CDLL(None).prctl(24, capability, 0, 0, 0) == 0  # PR_CAPBSET_DROP


class Run:
    """speedbump to its end: exit status and what it wrote."""

    def __init__(self, *arguments: str, before: list[str] = [], timeout: float = 60, without="",
                 program: str = SPEEDBUMP, **options):
        done = subprocess.run(
            [*before, program, *arguments], capture_output=True, text=True, timeout=timeout,
            errors="replace", env=environment(without), **options,
        )
        self.status, self.out, self.err = done.returncode, done.stdout, done.stderr

    def __str__(self) -> str:
        return f"status {self.status}\nstdout: {self.out}\nstderr: {self.err}"

    def final(self) -> dict:
        return json.loads(self.out.splitlines()[-1])


class Session:
    """speedbump attach --json, armed when the constructor returns."""

    def __init__(self, targets: str, *arguments: str, pid: int | None = None, without: str = "",
                 before: list[str] = [], program: str = SPEEDBUMP):
        if pid is not None:
            arguments = ("--pid", str(pid), *arguments)
        self.documents: list[dict] = []
        begun = time.monotonic()
        self.process = subprocess.Popen(
            [*before, program, "attach", "--json", "--stats=50ms", *arguments,
             targets_file(targets)],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment(without),
        )
        _leftovers.append(self.kill)
        self.warnings: list[str] = []
        self._readers = [
            threading.Thread(target=self._read_out, daemon=True),
            threading.Thread(target=self._read_err, daemon=True),
        ]
        for reader in self._readers:
            reader.start()
        wait_for(lambda: self._samples() or self.process.poll() is not None, 30, "arming")
        self._armed_after = time.monotonic() - begun
        if not self._samples():
            for reader in self._readers:
                reader.join()
            raise AssertionError(
                f"speedbump ended with {self.process.returncode}: {''.join(self.warnings)}"
            )

    def _read_out(self) -> None:
        for line in self.process.stdout:
            self.documents.append(json.loads(line))

    def _read_err(self) -> None:
        for line in self.process.stderr:
            self.warnings.append(line)

    def _samples(self) -> bool:
        return any(one["type"] == "sample" for one in self.documents)

    @property
    def matched(self) -> dict:
        return self.documents[0]

    def stop(self, how: int = signal.SIGINT) -> dict:
        """Ends it as Ctrl-C does; the final document."""
        self.process.send_signal(how)
        return self.wait()

    def wait(self, loses: bool = False) -> dict:
        """Waits until it ends by itself; the final document. `loses`: events may get lost, if it says
        so and looks again."""
        # Ten thousand probes are taken out in some twice the time that they took to go in.
        status = self.process.wait(timeout=30 + 4 * self._armed_after)
        for reader in self._readers:
            reader.join()
        assert status == 0, f"speedbump ended with {status}: {''.join(self.warnings)}"
        final = self.documents[-1]
        assert final["type"] == "final", final
        if loses and final["lost"]["events"]:
            assert any("lost" in line for line in self.warnings), self.warnings
            final["lost"]["events"] = 0
        assert final["lost"] == {"events": 0, "counts": 0, "members": 0}, final["lost"]
        return final

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def __enter__(self) -> "Session":
        return self

    def __exit__(self, *_) -> None:
        if self.process.poll() is None:
            self.kill()


def look(session: Session) -> dict:
    """What `speedbump status` tells of it now."""
    return json.loads(Run("status", str(session.process.pid), "--json").out)


def calls(final: dict, name: str) -> int:
    return sum(one["calls"] for one in final["targets"] if one["name"] == name)


def calls_now(session: Session, name: str) -> int:
    """Of all processes so far, by a sample that is taken now."""
    seen = len(session.documents)
    wait_for(lambda: len(session.documents) > seen + 1, 30, "a sample")
    return calls(session.documents[-1], name)


def delays(final: dict, name: str) -> int:
    return sum(one["delays"] for one in final["targets"] if one["name"] == name)


def calls_by_pid(final: dict, name: str) -> dict[int, int]:
    result: dict[int, int] = {}
    for one in final["targets"]:
        if one["name"] == name:
            for row in one["processes"]:
                result[row["pid"]] = result.get(row["pid"], 0) + row["calls"]
    return result


# --- a process's memory


def changed_bytes(pid: int, path: str | None = None) -> int:
    """How many bytes of the code that a process has mapped of a file (its own program's, if none
    is named) differ from the file's: breakpoints."""
    name = path or os.readlink(f"/proc/{pid}/exe")
    differing = 0
    found = False
    with open(f"/proc/{pid}/maps") as maps, open(f"/proc/{pid}/mem", "rb", buffering=0) as memory:
        for line in maps:
            fields = line.split(maxsplit=5)
            if len(fields) < 6 or "x" not in fields[1] or fields[5].strip() != name:
                continue
            found = True
            start, end = (int(text, 16) for text in fields[0].split("-"))
            offset = int(fields[2], 16)
            with open(f"/proc/{pid}/map_files/{start:x}-{end:x}", "rb") as file:
                file.seek(offset)
                original = file.read(end - start)
            memory.seek(start)
            present = memory.read(end - start)[: len(original)]
            if present != original:
                differing += sum(a != b for a, b in zip(original, present))
    assert found, f"process {pid} does not map {name}"
    return differing


def expect_restored(pid: int, path: str | None = None) -> None:
    wait_for(lambda: changed_bytes(pid, path) == 0, 5, f"the code of process {pid} as before")


# --- judging


def expect_ratio(measured: float, expected: float, low: float, high: float, what: str) -> None:
    ratio = measured / expected
    assert low <= ratio <= high, (
        f"{what}: {measured:.0f} is {ratio:.3f} of {expected:.0f}, not {low} to {high}"
    )


def expect_slowed(puppet: Puppet, name: str, delay_ns: int, count: int = 20) -> None:
    """Each call takes the delay, and the CPU is kept for no longer than that."""
    costs = puppet.cost(name, count)
    shortest = min(spent for spent, _ in costs)
    assert shortest > delay_ns * 0.97, f"a call of {name} took only {shortest} ns"
    if EMULATED:
        return
    cpu = statistics.median(cpu for _, cpu in costs)
    assert cpu < delay_ns * 1.25, f"a call of {name} takes {cpu} ns of CPU time, not {delay_ns}"


def await_slowed(puppet: Puppet, name: str, delay_ns: int) -> None:
    """Until its calls are: a process that is born beside others that map the same file, or that
    joins, has its probes a moment later. How late that may be is for tests of its own."""
    wait_for(lambda: all(delayed(puppet, name, delay_ns, 3)), 10, f"{name} slowed in {puppet.pid}")


def await_counted(session: Session, puppet: Puppet, name: str) -> int:
    """As `await_slowed`, of a function that nobody else calls meanwhile: how many calls were counted."""
    before = calls_now(session, name)

    def is_counted() -> bool:
        puppet.call(name, 1)
        return calls_now(session, name) > before

    wait_for(is_counted, 30, f"{name} counted in {puppet.pid}")
    return calls_now(session, name) - before


@contextlib.contextmanager
def stopped(pid: int) -> Iterator[None]:
    """All its threads stand still inside."""
    os.kill(pid, signal.SIGSTOP)
    try:
        threads = pathlib.Path(f"/proc/{pid}/task")
        wait_for(lambda: all(path.read_text().rpartition(")")[2].split()[0] == "T"
                             for path in threads.glob("*/stat")), 10, f"{pid} stopped")
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


def await_wide(session: Session, parent: Puppet, name: str) -> int:
    """Until its children have their probes from the first call, as the session knows by then that
    nobody else maps the file: how many calls were counted so far. Meanwhile the session is stopped,
    else it may have been quick enough to probe each child by itself."""

    def are_counted() -> bool:
        before = calls_now(session, name)
        with stopped(session.process.pid):
            parent.births(3, name)
        return calls_now(session, name) == before + 3

    wait_for(are_counted, 30, f"{name} counted from the first call of children of {parent.pid}")
    return calls_now(session, name)


def delayed(puppet: Puppet, name: str, delay_ns: int, count: int) -> list[bool | None]:
    """Which of these calls were delayed. None: it had no CPU for nearly all of that time, which a call
    may wait for in its delay as well as without one."""
    return [
        spent > delay_ns * 0.95 and (True if EMULATED or cpu > delay_ns / 10 else None)
        for spent, cpu in puppet.cost(name, count)
    ]


def expect_unslowed(puppet: Puppet, name: str, delay_ns: int, count: int = 20) -> None:
    times = [spent for spent, _ in puppet.cost(name, count)]
    longest = delay_ns * 0.97 if EMULATED else delay_ns / 10
    assert statistics.median(times) < longest, f"a call of {name} takes {times} ns"


class Patience:
    """How long some processes, and all their threads, have waited for a CPU since it was made. What
    a program took, less this, is what it would have taken on an idle machine."""

    def __init__(self, *pids: int):
        self._pids = pids
        self._before = self._waited()
        self._stolen = stolen_ns()

    def _waited(self) -> dict[str, int]:
        waited = {}
        for pid in self._pids:
            for path in pathlib.Path(f"/proc/{pid}/task").glob("*/schedstat"):
                with contextlib.suppress(OSError):  # the thread has ended
                    waited[path.parent.name] = int(path.read_text().split()[1])
        return waited

    def ns(self) -> int:
        """What threads waited that have ended meanwhile is not known."""
        return sum(waited - self._before.get(tid, 0) for tid, waited in self._waited().items())

    def stolen_ns(self) -> int:
        """What the host has taken of the CPUs meanwhile: a grace period of the kernel, for which who
        probes must wait, takes so much longer, and its waiter is asleep."""
        return stolen_ns() - self._stolen


def stolen_ns() -> int:
    """The steal time of this machine's CPUs so far (proc_stat(5))."""
    ticks = pathlib.Path("/proc/stat").read_text().partition("\n")[0].split()[8]
    return int(ticks) * (1_000_000_000 // os.sysconf("SC_CLK_TCK"))


def cpu_ns(*pids: int) -> int:
    """The CPU time that processes have used so far, in all their threads that live."""
    total = 0
    for pid in pids:
        for path in pathlib.Path(f"/proc/{pid}/task").glob("*/schedstat"):
            with contextlib.suppress(OSError):  # the thread has ended
                total += int(path.read_text().split()[0])
    return total


def fork_ns() -> float:
    """What a child of this program takes on this host, as busy as it is, from its birth until it was
    waited for: how fast whoever starts helpers can be."""
    took = []
    for _ in range(9):
        begun = time.monotonic_ns()
        if (child := os.fork()) == 0:
            os._exit(0)
        os.waitpid(child, 0)
        took.append(time.monotonic_ns() - begun)
    return statistics.median(took)


def lives(pid: int) -> bool:
    """Whether the process is there and has not ended, waited for or not."""
    try:
        state = pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state not in "ZX"


class Until:
    """Work that is done again and again on a thread; the first error ends it, and is told."""

    def __init__(self, work):
        self.times = 0
        self._work = work
        self._stop = threading.Event()
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        try:
            while not self._stop.is_set():
                self._work(self.times)
                self.times += 1
        except BaseException as error:
            self._error = error

    def end(self) -> None:
        self._stop.set()
        self._thread.join()
        if self._error:
            raise self._error


class KernelLog:
    """What the kernel complains of while the block runs fails the test."""

    SIGNS = ("stall", "soft lockup", "hung task", "blocked for more", "BUG:", "WARNING:", "Oops")

    def __enter__(self) -> "KernelLog":
        self._fd = os.open("/dev/kmsg", os.O_RDONLY | os.O_NONBLOCK)
        os.lseek(self._fd, 0, os.SEEK_END)
        return self

    def __exit__(self, kind, *_) -> None:
        lines = []
        with contextlib.suppress(BlockingIOError):
            while True:
                lines.append(os.read(self._fd, 8192).decode(errors="replace"))
        os.close(self._fd)
        bad = [line for line in lines if any(sign in line for sign in self.SIGNS)]
        if kind is None:
            assert not bad, "the kernel complains: " + "".join(bad)


# --- running


@contextlib.contextmanager
def _on_the_clock(name: str) -> Iterator[None]:
    start = time.monotonic()
    yield
    print(f"ok   {name} ({time.monotonic() - start:.1f} s)", flush=True)


def _clean_up() -> None:
    """Ends what a test has started: processes that run on would be outsiders in the next one."""
    while _leftovers:
        _leftovers.pop()()


def main(tests: dict[str, object]) -> None:
    """Runs the test_* functions that the arguments name (none: all but the campaigns) and exits as
    ctest expects."""
    if os.geteuid() != 0:
        print("SKIP all: needs root")
        sys.exit(NOTHING_RAN)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # ends what the test has started, too
    chosen = {
        name: test for name, test in tests.items()
        if name.startswith("test_") and (
            name in sys.argv[1:] or (not sys.argv[1:] and not hasattr(test, "is_campaign")))
    }
    ran = failed = 0
    for name, test in chosen.items():
        try:
            with _on_the_clock(name):
                test()
            ran += 1
        except Missing as reason:
            print(f"SKIP {name}: {reason}", flush=True)
        except Exception:
            failed += 1
            print(f"FAIL {name}\n{traceback.format_exc()}", flush=True)
        finally:
            _clean_up()
    print(f"{ran} passed, {failed} failed, {len(chosen) - ran - failed} skipped")
    sys.exit(1 if failed or not chosen else 0 if ran else NOTHING_RAN)
