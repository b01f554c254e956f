# SPDX-License-Identifier: MIT
"""Imported by speed_bump.pth at the start of an interpreter when SPEED_BUMP_TARGETS is set."""

from __future__ import annotations

import os
import sys


def _start() -> None:
    # The program starts in any case; what went wrong is one line on stderr.
    try:
        from . import _monitoring
        from ._config import load_config

        _monitoring.install(load_config())
    except Exception as error:
        text = str(error).strip()
        reason = text.splitlines()[0] if text else type(error).__name__
        if sys.stderr is not None:
            print(f"speed_bump: not slowing: {reason}", file=sys.stderr, flush=True)
        if os.environ.get("SPEED_BUMP_STRICT") == "1":
            os._exit(2)


_start()
