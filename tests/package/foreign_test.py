# SPDX-License-Identifier: MIT
"""Packages that were cross-built for aarch64, as far as this machine can tell: what is in them, and in
qemu's user emulation the programs and each wheel, in its Python.

foreign_test.py PACKAGES ROOT...    what SPEEDBUMP_MACHINE=aarch64 scripts/package.sh made; ROOT: folders of
                                    scripts/arm64-root.sh. Status 77: skipped, with the reason.
"""

import os
import pathlib
import re
import subprocess
import sys
import tempfile
import zipfile

PACKAGES, ROOTS = pathlib.Path(sys.argv[1]), [pathlib.Path(name).resolve() for name in sys.argv[2:]]
SLOWED = """
import time
import speed_bump
def slowed():
    return 1
def calls():
    begin = time.monotonic()
    for _ in range(20):
        slowed()
    return time.monotonic() - begin
with speed_bump.slow("__main__:slowed", delay="3ms") as target:
    assert calls() >= 0.06
    assert target.stats().delays == 20, target.stats()
before = target.stats().calls
calls()
assert target.stats().calls == before, "after the end"
"""


def skip(reason: str) -> None:
    print("SKIP:", reason)
    sys.exit(77)


def one(pattern: str) -> pathlib.Path:
    (found,) = PACKAGES.glob(pattern)
    return found


def sums(folder: pathlib.Path) -> dict[str, bytes]:
    """The programs and cores of a folder that was unpacked."""
    return {path.name: path.read_bytes() for path in folder.rglob("*")
            if path.is_file() and re.search(r"/(bin|cores)/", str(path))}


def test_packages_have_the_files_of_the_archive(work: pathlib.Path) -> None:
    for name in ("archive", "deb", "rpm"):
        (work / name).mkdir()
    subprocess.run(["tar", "-xf", one("*.tar.gz"), "-C", work / "archive"], check=True)
    subprocess.run(["dpkg-deb", "-x", one("speedbump_*_arm64.deb"), work / "deb"], check=True)
    packed = subprocess.run(["rpm2cpio", one("speedbump-[0-9]*.aarch64.rpm")], check=True,
                            capture_output=True).stdout
    subprocess.run(["busybox", "cpio", "-id"], check=True, input=packed, cwd=work / "rpm",
                   capture_output=True)
    archive = sums(work / "archive")
    assert {"speedbump", "sbctl"} < archive.keys() and len(archive) > 2, archive.keys()
    assert sums(work / "deb") == archive
    assert sums(work / "rpm").keys() == archive.keys()  # rpm takes the compiler's name out
    said = subprocess.run(["qemu-aarch64-static", work / "deb/usr/bin/speedbump", "doctor"],
                          capture_output=True, text=True).stdout
    cores = {f"{tag[0]}.{tag[1:]}" for tag in re.findall(r"cpython-(\d+)-", " ".join(archive))}
    told = re.search(r"Python cores +for CPython (.*)", said)
    assert told and set(told[1].split(", ")) == cores, said


def test_each_wheel_slows_its_python(work: pathlib.Path) -> None:
    tried = []
    for wheel in sorted(PACKAGES.glob("*.whl")):
        match = re.search(r"-cp3(\d+)-cp3\1-manylinux_2_28_aarch64\.whl$", wheel.name)
        assert match, wheel.name
        python = f"usr/bin/python3.{match[1]}"
        root = next((root for root in ROOTS if (root / python).exists()), None)
        assert root, f"no {python} in {ROOTS}"
        folder = work / wheel.stem
        with zipfile.ZipFile(wheel) as packed:
            packed.extractall(folder)
        subprocess.run(
            ["qemu-aarch64-static", "-L", root, root / python, "-c", SLOWED], check=True,
            env=os.environ | {"PYTHONHOME": str(root / "usr"), "PYTHONPATH": str(folder)})
        tried.append(f"3.{match[1]}")
    print("slowed by their wheels:", *tried)
    assert tried


if __name__ == "__main__":
    if not list(PACKAGES.glob("*.whl")):
        skip(f"no packages in {PACKAGES}: SPEEDBUMP_MACHINE=aarch64 scripts/package.sh makes them")
    for name, test in list(globals().items()):
        if name.startswith("test_"):
            with tempfile.TemporaryDirectory() as folder:
                test(pathlib.Path(folder))
            print(f"{name}: good", flush=True)
