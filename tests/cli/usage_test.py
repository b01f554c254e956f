# SPDX-License-Identifier: MIT
"""Usage, check, list, doctor: what needs no rights to attach."""

import json
import os
import random
import subprocess
import xml.etree.ElementTree

from harness import SLOWEE, CommandLineTest, main


class Usage(CommandLineTest):
    def wrong(self, *arguments):
        """The message and the hint about wrong usage, of which each is one line."""
        done = self.call(*arguments, status=2)
        self.assertEqual(done.stdout, "")
        message, hint = done.stderr.splitlines()
        self.assertTrue(message.startswith("speedbump: error: "), message)
        self.assertTrue(hint.startswith("speedbump: try: "), hint)
        return message.removeprefix("speedbump: error: "), hint.removeprefix("speedbump: try: ")

    def test_no_command(self):
        self.assertEqual(self.wrong(), ("no command is given", "speedbump --help"))

    def test_unknown_command(self):
        for word, hint in (
            ("atach", "speedbump attach"), ("detatch", "speedbump detach"),
            ("chekc", "speedbump check"), ("frobnicate", "speedbump --help"),
            ("", "speedbump --help"),
        ):
            with self.subTest(word):
                message = f"there is no command '{word}'"
                self.assertEqual(self.wrong(word), (message, hint))
                self.assertEqual(self.wrong(word, "--pid", "1", "x"), (message, hint))

    def test_unknown_option(self):
        self.assertEqual(
            self.wrong("--frobnicate"), ("there is no option '--frobnicate'", "speedbump --help"))
        path = self.write("a:b\n")
        for word, option, hint in (
            ("--frobnicate", "--frobnicate", "speedbump check --help"),
            ("--jsn", "--jsn", "--json"),
            ("--outptu=x", "--outptu", "--output"),
            ("-Z", "-Z", "speedbump check --help"),
        ):
            with self.subTest(word):
                self.assertEqual(
                    self.wrong("check", word, path), (f"'check' has no option '{option}'", hint))

    def test_an_argument_too_many(self):
        path = self.write("a:b\n")
        self.assertEqual(
            self.wrong("check", path, "more"),
            ("'more' is one argument too many", "speedbump check --help"))

    def test_an_argument_or_a_value_that_is_missing(self):
        message, hint = self.wrong("check")
        self.assertEqual((message, hint), ("targets is required", "speedbump check --help"))
        message, hint = self.wrong("attach", "--pid")
        self.assertEqual((message, hint), ("--pid: a value is missing", "speedbump attach --help"))

    def test_values_that_are_none(self):
        targets = self.write("+exe:main\n")
        for option, value, message in (
            ("--pid", "abc", "'abc' is not a process ID"),
            ("--pid", "0", "'0' is not a process ID"),
            ("--pid", "1.5", "'1.5' is not a process ID"),
            ("--pid", "99999999999", "'99999999999' is not a process ID"),
            ("--every", "0", "'0' is not a number above 0"),
            ("--every", "x", "'x' is not a number above 0"),
            ("--engine", "steam", "'steam' is not auto, bpf, inprocess or kmod"),
            ("--missing", "perhaps", "'perhaps' is not error, ignore or warn"),
        ):
            with self.subTest(f"{option} {value}"):
                self.assertEqual(
                    self.wrong("attach", "--pid", os.getpid(), option, value, targets),
                    (f"{option}: {message}", "speedbump attach --help"))
        self.assertEqual(
            self.wrong("experiment", "--pid", os.getpid(), "--seed", "abc", targets)[0],
            "--seed: 'abc' is not a valid number")
        self.assertEqual(
            self.wrong("discover", "--pid", os.getpid(), "--rate", "0")[0],
            "--rate: '0' is not a number from 1 to 10000")

    def test_help_of_every_command_has_an_example(self):
        for command in ("attach", "run", "check", "list", "doctor", "calibrate"):
            done = self.call(command, "--help", status=0)
            self.assertIn("Example", done.stdout)
            self.assertIn("speedbump " + command, done.stdout)

    def test_version(self):
        self.assertRegex(self.call("--version", status=0).stdout, r"^speedbump \d+\.\d+\.\d+\n$")

    def test_attach_needs_a_process(self):
        done = self.call("attach", self.write("+exe:main\n"), status=2)
        self.assertIn("--pid", done.stderr)

    def test_wrong_values(self):
        targets = self.write("+exe:main\n")
        for wrong in (
            ["--delay", "fast"],
            ["--delay", "11s"],
            ["--delay=-1us"],
            ["--every", "0"],
            ["--every", "x"],
            ["--start", "5 parsecs"],
            ["--duration", ""],
            ["--stats", "1us"],
            ["--engine", "steam"],
            ["--missing", "perhaps"],
            ["--pid", "0"],
            ["--pid", "-5"],
            ["--pid", "abc"],
            ["--pid", "99999999999"],
            ["-v", "-q"],
        ):
            with self.subTest(wrong):
                self.wrong("attach", "--pid", os.getpid(), *wrong, targets)

    def test_run_without_a_program(self):
        self.call("run", self.write("+exe:main\n"), status=2)
        self.call("run", self.write("+exe:main\n"), "--", status=2)


