#!/bin/sh
# SPDX-License-Identifier: MIT
# Installs the package with pip into a fresh environment of the distribution's Python, without a
# network, and runs a program that the variable alone slows. Needs python3-venv, python3-pip and
# python3-scikit-build-core (0.10 or later); without them it is skipped, with status 77.
set -eu

source_root=$(cd "$(dirname "$0")/.." && pwd)
/usr/bin/python3 -c 'import pip, scikit_build_core as s, sys, venv
sys.exit(tuple(map(int, s.__version__.split(".")[:2])) < (0, 10))' 2>/dev/null || {
    echo "skipped: no python3-venv, python3-pip and python3-scikit-build-core 0.10"
    exit 77
}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
/usr/bin/python3 -m venv --system-site-packages "$work/venv"
# Compiled once for all runs of this test, where there is a ccache.
command -v ccache >/dev/null && export CMAKE_CXX_COMPILER_LAUNCHER=ccache
export CCACHE_BASEDIR=/ CCACHE_NOHASHDIR=true
"$work/venv/bin/pip" install --quiet --no-build-isolation --no-index \
    --config-settings=build-dir="$work/build" "$source_root/pyext"
echo '__main__:f delay=1ms' >"$work/targets.txt"
cat >"$work/app.py" <<'PROGRAM'
import sys, time
def f(): pass
def call():
    begin = time.perf_counter()
    f()
    return time.perf_counter() - begin
least = min(call() for _ in range(20))
slow = least >= 0.00099  # a delay is net, and right to 1 %
if not slow == ("speed_bump" in sys.modules) == (len(sys.argv) > 1):
    sys.exit(f"{sys.argv[1:]}: a call took {least} s, speed_bump is there: {'speed_bump' in sys.modules}")
PROGRAM
SPEED_BUMP_TARGETS="$work/targets.txt" "$work/venv/bin/python" "$work/app.py" slowed
"$work/venv/bin/python" "$work/app.py"
"$work/venv/bin/pip" uninstall --quiet --yes speed-bump
SPEED_BUMP_TARGETS="$work/targets.txt" "$work/venv/bin/python" "$work/app.py"
echo "pip install, activation and uninstall: good"
