# SPDX-License-Identifier: MIT
"""Compares the ways out that elf::ExitFinder knows with objdump's listing of the same file.

exits.py EXITS_SURVEY FILE...: of each file, how many functions are accepted, and how many returns
objdump shows in them that are not among the exits. A return that nothing leads to counts as well,
so that each one found is looked at: none is expected where no code follows a call that does not
return.
"""

import bisect
import re
import subprocess
import sys


def returns_of(path: str) -> list[int]:
    listing = subprocess.run(["objdump", "-d", "--no-show-raw-insn", path], text=True,
                             capture_output=True, check=True).stdout
    found = re.findall(r"^ *([0-9a-f]+):\t(?:repz |bnd )?ret\b", listing, re.MULTILINE)
    return sorted(int(one, 16) for one in found)


def sizes_of(path: str) -> dict[int, int]:
    sizes: dict[int, int] = {}
    for table in ("--syms", "--dyn-syms"):
        listing = subprocess.run(["readelf", "-W", table, path], text=True, capture_output=True,
                                 check=True).stdout
        for line in listing.splitlines():
            parts = line.split()
            if len(parts) > 7 and parts[3] == "FUNC":
                address, size = int(parts[1], 16), int(parts[2], 0)
                sizes[address] = max(size, sizes.get(address, 0))
    return sizes


def main() -> int:
    survey, *paths = sys.argv[1:]
    missed = 0
    for path in paths:
        returns, sizes = returns_of(path), sizes_of(path)
        accepted = compared = 0
        unknown = []
        for line in subprocess.run([survey, "--list", path], text=True, capture_output=True,
                                   check=True).stdout.splitlines():
            if not line.startswith("+"):
                continue
            accepted += 1
            _, name, *numbers = line.split()
            address, *exits = (int(one, 16) for one in numbers)
            begin = bisect.bisect_left(returns, address)
            end = bisect.bisect_left(returns, address + sizes.get(address, 0))
            compared += end - begin
            unknown += [f"{name} {one:x}" for one in returns[begin:end] if one not in exits]
        print(f"{path}: {accepted} functions, {compared} returns, {len(unknown)} not known")
        for one in unknown:
            print("   ", one)
        missed += len(unknown)
    return missed != 0


if __name__ == "__main__":
    sys.exit(main())
