#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""What built files ask of the host that they run on, by their dynamic section.

    symbols.py core FILE...         cores: glibc 2.28, no C++ library, one symbol given
    symbols.py program FILE...      programs of a package: Debian 12's glibc and C++ library
    symbols.py static FILE...       programs of the archive: nothing
"""

import re
import subprocess
import sys
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


def main() -> int:
    kind, files = sys.argv[1], sys.argv[2:]
    if not files:
        print("no files to look at")
        return 1
    bad = 0
    for file in files:
        for problem in problems(kind, file):
            print(f"{Path(file).name}: {problem}")
            bad += 1
    print(f"{len(files)} files, {bad} problems")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