class TargetsFile(CommandLineTest):
    def test_all_errors_with_place_and_caret(self):
        path = self.write("+exe:main delay=fast\nok:ok\nno separator\n")
        done = self.call("check", path, status=2)
        self.assertIn(f"{path}:1:", done.stderr)
        self.assertIn(f"{path}:3:", done.stderr)
        self.assertIn("^", done.stderr)
        self.assertEqual(done.stdout, "")

    def test_attach_and_run_refuse_it_before_anything_else(self):
        path = self.write("no separator\n")
        self.call("attach", "--pid", os.getpid(), path, status=2)
        done = self.call("run", path, "--", "echo", "started", status=2)
        self.assertNotIn("started", done.stdout)

    def test_files_that_are_none(self):
        self.call("check", "/nonexistent/targets", status=2)
        self.call("check", self.folder.name, status=2)
        self.call("check", "/dev/zero", status=2)
        fifo = os.path.join(self.folder.name, "fifo")
        os.mkfifo(fifo)
        self.call("check", fifo, status=2)


class Check(CommandLineTest):
    def test_exe(self):
        done = self.call("check", self.write("+exe:work delay=5us\n"), "--exe", SLOWEE, status=0)
        self.assertIn("+exe:work delay=5us  1 function", done.stdout)
        self.assertIn(f"{SLOWEE}:work at 0x", done.stdout)
        self.assertNotIn("probe:", done.stdout)

    def test_verbose_names_site_and_reason(self):
        done = self.call("check", "-v", self.write("+exe:work\n"), "--exe", SLOWEE, status=0)
        self.assertRegex(done.stdout, r"probe: (emulated|single-stepped|optimized nop), \w+")
        self.assertIn("why: ", done.stdout)

    def test_demangled_names(self):
        path = self.write('+exe:"widgets::Factory::make(int, long)"\n')
        self.assertIn("1 function", self.call("check", path, "--exe", SLOWEE, status=0).stdout)
        path = self.write("+exe:widgets::Factory::make\n")
        self.assertIn("1 function", self.call("check", path, "--exe", SLOWEE, status=0).stdout)

    def test_process(self):
        slowee = self.start(SLOWEE)
        path = self.write("+exe:work\n+libc.so.6:write\n+libnothere.so:x\n")
        done = self.call("check", path, "--pid", slowee.pid, status=0)
        self.assertIn(f"looked at process {slowee.pid} (cli_slowee)", done.stdout)
        self.assertRegex(done.stdout, r"libc\.so\.6:write  1 function")
        self.assertIn("+libnothere.so:x  matches nothing", done.stdout)

    def test_descendants(self):
        shell = self.start("/bin/sh", "-c", f"{SLOWEE}; true")
        children = []
        while not children:
            with open(f"/proc/{shell.pid}/task/{shell.pid}/children", encoding="ascii") as file:
                children = file.read().split()
        while os.readlink(f"/proc/{children[0]}/exe") != SLOWEE:
            pass
        path = self.write("+exe:work\n")
        self.call("check", path, "--pid", shell.pid, status=0)
        self.call("check", path, "--pid", shell.pid, "--no-children", status=3)

    def test_nothing_matched(self):
        done = self.call("check", self.write("+exe:nonesuch\n"), "--exe", SLOWEE, status=3)
        self.assertIn("matches nothing", done.stdout)

    def test_without_a_place(self):
        done = self.call("check", self.write("+exe:work\napp:f\n"), status=0)
        self.assertIn("needs --pid PID or --exe FILE", done.stdout)
        self.assertIn("Python: decided in the interpreter", done.stdout)
        done = self.call("check", self.write(f"+{SLOWEE}:work\n"), status=0)
        self.assertIn("1 function", done.stdout)

    def test_json(self):
        path = self.write("+exe:work\nm:f\n!+exe:w*\n")
        done = self.call("check", "--json", path, "--exe", SLOWEE)
        document = json.loads(done.stdout)
        self.assertEqual(document["schema"], "speedbump/check/1")
        self.assertEqual([line["line"] for line in document["lines"]], [1, 2, 3])
        self.assertEqual(document["lines"][1]["state"], "python")
        self.assertEqual(document["lines"][2]["state"], "exclusion")

    def test_output_file(self):
        out = os.path.join(self.folder.name, "out.json")
        path = self.write("+exe:work\n")
        done = self.call("check", "--json", "-o", out, path, "--exe", SLOWEE, status=0)
        self.assertEqual(done.stdout, "")
        with open(out, encoding="utf-8") as file:
            self.assertEqual(json.load(file)["lines"][0]["matches"][0]["name"], "work")

    def test_unwritable_output(self):
        path = self.write("+exe:work\n")
        done = self.call("check", "-o", "/nonexistent/x", path, "--exe", SLOWEE, status=1)
        self.assertIn("No such file or directory", done.stderr)
        done = self.call("check", "-o", "/dev/full", path, "--exe", SLOWEE, status=1)
        self.assertIn("No space left", done.stderr)

    def test_no_such_process(self):
        gone = self.start("/bin/true")
        gone.wait()
        done = self.call("check", self.write("+exe:work\n"), "--pid", gone.pid, status=1)
        self.assertIn(str(gone.pid), done.stderr)

    def test_not_an_elf_file(self):
        path = self.write("+exe:work\n")
        text = self.write("just text\n", "text")
        self.assertIn(self.call("check", path, "--exe", text).returncode, (1, 3))


