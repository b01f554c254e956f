# SPDX-License-Identifier: MIT
"""What the tests of the command line share."""

import atexit
import os
import shutil
import subprocess
import sys
import tempfile
import unittest


def own_copy(program):
    """A file that only this test maps: what a session does depends on who else does, and tests run
    beside others."""
    folder = os.path.realpath(tempfile.mkdtemp(prefix="speedbump-cli-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    copy = shutil.copy(program, folder)
    for path in (folder, copy):
        os.chmod(path, 0o755)  # for tests that are another user
    return copy


SPEEDBUMP = os.path.abspath(sys.argv[1])
SLOWEE = own_copy(sys.argv[2])


class CommandLineTest(unittest.TestCase):
    """Has a folder of its own and a way to call the program."""

    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)
        self.children = []

    def tearDown(self):
        for child in self.children:
            if child.poll() is None:
                child.kill()
            child.wait()
            for stream in (child.stdin, child.stdout, child.stderr):
                if stream:
                    stream.close()

    def write(self, text, name="targets.txt"):
        """Writes a file into the folder and gives its path."""
        path = os.path.join(self.folder.name, name)
        with open(path, "wb") as file:
            file.write(text if isinstance(text, bytes) else text.encode())
        return path

    def call(self, *arguments, status=None, env=None, **options):
        """Runs speedbump to its end; checks the exit status where one is given."""
        done = subprocess.run(
            [SPEEDBUMP, *map(str, arguments)],
            capture_output=True,
            text=True,
            errors="replace",
            timeout=60,
            stdin=subprocess.DEVNULL,
            env={**os.environ, "NO_COLOR": "1", **(env or {})},
            **options,
        )
        if status is not None:
            self.assertEqual(done.returncode, status, f"{done.args}\n{done.stdout}\n{done.stderr}")
        return done

    def start(self, *command, **options):
        """Starts a program that ends with the test at the latest."""
        options.setdefault("stdin", subprocess.PIPE)
        options.setdefault("stdout", subprocess.PIPE)
        options.setdefault("stderr", subprocess.PIPE)
        child = subprocess.Popen(list(map(str, command)), text=True, **options)
        self.children.append(child)
        return child


def main():
    """Runs the tests of the calling module."""
    unittest.main(argv=[sys.argv[0], *sys.argv[3:]], verbosity=2)
