# SPDX-License-Identifier: MIT
"""Runs clang-tidy over the C++ of user/ and pyext/, as the build folder compiles it.

    tidy.py BUILD

The files of a folder are looked at as one, since nearly all of the time goes into the headers that
they share; those that clash with others, by themselves. As builds may do the same, each is also compiled by
itself. What was clean is remembered in the
user's cache by all that could change it but the host's headers, in whatever folder the clone lies:
the next run looks only at what has changed. Of the Python cores, which are the same sources for each
interpreter, one for each kind of hook is enough. Exits 1 where there is a finding.
"""

import collections
import concurrent.futures
import functools
import hashlib
import json
import os
import pathlib
import re
import resource
import shlex
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
CONFIG = ROOT / ".clang-tidy"
CACHE = pathlib.Path(os.environ.get("XDG_CACHE_HOME") or pathlib.Path.home() / ".cache") / "speedbump/tidy"
KEPT_SECONDS = 30 * 86400
HEADERS = "/(user|pyext)/"
CORE = re.compile(r"/core-(?:sid-)?3\.(\d+)\b.*\.cxx$")
OPTIONS = ["--quiet", f"--config-file={CONFIG}", f"--header-filter=^{re.escape(str(ROOT))}{HEADERS}"]
INCLUDE = re.compile(r'^[ \t]*#[ \t]*include[ \t]*["<]([^">]+)[">]', re.M)
DEFINITION = re.compile(
    r"^(?:(?:struct|class|enum class) (\w+) [{:]|constexpr .*?(\w+)(?:\[\w*\])? = |int (main)\(|(\w.*\) \{)$)", re.M
)
ERROR = r"\[clang-diagnostic-error\]"
FINDING = re.compile(r"^(?=\S+:\d+:\d+: (?:error|fatal error|warning): |error: )", re.M)


def flags_of(entry: dict) -> tuple[str, ...]:
    """What the compiler of the entry is told about the language; g++'s own options mean nothing here."""
    flags = []
    words = iter(entry.get("arguments") or shlex.split(entry["command"]))
    for word in words:
        if word in ("-isystem", "-include", "-I", "-D"):
            flags += [word, next(words)]
        elif word.startswith(("-I", "-D", "-std=", "-m")):
            flags.append(word)
    return (*flags, "-w")  # warnings are the build's


def errors_alone(file: pathlib.Path, flags: tuple[str, ...]) -> list[str]:
    done = subprocess.run(["clang++", "-fsyntax-only", *flags, str(file)], capture_output=True, text=True,
                          check=False)  # fmt: skip
    return [f"by itself: {done.stderr.strip()}"] if done.returncode else []


class Group:
    """Files that are looked at as one."""

    def __init__(self, files: list[pathlib.Path], flags: tuple[str, ...]) -> None:
        self.files = files
        self.flags = flags

    def without_clashes(self, output: str) -> list["Group"]:
        """Those that the compiler's errors name by themselves, or each where that would be all."""
        named = [file for file in self.files if re.search(rf"^{re.escape(str(file))}:.*{ERROR}", output, re.M)]
        rest = [file for file in self.files if file not in named]
        parts = [rest, *([file] for file in named)] if named and rest else [[file] for file in self.files]
        return [Group(part, self.flags) for part in parts]

    def project_files(self) -> set[pathlib.Path]:
        """The files, and all others of the project that they could include."""
        joined = [flag[2:] for flag in self.flags if flag.startswith("-I")]
        apart = [name for flag, name in zip(self.flags, self.flags[1:]) if flag == "-isystem"]
        folders = [pathlib.Path(name) for name in joined + apart if name.startswith(str(ROOT))]
        found, to_read = set(self.files), list(self.files)
        while to_read:
            file = to_read.pop()
            for name in included_names(file):
                tried = (pathlib.Path(os.path.normpath(folder / name)) for folder in [file.parent, *folders])
                header = next((path for path in tried if is_project_file(path)), None)
                if header and header not in found:
                    found.add(header)
                    to_read.append(header)
        return found

    def key(self, version: str) -> str:
        total = hashlib.sha256()
        for text in [version, pathlib.Path(__file__).read_text(), CONFIG.read_text(), *self.flags]:
            total.update(text.replace(str(ROOT), "").encode() + b"\0")
        for file in sorted(self.project_files()):
            total.update(str(file).replace(str(ROOT), "").encode() + b"\0" + digest(file))
        return total.hexdigest()

    def findings(self) -> list[str]:
        """Each with the lines that belong to it."""
        with tempfile.NamedTemporaryFile("w", suffix=".cpp") as together:
            together.write("".join(f'#include "{file}"\n' for file in self.files))
            together.flush()
            command = ["clang-tidy", *OPTIONS, together.name, "--", *self.flags]
            done = subprocess.run(command, capture_output=True, text=True, check=False)
        if re.search(ERROR, done.stdout) and len(self.files) > 1:
            return [one for group in self.without_clashes(done.stdout) for one in group.findings()]
        if done.returncode == 0:
            apart = self.files if len(self.files) > 1 else []
            return [one for file in apart for one in errors_alone(file, self.flags)]
        parts = FINDING.split(done.stdout.replace(str(ROOT) + "/", ""))
        return [part.strip() for part in parts if part.strip()] or [done.stderr.strip()]


