#!/bin/bash
# SPDX-License-Identifier: MIT
# Makes the archive that runs on every host: statically linked programs, and a Python core for each
# CPython found. The same sources give the same bytes.
#
#   scripts/archive.sh [BUILD [OUT]]     BUILD: the folder to build in, default build-static; OUT: the
#                                        folder for the archive, default BUILD
#
# SPEEDBUMP_MACHINE=aarch64 cross-builds it (scripts/setup.sh aarch64 first), with cores for the Pythons
# of Debian's arm64 packages, also of newer releases (arm64-root.sh).
# The last line names the archive. SOURCE_DATE_EPOCH is the date of all files in it; default: that of
# the last commit.
set -euo pipefail
cd "$(dirname "$0")/.."
build=${1:-build-static}
out=${2:-$build}
epoch=${SOURCE_DATE_EPOCH:-$(git log -1 --format=%ct)}
version=$(sed -n 's/^project(speedbump VERSION \([0-9.]*\).*/\1/p' CMakeLists.txt)
machine=${SPEEDBUMP_MACHINE:-$(uname -m)}
name=speedbump-$version-linux-$machine
rm -f "$out/$name.tar.gz" # what fails below must not leave an older one to be taken for it

scripts/static-libraries.sh "$machine"
if [ "$machine" != "$(uname -m)" ]; then
    for suite in trixie sid; do
        scripts/arm64-root.sh "$suite" || echo "no core for the Pythons of $suite" >&2
    done
fi
export CCACHE_BASEDIR=$PWD CCACHE_NOHASHDIR=true
mkdir -p "$build" "$out"
toolchain=()
[ "$machine" = "$(uname -m)" ] || toolchain=(--toolchain "scripts/cmake/$machine.cmake")
cmake -S . -B "$build" "${toolchain[@]}" -G Ninja -DCMAKE_BUILD_TYPE=RelWithDebInfo \
    -DSPEEDBUMP_STATIC=ON -DSPEEDBUMP_TESTS=OFF -DSPEEDBUMP_UNITY=ON >"$build/configure.log" 2>&1 || {
    cat "$build/configure.log" >&2
    exit 1
}
cmake --build "$build"

stage=$(mktemp -d)
trap 'rm -rf "$stage"' EXIT
cmake --install "$build" --strip --prefix "$stage/$name" >/dev/null
tar --create --directory "$stage" --sort=name --mtime="@$epoch" --owner=0 --group=0 \
    --numeric-owner --mode=u=rwX,go=rX --format=ustar "$name" | gzip -9n >"$out/$name.tar.gz.new"
mv "$out/$name.tar.gz.new" "$out/$name.tar.gz"
echo "$out/$name.tar.gz"
