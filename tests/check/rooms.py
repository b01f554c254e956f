# SPDX-License-Identifier: MIT
"""The house is as it is said to be: rooms include what the table of docs/architecture.md says, files
and functions are short, and what is shared is there once."""

import collections
import pathlib
import re
import sys

MAX_FILE_LINES = 500
MAX_FUNCTION_LINES = 80
MAX_BRANCHES = 25  # if, for, while, case
NO_FUNCTIONS = "if for while switch else do struct class enum namespace".split()

# What is longer, and why it still is. What is short again must go from here.
LONG_FILES = {}
LONG_FUNCTIONS = {
    ("user/inject/needed_calls.cpp", "needed_calls"): "a table",
    ("user/inject/payload_code.h", "speedbump_payload_work"): "runs in the target: calls nothing",
}

# (pattern, the files that may have it, what it is)
ONCE = [
    (r"process_vm_readv\(", {"user/process/memory.cpp"}, "a reader of another process's memory"),
    (r"(__destroy|ring_buffer__free)\(", {"user/engine/libbpf.h"}, "an owner of a libbpf object"),
    (r"using Clock =", {"user/util/clock.h"}, "a Clock"),
    (r"epoll_create1\(", {"user/util/event_loop.h"}, "the set-up of an epoll"),
    (r"SYS_openat2", {"user/util/file.cpp"}, "an open below a root"),
    (r"posix_spawnp?\(", {"user/util/spawn.cpp"}, "a posix_spawn"),
    (r"double median\(|T median\(", {"user/util/numbers.h"}, "a median"),
    (r"ifstream \w+\(.*status", {"user/util/proc.cpp"}, "a reader of /proc/PID/status"),
    (r"k(InterpretersHead|ThreadsMain) =", {"user/cpython/offsets.h"}, "an offset of CPython's"),
    (r"10'?000'?000'?000(?!')|\b10_000_000_000\b", {"user/targets/duration.cpp"},
     "the longest delay (SB_MAX_DELAY_NS)"),
]


def sources(folder, *endings):
    found = pathlib.Path(folder).rglob("*")
    return sorted(path for path in found if path.suffix in endings and not path.is_symlink())


def room_of(path):
    """The row of the table that a file belongs to."""
    parts = path.parts
    return "/".join(parts[:2]) if parts[0] == "user" and len(parts) > 2 else parts[0]


def included(header, path):
    """The room of a header that the file at this path includes; None for a library's."""
    if header.endswith(".skel.h"):
        return "bpf"
    for folder in (path.parent, *map(pathlib.Path, ("user", "bpf", "kmod"))):
        if (folder / header).exists():
            return room_of((folder / header).resolve().relative_to(pathlib.Path.cwd()))
    return None


def edges_of_code(places):
    edges = {place: set() for place in places}
    for place in places:
        for path in sources(place, ".h", ".cpp", ".c"):
            for header in re.findall(r'^#include "([^"]+)"', path.read_text(), re.M):
                room = included(header, path)
                if room is not None and room != place:
                    edges[place].add(room)
    return edges


def table():
    """Room to what it needs, in the order of docs/architecture.md."""
    rows = {}
    text = pathlib.Path("docs/architecture.md").read_text()
    for room, needs in re.findall(r"^\| `([a-z/]+?)/?` \|.*\|([^|\n]*)\|$", text, re.M):
        names = re.findall(r"[a-z]+", needs)
        rows[room] = {name if name in ("bpf", "kmod") else f"user/{name}" for name in names}
    return rows


def check_edges():
    rows = table()
    folders = {f"user/{p.name}" for p in pathlib.Path("user").iterdir() if p.is_dir()}
    folders |= {"bpf", "kmod", "pyext"}
    for room in folders ^ set(rows):
        yield f"{room} is {'not in the table' if room in folders else 'no folder'}"
    code = edges_of_code(sorted(folders & set(rows)))
    for room, found in code.items():
        for other in sorted(found - rows[room]):
            yield f"{room} includes {other}, which the table does not say"
        for other in sorted(rows[room] - found):
            yield f"{room} includes nothing of {other}, which the table says"
    above = set()
    for room, needs in rows.items():
        for other in sorted(needs - above):
            yield f"{room} needs {other}, which must be above it in the table (no circles)"
        above.add(room)


