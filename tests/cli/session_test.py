# SPDX-License-Identifier: MIT
"""attach and run on real processes. Needs root and a kernel that lets BPF in."""

import fcntl
import json
import os
import pty
import re
import select
import signal
import statistics
import struct
import subprocess
import sys
import termios
import time

from harness import SLOWEE, SPEEDBUMP, CommandLineTest, main


class SessionTest(CommandLineTest):
    """Can wait for what a running speedbump prints."""

    def attach(self, *arguments, **options):
        return self.start(
            SPEEDBUMP,
            "attach",
            *arguments,
            stdin=subprocess.DEVNULL,
            env={**os.environ, "NO_COLOR": "1"},
            **options,
        )

    def read_until(self, stream, text, seconds=30, times=1):
        """Reads the stream until the text has come so often, and gives what it read; fails when it
        ends before."""
        deadline = time.monotonic() + seconds
        read = b""
        while time.monotonic() < deadline and read.count(text.encode()) < times:
            # not through the stream's buffer, which select() knows nothing of
            if select.select([stream], [], [], 0.1)[0]:
                part = os.read(stream.fileno(), 65536)
                if not part:
                    break
                read += part
        self.assertGreaterEqual(read.count(text.encode()), times, read)
        return read.decode()

    def finish(self, child, seconds=30):
        out, err = child.communicate(timeout=seconds)
        return child.returncode, out, err


