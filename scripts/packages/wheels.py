#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Makes a wheel of the package speed_bump for each core of a build.

    wheels.py BUILD OUT

`pip wheel` makes the first, for the Python that runs this; the others differ from it in the core and
the tags alone. All are tagged manylinux_2_28, which holds as no core needs a newer glibc; that is
looked at first (tests/package/symbols.py). The same cores give the same bytes.
"""

from __future__ import annotations

import base64
import hashlib
import os
import re
import subprocess
import sys
import tempfile
import time
import zipfile
from pathlib import Path

SOURCE = Path(__file__).resolve().parents[2]
CORE = re.compile(r"_core\.cpython-(3[0-9]+t?)-(x86_64|aarch64)-linux-gnu\.so")


def base_wheel(folder: Path) -> Path:
    subprocess.run(
        [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-build-isolation", "--no-deps",
         "--no-index", "--wheel-dir", str(folder), str(SOURCE / "pyext")],
        check=True,
    )
    (wheel,) = folder.glob("*.whl")
    return wheel


def record_line(name: str, data: bytes) -> str:
    digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
    return f"{name},sha256={digest},{len(data)}\n"


def write_wheel(files: dict[str, bytes], core: Path, out: Path, date: tuple[int, ...]) -> Path:
    match = CORE.fullmatch(core.name)
    assert match, core
    abi = f"cp{match[1]}"
    tag = f"{abi.rstrip('t')}-{abi}-manylinux_2_28_{match[2]}"
    with tempfile.NamedTemporaryFile(suffix=".so") as stripped:
        subprocess.run([f"{match[2]}-linux-gnu-strip", "-o", stripped.name, str(core)], check=True)
        content = {f"speed_bump/{core.name}": Path(stripped.name).read_bytes()}
    for name, data in files.items():
        if CORE.fullmatch(Path(name).name) or name.endswith("/RECORD"):
            continue
        if name.endswith(".dist-info/WHEEL"):
            data = re.sub(rb"(?m)^Tag: .*\n", b"", data).rstrip() + f"\nTag: {tag}\n".encode()
        content[name] = data
    (record,) = (name for name in files if name.endswith("/RECORD"))
    lines = [record_line(name, content[name]) for name in sorted(content)]
    content[record] = "".join([*lines, f"{record},,\n"]).encode()
    path = out / f"{record.removesuffix('.dist-info/RECORD')}-{tag}.whl"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as wheel:
        for name in sorted(content):
            entry = zipfile.ZipInfo(name, date)  # type: ignore[arg-type]
            entry.compress_type = zipfile.ZIP_DEFLATED
            entry.external_attr = 0o100644 << 16
            wheel.writestr(entry, content[name])
    return path


def main() -> int:
    build, out = Path(sys.argv[1]).resolve(), Path(sys.argv[2])
    cores: dict[str, Path] = {}
    for path in sorted(build.glob("pyext/python/*/speed_bump/_core.cpython-3*.so")):
        cores.setdefault(path.name, path)
    subprocess.run(
        [sys.executable, str(SOURCE / "tests/package/symbols.py"), "core", *map(str, cores.values())],
        check=True,
    )
    epoch = os.environ.get("SOURCE_DATE_EPOCH") or subprocess.run(
        ["git", "-C", str(SOURCE), "log", "-1", "--format=%ct"],
        check=True, capture_output=True, text=True,
    ).stdout
    date = time.gmtime(int(epoch))[:6]
    out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        with zipfile.ZipFile(base_wheel(Path(folder))) as wheel:
            files = {name: wheel.read(name) for name in wheel.namelist() if not name.endswith("/")}
        for core in cores.values():
            print(write_wheel(files, core, out, date))
    return 0


if __name__ == "__main__":
    sys.exit(main())
