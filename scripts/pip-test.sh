#!/bin/sh
# SPDX-License-Identifier: MIT
# Installs the package with pip into a fresh environment of the distribution's Python, without a
# network, and runs a program that the variable alone slows. Needs python3-venv, python3-pip and
# python3-scikit-build-core.
set -eu

source_root=$(cd "$(dirname "$0")/.." && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
/usr/bin/python3 -m venv --system-site-packages "$work/venv"
"$work/venv/bin/pip" install --quiet --no-build-isolation --no-index "$source_root/pyext"
echo '__main__:f delay=1ms' >"$work/targets.txt"
cat >"$work/app.py" <<'PROGRAM'
import sys, time
def f(): pass
begin = time.perf_counter()
for _ in range(20):
    f()
slow = time.perf_counter() - begin >= 0.02
sys.exit(0 if slow == ("speed_bump" in sys.modules) == (len(sys.argv) > 1) else 1)
PROGRAM
SPEED_BUMP_TARGETS="$work/targets.txt" "$work/venv/bin/python" "$work/app.py" slowed
"$work/venv/bin/python" "$work/app.py"
"$work/venv/bin/pip" uninstall --quiet --yes speed-bump
SPEED_BUMP_TARGETS="$work/targets.txt" "$work/venv/bin/python" "$work/app.py"
echo "pip install, activation and uninstall: good"