class Attach(SessionTest):
    def test_duration_ends_it_with_a_table(self):
        slowee = self.start(SLOWEE)
        path = self.write("+exe:work delay=200us\n+libc.so.6:abort\n")
        began = time.monotonic()
        done = self.call("attach", "--pid", slowee.pid, "--duration", "2s", path, status=0)
        self.assertGreater(time.monotonic() - began, 2)
        matched, total = done.stdout.split("total in", 1)
        self.assertRegex(matched, rf"2 functions matched by 2 lines in 1 process \({slowee.pid} ")
        self.assertIn(f"{SLOWEE}:work", matched)
        self.assertIn("200us", matched)
        self.assertRegex(total, rf"{SLOWEE}:work +[1-9][\d,]*")
        self.assertIn("1 of 2 functions called", total)
        self.assertNotIn("\x1b", done.stdout)

    def test_a_call_costs_what_was_asked_and_then_nothing(self):
        path = self.write("+exe:work delay=500us\n")
        slowee = self.start(SLOWEE)
        done = self.call(
            "attach", "--json", "--stats", "50ms", "--duration", "1s", "-p", slowee.pid, path,
            status=0,
        )
        documents = [json.loads(line) for line in done.stdout.splitlines()]
        final = documents[-1]
        self.assertEqual((final["type"], final["reason"]), ("final", "duration"))
        target = final["targets"][0]
        self.assertGreater(target["delays"], 100)
        self.assertEqual(target["requested_ns"], target["delays"] * 500_000)
        self.assertGreater(target["measured_ns"] / target["requested_ns"], 0.99)
        # A CPU that is taken away within a delay lengthens that one, and not those of most intervals.
        sums = [one["all"] for one in documents if one["type"] != "matched"]
        ratios = [
            (b["measured_ns"] - a["measured_ns"]) / (b["requested_ns"] - a["requested_ns"])
            for a, b in zip(sums, sums[1:]) if b["requested_ns"] > a["requested_ns"]
        ]
        self.assertLess(statistics.median(ratios), 1.5)

    def test_json_stream(self):
        slowee = self.start(SLOWEE)
        path = self.write("@delay=50us\n+exe:work\n+exe:nonesuch\n")
        tool = self.attach("--json", "--stats", "200ms", "-p", slowee.pid, path)
        begun = self.read_until(tool.stdout, '"type":"sample"', times=3)
        tool.send_signal(signal.SIGINT)
        status, out, err = self.finish(tool)
        self.assertEqual(status, 0, err)
        documents = [json.loads(line) for line in (begun + out).splitlines()]
        kinds = [document["type"] for document in documents]
        self.assertEqual(kinds[0], "matched")
        self.assertEqual(kinds[-1], "final")
        self.assertEqual({document["schema"] for document in documents}, {"speedbump/attach/1"})
        self.assertEqual(documents[0]["unmatched_lines"], [3])
        self.assertEqual(documents[0]["targets"][0]["delay_ns"], 50_000)
        self.assertEqual(documents[-1]["reason"], "interrupted")
        self.assertEqual(documents[0]["kernel"], os.uname().release)
        self.assertIn("matches nothing", err)

    def stop_with(self, number):
        slowee = self.start(SLOWEE)
        tool = self.attach("--pid", slowee.pid, self.write("+exe:work delay=100us\n"))
        self.read_until(tool.stdout, f"{SLOWEE}:work")
        time.sleep(0.3)
        tool.send_signal(number)
        status, out, err = self.finish(tool)
        self.assertEqual(status, 0, err)
        self.assertIn("total in", out)
        self.assertIsNone(slowee.poll())
        out, _ = slowee.communicate("x")
        self.assertIn("calls", out)

    def test_first_interrupt_ends_it(self):
        self.stop_with(signal.SIGINT)

    def test_first_terminate_ends_it(self):
        self.stop_with(signal.SIGTERM)

    def test_ends_with_the_last_process(self):
        slowee = self.start(SLOWEE)
        tool = self.attach("--json", "--pid", slowee.pid, self.write("+exe:work delay=10us\n"))
        self.read_until(tool.stdout, '"matched"')
        slowee.communicate("x")
        status, out, err = self.finish(tool)
        self.assertEqual(status, 0, err)
        self.assertEqual(json.loads(out.splitlines()[-1])["reason"], "processes-ended")

    def test_killed_it_leaves_no_probe(self):
        slowee = self.start(SLOWEE)
        tool = self.attach("--pid", slowee.pid, self.write("+exe:work delay=1ms\n"))
        self.read_until(tool.stdout, f"{SLOWEE}:work")
        with open(SLOWEE, "rb") as file:
            code = file.read()
        tool.kill()
        tool.wait()
        deadline = time.monotonic() + 10
        while self.text_of(slowee.pid, code) and time.monotonic() < deadline:
            time.sleep(0.05)
        self.assertEqual(self.text_of(slowee.pid, code), [])

    def text_of(self, pid, code):
        """The offsets where the process's text differs from its file."""
        differences = []
        with open(f"/proc/{pid}/maps", encoding="ascii") as maps:
            lines = [line.split() for line in maps if line.rstrip().endswith(SLOWEE)]
        for line in lines:
            if "x" not in line[1]:
                continue
            start, end = (int(part, 16) for part in line[0].split("-"))
            offset = int(line[2], 16)
            with open(f"/proc/{pid}/mem", "rb", buffering=0) as memory:
                memory.seek(start)
                text = memory.read(end - start)
            differences += [
                offset + i
                for i, (now, then) in enumerate(zip(text, code[offset : offset + end - start]))
                if now != then
            ]
        return differences

    def test_probe_is_seen_while_attached(self):
        slowee = self.start(SLOWEE)
        with open(SLOWEE, "rb") as file:
            code = file.read()
        tool = self.attach("--pid", slowee.pid, self.write("+exe:work delay=1us\n"))
        self.read_until(tool.stdout, f"{SLOWEE}:work")
        deadline = time.monotonic() + 10
        while not self.text_of(slowee.pid, code) and time.monotonic() < deadline:
            time.sleep(0.01)
        self.assertNotEqual(self.text_of(slowee.pid, code), [])
        tool.send_signal(signal.SIGINT)
        self.finish(tool)
        self.assertEqual(self.text_of(slowee.pid, code), [])

    def test_paused_delays_nothing(self):
        slowee = self.start(SLOWEE)
        path = self.write("+exe:work delay=10ms\n")
        tool = self.attach("--json", "--paused", "-p", slowee.pid, path)
        self.read_until(tool.stdout, '"sample"')
        tool.send_signal(signal.SIGINT)
        status, out, err = self.finish(tool)
        self.assertEqual(status, 0, err)
        self.assertEqual(json.loads(out.splitlines()[-1])["all"]["delays"], 0)

    def test_nothing_matched(self):
        slowee = self.start(SLOWEE)
        path = self.write("+exe:nonesuch\n")
        done = self.call("attach", "-p", slowee.pid, path, status=3)
        self.assertIn("nonesuch", done.stderr)
        done = self.call(
            "attach", "-p", slowee.pid, "--missing=ignore", "--duration", "500ms", path, status=3
        )

    def test_missing_is_an_error_where_asked_for(self):
        slowee = self.start(SLOWEE)
        path = self.write("+exe:work\n+exe:nonesuch\n")
        self.call("attach", "-p", slowee.pid, "--missing=error", path, status=3)
        done = self.call(
            "attach", "-p", slowee.pid, "--missing=ignore", "--duration", "300ms", path, status=0
        )
        self.assertEqual(done.stderr, "")

    def test_no_such_process(self):
        gone = self.start("/bin/true")
        gone.wait()
        done = self.call("attach", "-p", gone.pid, self.write("+exe:work\n"), status=1)
        self.assertIn(str(gone.pid), done.stderr)

    def test_no_call_is_warned_of(self):
        slowee = self.start(SLOWEE)
        path = self.write("+exe:work\n+exe:never_called\n")
        done = self.call("attach", "-p", slowee.pid, "--duration", "6500ms", path, status=0)
        self.assertRegex(done.stderr, r"targets.txt:2: \+exe:never_called: no call in .*inlined")
        self.assertNotIn("+exe:work", done.stderr)

    def test_output_file_and_quiet(self):
        slowee = self.start(SLOWEE)
        out = os.path.join(self.folder.name, "out.txt")
        path = self.write("+exe:work\n")
        done = self.call(
            "attach", "-q", "-o", out, "--duration", "300ms", "-p", slowee.pid, path, status=0
        )
        self.assertEqual(done.stdout, "")
        with open(out, encoding="utf-8") as file:
            text = file.read()
        self.assertTrue(text.startswith("total in"), text)

    def test_table_by_process(self):
        path = self.write(f"+{SLOWEE}:work\n")
        done = self.call(
            "run", "-v", path, "--", "/bin/sh", "-c", f"echo pid $$; exec {SLOWEE} 10", status=0
        )
        pid = re.search(r"pid (\d+)", done.stdout)[1]
        self.assertRegex(done.stdout, rf"  {pid} cli_slowee +10\b")