class List(CommandLineTest):
    def test_lines_can_be_checked(self):
        slowee = self.start(SLOWEE)
        done = self.call("list", "--pid", slowee.pid, "cli_slowee:*", status=0)
        self.assertIn(f"+{SLOWEE}:work\n", done.stdout)
        self.assertIn('"widgets::Factory::make(int, long)"', done.stdout)
        targets = self.write(done.stdout)
        checked = self.call("check", targets, "--pid", slowee.pid, status=0)
        self.assertNotIn("matches nothing", checked.stdout)

    def test_glob_and_nothing(self):
        slowee = self.start(SLOWEE)
        self.assertEqual(
            self.call("list", "-p", slowee.pid, "wor?", status=0).stdout, f"+{SLOWEE}:work\n"
        )
        self.call("list", "-p", slowee.pid, "nonesuch*", status=3)

    def test_json(self):
        slowee = self.start(SLOWEE)
        done = self.call("list", "--json", "-p", slowee.pid, "work", status=0)
        document = json.loads(done.stdout)
        self.assertEqual(document["schema"], "speedbump/list/1")
        self.assertEqual(document["functions"][0]["name"], "work")


class Doctor(CommandLineTest):
    def test_names_the_kernel(self):
        done = self.call("doctor")
        self.assertIn(os.uname().release, done.stdout)

    def test_json(self):
        document = json.loads(self.call("doctor", "--json").stdout)
        self.assertEqual(document["schema"], "speedbump/doctor/1")
        self.assertEqual(document["kernel"], os.uname().release)
        self.assertIn("BTF", [check["name"] for check in document["checks"]])

    def test_process_that_is_gone(self):
        gone = self.start("/bin/true")
        gone.wait()
        self.assertIn("no such process", self.call("doctor", "--pid", gone.pid).stdout)

    def test_process(self):
        slowee = self.start(SLOWEE)
        self.assertRegex(
            self.call("doctor", "--pid", slowee.pid).stdout, r"ok +process \d+ +cli_slowee"
        )