@functools.cache
def is_project_file(file: pathlib.Path) -> bool:
    return str(file).startswith(str(ROOT)) and file.is_file()


@functools.cache
def content(file: pathlib.Path) -> str:
    return file.read_text(errors="replace")


@functools.cache
def digest(file: pathlib.Path) -> bytes:
    return hashlib.sha256(content(file).replace(str(ROOT), "").encode()).digest()


@functools.cache
def included_names(file: pathlib.Path) -> list[str]:
    return INCLUDE.findall(content(file))


@functools.cache
def defined_names(file: pathlib.Path) -> set[str]:
    return {"".join(names) for names in DEFINITION.findall(content(file))}


def without_same_names(files: list[pathlib.Path]) -> list[list[pathlib.Path]]:
    """As few parts as go easily, so that no name is defined twice in one; what this misses, the
    compiler finds (Group.without_clashes)."""
    parts: list[tuple[list[pathlib.Path], set[str]]] = []
    for file in files:
        names = defined_names(file)
        for members, taken in parts:
            if taken.isdisjoint(names):
                members.append(file)
                taken |= names
                break
        else:
            parts.append(([file], set(names)))
    return [members for members, _ in parts]


def cores_to_look_at(names: list[str], llvm: int) -> set[str]:
    """Of the files that CMake puts the cores together in: one with frame evaluation (before 3.12) and one
    with sys.monitoring. clang before 15 can't read the atomics in the headers of 3.13 and later."""
    minors = {name: int(match[1]) for name in names if (match := CORE.search(name))}
    kinds = ([name for name in minors if minors[name] < 12],
             [name for name in minors if minors[name] >= 12 and (minors[name] < 13 or llvm >= 15)])
    return {min(kind, key=lambda name: (minors[name], name)) for kind in kinds if kind}


def files_of(name: str) -> list[str]:
    """Of a file that only puts others together (CMake's UNITY_BUILD), those; a core is looked at as one."""
    return included_names(pathlib.Path(name)) if "/Unity/" in name and not CORE.search(name) else [name]


def groups_of(build: pathlib.Path, llvm: int) -> list[Group]:
    """The largest first."""
    entries = json.loads((build / "compile_commands.json").read_text())
    cores = cores_to_look_at([entry["file"] for entry in entries], llvm)
    flags = {file: flags_of(entry) for entry in entries for file in files_of(entry["file"])
             if file in cores or re.match(rf"{re.escape(str(ROOT))}{HEADERS}.*\.cpp$", file)}
    files = collections.defaultdict(list)
    for name in sorted(flags):
        file = pathlib.Path(name)
        files[file.parent, flags[name]].append(file)
    groups = [Group(part, told) for (_, told), all_files in files.items() for part in without_same_names(all_files)]
    return sorted(groups, key=lambda group: -len(group.files))


def main() -> int:
    build = pathlib.Path(sys.argv[1]).resolve()
    version = subprocess.run(["clang-tidy", "--version"], capture_output=True, text=True, check=True).stdout
    CACHE.mkdir(parents=True, exist_ok=True)
    groups = groups_of(build, int(re.search(r"LLVM version (\d+)", version)[1]))
    count = sum(len(group.files) for group in groups)
    if count < 100:
        print(f"only {count} C++ files in {build}/compile_commands.json")
        return 1
    markers = {group: CACHE / group.key(version) for group in groups}
    changed = [group for group in groups if not markers[group].exists()]
    print(f"{count} files in {len(groups)} groups, {len(changed)} groups not known to be clean", flush=True)
    for group in set(groups) - set(changed):
        markers[group].touch()

    shown = set()
    with concurrent.futures.ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        runs = {pool.submit(group.findings): group for group in changed}
        for run in concurrent.futures.as_completed(runs):
            if not run.result():
                markers[runs[run]].touch()
            for finding in run.result():  # a header's come again with each group that includes it
                if finding not in shown:
                    print(finding, flush=True)
                shown.add(finding)
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    print(f"{len(shown)} findings; took {used.ru_utime + used.ru_stime:.0f} s of CPU")
    for marker in CACHE.iterdir():
        if time.time() - marker.stat().st_mtime > KEPT_SECONDS:
            marker.unlink(missing_ok=True)
    return 1 if shown else 0


if __name__ == "__main__":
    sys.exit(main())