class Terminal(SessionTest):
    """On a terminal the table is drawn over."""

    def test_live_table(self):
        slowee = self.start(SLOWEE)
        path = self.write("+exe:work delay=20us\n")
        master, slave = pty.openpty()
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 100, 0, 0))
        tool = self.start(
            SPEEDBUMP, "attach", "--stats", "200ms", "--duration", "1500ms", "-p", slowee.pid,
            path, stdin=slave, stdout=slave, stderr=slave, env={**os.environ, "TERM": "xterm"},
        )
        os.close(slave)
        shown = b""
        while True:
            try:
                part = os.read(master, 65536)
            except OSError:
                break
            if not part:
                break
            shown += part
        os.close(master)
        self.assertEqual(tool.wait(), 0, shown)
        self.assertIn(b"CALLS/S", shown)
        self.assertGreaterEqual(shown.count(b"\x1b[J"), 3)
        self.assertIn(b"total", shown.rsplit(b"\x1b[J", 1)[1])
        for line in re.sub(rb"\x1b\[[0-9;]*[A-Za-z]", b"", shown).split(b"\r\n"):
            self.assertLessEqual(len(line), 100 + len(path), line)


class Run(SessionTest):
    def test_slows_from_the_first_call(self):
        path = self.write("+exe:work delay=1ms\n")
        out = os.path.join(self.folder.name, "out.json")
        done = self.call("run", "--json", "-o", out, path, "--", SLOWEE, "300", status=0)
        calls, fastest = map(int, re.search(r"(\d+) calls, fastest (\d+)", done.stdout).groups())
        self.assertEqual(calls, 300)
        self.assertGreater(fastest, 900_000)
        self.assertLess(fastest, 1_150_000)
        with open(out, encoding="utf-8") as file:
            final = json.loads(file.read().splitlines()[-1])
        self.assertEqual(final["command"], "run")
        self.assertEqual(final["reason"], "program-ended")
        self.assertEqual(final["targets"][0]["calls"], 300)
        self.assertEqual(final["targets"][0]["delays"], 300)

    def test_exits_as_the_program_did(self):
        path = self.write("+exe:work\n")
        self.call("run", "-q", path, "--", SLOWEE, "10", "7", status=7)
        libc = self.write("+libc.so.6:write\n")
        self.call("run", "-q", libc, "--", "/bin/sh", "-c", "kill -KILL $$", status=128 + 9)
        self.call("run", "-q", libc, "--", "/bin/sh", "-c", "kill -TERM $$", status=128 + 15)

    def test_programs_that_cannot_run(self):
        path = self.write("+libc.so.6:write\n")
        self.call("run", path, "--", "/nonexistent/program", status=127)
        self.call("run", path, "--", "no-such-program-anywhere", status=127)
        self.call("run", path, "--", path, status=126)
        self.call("run", path, "--", self.folder.name, status=126)

    def test_program_arguments_are_its_own(self):
        path = self.write("+libc.so.6:write\n")
        done = self.call("run", "-q", path, "--", "/bin/echo", "--json", "-p", "--", "x", status=0)
        self.assertIn("--json -p -- x\n", done.stdout)

    def test_program_inherits_nothing(self):
        path = self.write("+libc.so.6:write\n")
        done = self.call("run", "-q", path, "--", "/bin/ls", "/proc/self/fd", status=0)
        self.assertEqual(done.stdout.split("total")[0].split(), ["0", "1", "2", "3"])
        done = self.call(
            "run", "-q", path, "--", "/bin/grep", "-E", "^Sig(Blk|Ign)", "/proc/self/status"
        )
        self.assertRegex(done.stdout, r"SigBlk:\s+0{16}\n")

    def test_signal_reaches_the_program(self):
        script = "trap 'echo caught; exit 5' TERM; echo ready; while :; do sleep 0.05; done"
        tool = self.start(
            SPEEDBUMP, "run", "-q", self.write("+libc.so.6:write\n"), "--", "/bin/sh", "-c", script
        )
        self.read_until(tool.stdout, "ready")
        tool.send_signal(signal.SIGTERM)
        status, out, err = self.finish(tool)
        self.assertEqual(status, 5, err)
        self.assertIn("caught", out)
        self.assertIn("total in", out)

    def test_second_signal_leaves_at_once(self):
        script = "trap '' TERM; echo $$; exec sleep 60"
        tool = self.start(
            SPEEDBUMP, "run", "-q", self.write("+libc.so.6:write\n"), "--", "/bin/sh", "-c", script
        )
        program = int(self.read_until(tool.stdout, "\n"))
        tool.send_signal(signal.SIGTERM)
        deadline = time.monotonic() + 30
        while self.is_pending(tool.pid, signal.SIGTERM) and time.monotonic() < deadline:
            time.sleep(0.01)  # two that wait are one
        time.sleep(1)  # and so are two within half a second
        self.assertIsNone(tool.poll())
        tool.send_signal(signal.SIGTERM)
        self.assertEqual(tool.wait(timeout=10), 128 + 15)
        with open(f"/proc/{program}/stat", encoding="ascii") as stat:  # it was not waited for
            self.assertNotIn(stat.read().rpartition(")")[2].split()[0], "ZX")
        os.kill(program, signal.SIGKILL)

    def is_pending(self, pid, number):
        with open(f"/proc/{pid}/status", encoding="ascii") as status:
            masks = re.findall(r"(?:SigPnd|ShdPnd):\s+(\w+)", status.read())
        return any(int(mask, 16) >> (number - 1) & 1 for mask in masks)

    def test_nothing_matched_starts_nothing(self):
        done = self.call("run", self.write("+exe:nonesuch\n"), "--", SLOWEE, "1", status=3)
        self.assertNotIn("calls", done.stdout)

    def test_children_are_slowed_too(self):
        path = self.write(f"+{SLOWEE}:work delay=1ms\n")
        out = os.path.join(self.folder.name, "out.json")
        self.call(
            "run", "--json", "-o", out, path, "--", "/bin/sh", "-c",
            f"sleep 0.5; {SLOWEE} 50; {SLOWEE} 50", status=0,
        )
        with open(out, encoding="utf-8") as file:
            final = json.loads(file.read().splitlines()[-1])
        self.assertEqual(final["targets"][0]["delays"], 100)


    def test_warnings_without_end_are_counted(self):
        """130 Pythons, the core for which anybody could have written."""
        core = "_core.cpython-{}{}-x86_64-linux-gnu.so".format(*sys.version_info)
        with open(os.path.join(self.folder.name, core), "wb"):
            os.chmod(self.folder.name, 0o777)
        # All at once, and each for as long as it takes to see to all: of one that has ended nothing is said.
        python = f"{sys.executable} -S -c 'import time; time.sleep(10)'"
        done = self.call(
            "run", self.write("time:nosuch\n"), "--", "/bin/sh", "-c",
            f"for i in $(seq 130); do {python} & done; wait",
            status=0, env={"SPEEDBUMP_CORES": self.folder.name},
        )
        held_back = re.search(r"warning: (\d+) more warnings were not shown", done.stderr)
        self.assertIsNotNone(held_back, done.stderr)
        # At the end one more line says why nothing was hooked, without the hint.
        shown = len(re.findall("warning: .*others may write to.*chmod", done.stderr))
        self.assertLessEqual(shown, 100, done.stderr)
        self.assertGreaterEqual(shown + int(held_back[1]), 130)


class Calibrate(SessionTest):
    def test_prints_floor_and_accuracy(self):
        document = json.loads(self.call("calibrate", "--json", status=0).stdout)
        self.assertEqual(document["schema"], "speedbump/calibrate/1")
        self.assertTrue(document["rows"])
        for row in document["rows"]:
            self.assertGreater(row["floor_ns"], 0)
        self.assertIn("FLOOR", self.call("calibrate", status=0).stdout)


if __name__ == "__main__":
    if os.geteuid() != 0:
        print("skipped: attaching needs root")
        sys.exit(77)
    main()