class Compare(CommandLineTest):
    """The gate, on documents as `experiment -o` writes them."""

    PROGRESS = "native:exe:f<int>"

    def document(self, period, seed, noise=0.002, **other):
        """An experiment of 40 blocks on a service that takes `period` ns a unit."""
        chance = random.Random(seed)
        blocks = []
        for block in range(40):
            slices = []
            for arm in ("probe", "sham", "dose"):
                took = period * (1 + chance.gauss(0, noise)) + (10_000 if arm == "dose" else 0)
                units = int(200e6 / took)
                slices.append({
                    "arm": arm, "start_ns": (3 * block + len(slices)) * 200_000_000,
                    "length_ns": 200_000_000, "waited_ns": 0, "progress": [units],
                    "progress_ns": [200_000_000], "calls": [units],
                    **({"target": 0, "delay_ns": 10_000, "injected_ns": 10_000 * units}
                       if arm == "dose" else {}),
                })
            blocks.append({"confirms": False, "slices": slices})
        return self.write(json.dumps({
            "schema": "speedbump/experiment/1", "version": "0", "host": "alpha", "kernel": "6.1",
            "machine": "x86_64", "engine": "bpf", "started_unix_ns": 0, "seed": seed,
            "progress": [self.PROGRESS],
            "settings": {"slice_ns": 200_000_000, "settle_ns": 0, "precision": 0.05,
                         "max_slowdown": 0.5, "max_cpu": 1},
            "targets": [{"name": "+exe:f", "role": "target", "functions": ["f"],
                         "function_count": 1, "doses_ns": [10_000], "notes": []}],
            "blocks": blocks, "warnings": [], "tool_cpu": 0, "stopped": "blocks", "complete": True,
            **other,
        }), f"{seed}.json")

    def judged(self, b, status, limit="1%"):
        """What the gate says of b against a service of 100 us: text, JSON and JUnit."""
        a, junit = self.document(100e3, 1), os.path.join(self.folder.name, "junit.xml")
        done = self.call("compare", "--fail-if-worse", limit, "--junit", junit, a, b, status=status)
        again = self.call("compare", "--json", "--fail-if-worse", limit, a, b, status=status)
        return done.stdout, json.loads(again.stdout), xml.etree.ElementTree.parse(junit).getroot()

    def test_worse(self):
        text, document, junit = self.judged(self.document(103e3, 2), 6)
        self.assertRegex(text, r"f<int>: time per unit is worse by [23]\.\d\d% \(95%: .* 1% is allowed")
        self.assertEqual(document["judgement"], "worse")
        self.assertEqual(document["changes"][0]["judgement"], "worse")
        change = document["changes"][0]["change"]
        self.assertTrue(change["low"] < 0.03 < change["high"], change)
        case, = junit.iter("testcase")
        self.assertEqual(case.get("name"), self.PROGRESS + ": time per unit")
        self.assertIn("is worse by", case.find("failure").get("message"))
        self.assertEqual((junit.get("tests"), junit.get("failures")), ("1", "1"))

    def test_not_worse(self):
        for period, limit in ((100e3, "1%"), (97e3, "1%"), (103e3, "5%"), (103e3, "0.05")):
            with self.subTest((period, limit)):
                text, document, junit = self.judged(self.document(period, 2), 0, limit)
                self.assertIn("not worse: b does not take", text)
                self.assertEqual(document["judgement"], "not worse")
                self.assertIsNone(junit.find(".//failure"))
                self.assertIsNone(junit.find(".//skipped"))

    def test_not_told(self):
        text, document, junit = self.judged(self.document(101e3, 2, noise=0.2), 7)
        self.assertRegex(text, "is undecided: .* as long would tell")
        self.assertEqual(document["judgement"], "undecided")
        self.assertIn("is undecided", junit.find(".//skipped").get("message"))
        cut = self.document(103e3, 3, complete=False, stopped="the processes ended")
        text, document, _ = self.judged(cut, 7)
        self.assertIn("doubt: b was cut short: the processes ended", text)
        self.assertEqual(document["doubts"], ["b was cut short: the processes ended"])

    def test_without_a_limit(self):
        a, b = self.document(100e3, 1), self.document(103e3, 2)
        done = self.call("compare", a, b, status=0)
        self.assertRegex(done.stdout, r"time per unit +100 us +103 us +\+\d\.\d\d%")
        document = json.loads(self.call("compare", "--json", a, b, status=0).stdout)
        self.assertNotIn("judgement", document)

    def test_wrong_usage(self):
        a = self.document(100e3, 1)
        for limit in ("1x", "-1%", "0", "%"):
            done = self.call("compare", f"--fail-if-worse={limit}", a, a, status=2)
            self.assertIn("--fail-if-worse", done.stderr)
        done = self.call("compare", "--junit", "x.xml", a, a, status=2)
        self.assertIn("--fail-if-worse", done.stderr)
        done = self.call("compare", "--fail-if-worse=1%", "--junit=/nowhere/x.xml", a, a, status=1)
        self.assertIn("/nowhere/x.xml", done.stderr)


