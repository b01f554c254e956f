#!/bin/bash
# SPDX-License-Identifier: MIT
# A core that was built on the newest Debian, by its compiler and with its C and C++ library, asks for
# nothing newer than glibc 2.28, and loads into a process of this host.
# usage: newest_cores_test.sh SPEEDBUMP PYTHON     PYTHON: Debian's own on this host.
# Status 77: skipped, with the reason.
set -euo pipefail
skip() {
    echo "SKIP: $*"
    exit 77
}
speedbump=$1 python=$(readlink -f "$2")
name=${python##*/}
cd "$(dirname "$0")/../.."
[ "$(id -u)" = 0 ] || skip "not root"
command -v debootstrap >/dev/null || skip "no debootstrap here"
git rev-parse --is-inside-work-tree >/dev/null 2>&1 || skip "not a clone"
[ -e "/usr/include/$name/Python.h" ] || skip "no headers of $name here"
# shellcheck source=scripts/debian-root.sh
. scripts/debian-root.sh
root=$(mktemp -d)
process=
cleanup() {
    [ -z "$process" ] || kill "$process" 2>/dev/null || true
    rm -rf --one-file-system "$root"
}
trap cleanup EXIT
make_root sid "$root" || skip "no root of sid"

# The interpreter and its headers go into the root, beside those that sid has.
tar -C / -c --exclude dist-packages "usr/bin/$name" "usr/lib/$name" "usr/include/$name" \
    "usr/include/$(uname -m)-linux-gnu/$name" | tar -C "$root" -x
mkdir "$root/srv/speedbump"
git ls-files -z | tar -c --null -T - | tar -C "$root/srv/speedbump" -x
version=$("$python" -c 'import sys; print("%d.%d.%d" % sys.version_info[:3])')
in_root "$root" bash -euc '
    cd /srv/speedbump
    scripts/setup.sh build >/srv/log 2>&1 || { tail -n 40 /srv/log; exit 1; }
    { cmake -S . -B build -G Ninja -DSPEEDBUMP_TESTS=OFF && ninja -C build "core-$1"; } >/srv/log 2>&1 ||
        { tail -n 40 /srv/log; exit 1; }
    c++ --version' - "$version"
cores=$root/srv/speedbump/build/pyext/python/$version/speed_bump
/usr/bin/python3 tests/package/symbols.py core "$cores"/_core*.so

"$python" -Sc '
import time
def slowed(): pass
print(flush=True)
while True: slowed(); time.sleep(0.001)' >"$root/srv/started" &
process=$!
until [ -s "$root/srv/started" ]; do
    kill -0 "$process" || exit 1
    sleep 0.1
done
echo '__main__:slowed delay=100us' >"$root/srv/targets.txt"
document=$(SPEEDBUMP_CORES=$cores "$speedbump" attach --json --duration=1s --pid "$process" \
    "$root/srv/targets.txt" | tail -n 1)
grep -qF "$cores/_core" "/proc/$process/maps" || { echo "it was not loaded: $document"; exit 1; }
grep -qE '"all":\{"calls":[0-9]+,"delays":[1-9]' <<<"$document" || { echo "not slowed: $document"; exit 1; }
echo "a core of sid for $name $version is loaded here, and slows"
