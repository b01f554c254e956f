# SPDX-License-Identifier: MIT
"""What a file uses of the libraries it includes, itself or by a header of ours: others bring it along in one
version of a library, or of a compiler, only."""

import functools
import pathlib
import re

FOLDERS = ("user", "pyext", "tests")
# header: what is in it
HEADERS = {
    "algorithm": "adjacent_find all_of any_of binary_search clamp copy copy_if copy_n count_if equal "
                 "equal_range fill fill_n find find_if find_if_not for_each generate inplace_merge is_sorted "
                 "lexicographical_compare lower_bound max_element merge min_element minmax_element mismatch "
                 "none_of nth_element partial_sort partition remove_if replace reverse rotate search "
                 "set_difference sort stable_sort transform unique upper_bound",
    "array": "array",
    "atomic": "atomic",
    "charconv": "from_chars to_chars",
    "chrono": "chrono",
    "cmath": "ceil exp fabs floor hypot isfinite isinf isnan llround log lround pow sqrt",
    "condition_variable": "condition_variable",
    "cstdlib": "abort exit getenv strtoul strtoull",
    "cstring": "memcmp memcpy memset strcmp strerror strlen",
    "deque": "deque",
    "fstream": "ifstream ofstream",
    "functional": "function",
    "iterator": "back_inserter front_inserter inserter",
    "limits": "numeric_limits",
    "map": "map",
    "memory": "make_shared make_unique shared_ptr unique_ptr weak_ptr",
    "mutex": "lock_guard mutex",
    "numeric": "accumulate gcd inner_product iota partial_sum",
    "optional": "nullopt optional",
    "random": "mt19937 mt19937_64",
    "set": "set",
    "span": "span",
    "sstream": "istringstream ostringstream stringstream",
    "string": "to_string",
    "thread": "thread",
    "tuple": "tie tuple",
    "unordered_map": "unordered_map",
    "unordered_set": "unordered_set",
    "utility": "exchange",
    "variant": "variant",
    "vector": "vector",
}
USES = {header: re.compile(rf"\bstd::(?:{'|'.join(names.split())})\b") for header, names in HEADERS.items()}
# (what is used, the header that each file has to include itself)
DIRECT = [(re.compile(r"\bfmt::join\("), "fmt/ranges.h")]


@functools.cache
def included(path):
    """The headers of others that a file includes, by its own too."""
    found = set()
    for kind, header in re.findall(r'^#include ([<"])([^>"]+)', path.read_text(), re.M):
        if kind == "<":
            found.add(header)
            continue
        places = (folder / header for folder in (path.parent, *map(pathlib.Path, FOLDERS)))
        own = next((place for place in places if place.exists()), None)
        if own:
            found |= included(own)
    return found


def missing(text, headers):
    """What the text uses whose header is none of these, and the header."""
    for header, use in USES.items():
        match = use.search(text)
        if match and header not in headers:
            yield match[0], header
    for use, header in DIRECT:
        match = use.search(text)
        if match and f"#include <{header}>" not in text:
            yield match[0], header


assert list(missing("std::copy_n(a); std::vector<int> b;", {"vector"})) == [("std::copy_n", "algorithm")]
assert list(missing("fmt::join(a)", {"fmt/ranges.h"})) == [("fmt::join(", "fmt/ranges.h")]
problems = [f"{path} uses {name} and does not include <{header}>"
            for folder in FOLDERS for path in sorted(pathlib.Path(folder).rglob("*"))
            if path.suffix in (".cpp", ".h") and not path.is_symlink()
            for name, header in missing(path.read_text(), included(path))]
print("\n".join(problems) or "each file includes what it uses")
raise SystemExit(bool(problems))
