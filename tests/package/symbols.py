#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""What built files ask of the host that they run on, by their dynamic section.

    symbols.py core FILE...         cores: glibc 2.28, no C++ library, one symbol given
    symbols.py program FILE...      programs of a package: Debian 12's glibc and C++ library
    symbols.py archive FILE         its programs: nothing; its cores: as above

Status 77: a file is not there.
"""

import re
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

# Debian 12 has glibc 2.36 and GCC 12.
NEWEST = {
    "core": {"GLIBC": (2, 28)},
    "program": {"GLIBC": (2, 36), "GLIBCXX": (3, 4, 30), "CXXABI": (1, 3, 13), "GCC": (12, 0),
                "CURL_OPENSSL": (4,), "XZ": (5, 4)},
}
LIBRARIES = {
    "core": r"lib(c|m|pthread|dl)\.so\.[0-9]+|ld-linux-.*",
    # In Debian 12, 13 and sid under the same name.
    "program": r"lib(c|m|z|lzma|bz2|zstd|curl|seccomp|stdc\+\+|gcc_s)\.so\.[0-9]+|ld-linux-.*",
}


def output(*command: str) -> str:
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def version_of(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"[0-9]+", text))


def problems(kind: str, file: str) -> list[str]:
    if kind == "static":
        headers = output("readelf", "--wide", "--program-headers", file)
        return [f"has a {name} segment" for name in ("INTERP", "DYNAMIC") if name in headers]
    found = []
    for library in re.findall(r"NEEDED +(\S+)", output("objdump", "-p", file)):
        if not re.fullmatch(LIBRARIES[kind], library):
            found.append(f"needs {library}")
    given = []
    for line in output("objdump", "-T", file).splitlines():
        fields = line.split()
        if len(fields) < 4 or line[:1] != "0":
            continue
        name = fields[-1]
        if fields[1] == "l":  # of a section: nobody finds it by name
            continue
        if "*UND*" not in fields:
            given.append(name)
            continue
        match = re.search(r"\(?([A-Z_]+?)_([0-9][0-9.]*)\)?\s+\S+$", line)
        if not match:
            continue
        newest = NEWEST[kind].get(match[1])
        if newest is None:
            found.append(f"needs {name}, version {match[1]}_{match[2]}")
        elif version_of(match[2]) > newest:
            limit = ".".join(map(str, newest))
            found.append(f"needs {name}, version {match[1]}_{match[2]}: {limit} is the newest allowed")
    if kind == "core" and given != ["PyInit__core"]:
        found.append(f"gives {', '.join(given) or 'nothing'}; PyInit__core is all it should")
    return found


def contents(archive: str, folder: str) -> list[tuple[str, str]]:
    """Unpacks an archive: its programs and cores, each with its kind."""
    with tarfile.open(archive) as packed:
        packed.extractall(folder)
    return [(kind, str(path)) for kind, place in (("static", "bin"), ("core", "lib/speedbump/cores"))
            for path in sorted(Path(folder).glob(f"*/{place}/*"))]


def main() -> int:
    kind, names = sys.argv[1], sys.argv[2:]
    for name in names:
        if not Path(name).exists():
            print(f"SKIP: no {name}")
            return 77
    with tempfile.TemporaryDirectory() as folder:
        files = contents(names[0], folder) if kind == "archive" else [(kind, one) for one in names]
        kinds = {one for one, _ in files}
        if kinds != ({"static", "core"} if kind == "archive" else {kind}):
            print("no files to look at")
            return 1
        bad = 0
        for one, file in files:
            for problem in problems(one, file):
                print(f"{Path(file).name}: {problem}")
                bad += 1
    print(f"{len(files)} files, {bad} problems")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