def functions(text):
    """(name, lines, branches) of the functions that a formatted text defines, those in classes included."""
    lines = text.split("\n")
    for indent in ("", "    "):
        for end in (n for n, line in enumerate(lines) if line == indent + "}"):
            begin = end - 1
            while begin > 0 and not re.match(indent + r"[^\s#]", lines[begin]):
                begin -= 1
            head = " ".join(lines[begin:end]).split("{")[0]
            head = re.sub(r"__attribute__\(\(.*?\)\)\)?", "", head).split("(")
            words = re.findall(r"[\w:~]+", head[0])
            if len(head) > 1 and words and "=" not in head[0] and words[0] not in NO_FUNCTIONS:
                body = re.sub(r'//.*|"(\\.|[^"\\])*"', "", "\n".join(lines[begin:end]))
                branches = len(re.findall(r"\b(?:if|for|while|case)\b", body))
                yield words[-1], end + 1 - begin, branches


def check_lengths():
    long_files, long_functions = set(), set()
    for path in sources("user", ".h", ".cpp"):
        count = path.read_text().count("\n")
        if count > MAX_FILE_LINES:
            long_files.add(str(path))
            if str(path) not in LONG_FILES:
                yield f"{path} has {count} lines; {MAX_FILE_LINES} is the limit"
        for name, length, branches in functions(path.read_text()):
            if branches > MAX_BRANCHES:
                yield f"{path}: {name}() has {branches} branches; {MAX_BRANCHES} is the limit"
            if length > MAX_FUNCTION_LINES:
                long_functions.add((str(path), name))
                if (str(path), name) not in LONG_FUNCTIONS:
                    yield f"{path}: {name}() has {length} lines; {MAX_FUNCTION_LINES} is the limit"
    for entry in sorted(LONG_FILES.keys() - long_files):
        yield f"{entry} is short again: take it off the list of long files"
    for path, name in sorted(LONG_FUNCTIONS.keys() - long_functions):
        yield f"{path}: {name}() is short again: take it off the list of long functions"


def check_once():
    for pattern, places, what in ONCE:
        for path in sources("user", ".h", ".cpp") + sources("bpf", ".h", ".c") + \
                sources("kmod", ".h", ".c") + sources("pyext", ".h", ".cpp", ".py"):
            if str(path) not in places and re.search(pattern, path.read_text()):
                yield f"{path}: {what} is in {' '.join(places)} alone"
    names = collections.defaultdict(set)
    for path in sources("bpf", ".h") + sources("kmod", ".h", ".c"):
        for name in re.findall(r"^#define (SB_\w+)", path.read_text(), re.M):
            names[name].add(str(path))
    for name, places in names.items():
        if len(places) > 1:
            yield f"{name} is defined in {' and '.join(sorted(places))}"


def self_test():
    """It finds what it is for."""
    text = "int a(int b,\n      int c) {\n    if (b) {\n    }\n}\n\nclass B {\n    void d() {\n    }\n};\n"
    assert sorted(functions(text)) == [("a", 5, 1), ("d", 2, 0)], list(functions(text))
    assert included("elf/image.h", pathlib.Path("user/process/maps.cpp")) == "user/elf"
    assert included("sb_common.h", pathlib.Path("kmod/command.h")) == "bpf"
    assert included("vector.h", pathlib.Path("kmod/command.h")) is None


self_test()
problems = [*check_edges(), *check_lengths(), *check_once()]
print("\n".join(problems) or f"{len(table())} rooms are as the table says")
sys.exit(1 if problems else 0)