class SideBySide(CommandLineTest):
    def test_wrong_usage(self):
        progress, targets = ("--progress", "native:exe:f"), self.write("a:b\n")
        for arguments, message in (
            (("--ab", "1", *progress), "--ab"),
            (("--ab", "1", "1", *progress), "a process cannot be compared with itself"),
            (("--ab", "1", "x", *progress), "'x' is not a process ID"),
            (("--ab", "1", "2", *progress, targets), "it takes no targets file"),
            (("--ab", "1", "2", "--doses=1us", *progress), "--doses"),
            (("--ab", "1", "2", "--pid=3", *progress), "--pid"),
            (("--ab", "1", "2", "--html=x", *progress), "--html"),
            (("--ab", "1", "2"), "--progress is required"),
            (("--ab", "1", "2", "--slice=2s", *progress), "--slice: 1ms to 1s with --ab"),
            (("--pid", "1", *progress), "targets is required"),
            (("--pid", "1", "--fail-if-worse=1%", *progress, targets), "--fail-if-worse"),
        ):
            with self.subTest(arguments):
                done = self.call("experiment", *arguments, status=2)
                self.assertIn(message, done.stderr)


class Colours(CommandLineTest):
    def test_only_where_asked_for(self):
        path = self.write("+exe:work\n")
        plain = self.call("check", path, "--exe", SLOWEE)
        self.assertNotIn("\x1b", plain.stdout)
        forced = self.call(
            "check", path, "--exe", SLOWEE, env={"CLICOLOR_FORCE": "1", "NO_COLOR": ""}
        )
        self.assertIn("\x1b[", forced.stdout)


class NoRights(CommandLineTest):
    """As a user without any capability."""

    def setUp(self):
        super().setUp()
        if os.geteuid() != 0:
            self.skipTest("needs root to become somebody else")
        os.chmod(self.folder.name, 0o755)

    def call_as_nobody(self, *arguments):
        return self.call(*arguments, user=65534, group=65534, extra_groups=[])

    def test_attach_names_the_capability(self):
        slowee = self.start(SLOWEE)
        done = self.call_as_nobody("attach", "--pid", slowee.pid, self.write("+exe:work\n"))
        self.assertEqual(done.returncode, 4, done.stderr)
        self.assertRegex(done.stderr, "CAP_[A-Z_]+")

    def test_check_of_anothers_process(self):
        slowee = self.start(SLOWEE)
        done = self.call_as_nobody("check", "--pid", slowee.pid, self.write("+exe:work\n"))
        self.assertEqual(done.returncode, 4, done.stderr)

    def test_doctor_has_the_status_of_attach(self):
        done = self.call_as_nobody("doctor")
        self.assertEqual(done.returncode, 4, done.stderr)
        self.assertIn("missing", done.stdout)

    def test_run_does_not_start_the_program(self):
        done = self.call_as_nobody("run", self.write("+exe:main\n"), "--", "/bin/echo", "started")
        self.assertEqual(done.returncode, 4, done.stderr)
        self.assertNotIn("started", done.stdout)


class BrokenPipe(CommandLineTest):
    def test_reader_that_leaves(self):
        from harness import SPEEDBUMP

        slowee = self.start(SLOWEE)
        done = subprocess.run(
            f"{SPEEDBUMP} list --pid {slowee.pid} | head -n 1",
            shell=True,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        self.assertEqual(done.stdout.count("\n"), 1)
        self.assertEqual(done.stderr, "")


if __name__ == "__main__":
    main()
