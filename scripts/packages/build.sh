#!/bin/bash
# SPDX-License-Identifier: MIT
# Makes the archive, the packages and the wheels here: the part of scripts/package.sh that runs in a
# clean root. They lie in out/.
set -euo pipefail
cd "$(dirname "$0")/../.."
export SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH:-$(git log -1 --format=%ct)}
rm -rf out build-static/packages
mkdir -p out
scripts/archive.sh build-static out # for SPEEDBUMP_MACHINE
for kind in DEB RPM; do
    cpack --config build-static/CPackConfig.cmake -G "$kind" -B build-static/packages >/dev/null
done
# Of no use elsewhere: it lies where Debian's Pythons look.
rm -f build-static/packages/*python*.rpm
cp build-static/packages/*.deb build-static/packages/*.rpm out/
/usr/bin/python3 scripts/packages/wheels.py build-static out
