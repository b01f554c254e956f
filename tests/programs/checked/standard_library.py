# SPDX-License-Identifier: MIT
"""CPython's own tests of its modules, over and over: which failed, for each line of input.

    standard_library.py NAME...     test_json test_generators.GeneratorTest ...

The tests of a module may include its doctests, as its load_tests() says; those of a class do not.
"""

import contextlib
import io
import sys
import unittest

for _ in sys.stdin:
    suite = unittest.TestSuite(
        unittest.defaultTestLoader.loadTestsFromName(f"test.{name}") for name in sys.argv[1:])
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        result = unittest.TextTestRunner(stream=io.StringIO(), verbosity=0).run(suite)
    bad = sorted(str(case) for case, _ in result.failures + result.errors)
    print(result.testsRun, len(result.skipped), bad, flush=True)
