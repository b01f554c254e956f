# SPDX-License-Identifier: MIT
"""For a program that does one round of work for each line that it reads, and says what came of it."""

import sys
from collections.abc import Callable


def serve(work: Callable[[], object]) -> None:
    print(work(), flush=True)  # what only a first round does is done
    for _ in sys.stdin:
        print(work(), flush=True)
