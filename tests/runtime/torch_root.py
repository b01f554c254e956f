# SPDX-License-Identifier: MIT
"""PyTorch of Debian 13 in a root of its own (scripts/torch-root.sh)."""

import os
import pathlib

from harness import Run, Skip

CACHE = pathlib.Path(os.environ.get("XDG_CACHE_HOME") or pathlib.Path.home() / ".cache")
_ROOT = CACHE / "speedbump" / "torch-root"
FOR_ITS_ROOT = """
for place in proc sys dev; do mount --rbind /$place "$1/$place"; done
exec chroot "$1" /usr/bin/python3 -c "$2" $3
"""


def root() -> pathlib.Path:
    if not (_ROOT / "usr/lib/python3/dist-packages/torch").exists():
        raise Skip(f"no PyTorch in {_ROOT}: scripts/torch-root.sh makes it")
    return _ROOT


def in_root(program: pathlib.Path, argument: str = "") -> list[str]:
    """The command that runs a Python program there."""
    return ["unshare", "--mount", "sh", "-c", FOR_ITS_ROOT, "sh", str(root()), program.read_text(),
            argument]


def need_core(pid: int) -> None:
    """A core for its Python, which is another than this host's."""
    done = Run("list", "--pid", str(pid), "__main__:*")
    if "no core is built" in done.err:
        raise Skip(done.err)
    assert done.status == 0, done
