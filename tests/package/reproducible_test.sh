#!/bin/bash
# SPDX-License-Identifier: MIT
# Built again, in a folder of another name, at another time and with another umask: equal to the byte.
#   reproducible_test.sh BUILD CORE   sbctl and the Python core of a target, with those of a static
#                                     build
#   reproducible_test.sh              the archive, all packages and wheels: built twice
# Status 77: skipped, with the reason.
set -euo pipefail
cd "$(dirname "$0")/../.."
git rev-parse --is-inside-work-tree >/dev/null 2>&1 || {
    echo "SKIP: not a clone"
    exit 77
}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
export SOURCE_DATE_EPOCH=1700000000

# build FOLDER COMMAND...: runs it in a copy of the sources, and compiles all anew.
build() {
    local folder=$1
    mkdir -p "$folder/build"
    git ls-files -z | tar -c --null -T - | tar -C "$folder" -x
    [ ! -e build/sid-root ] || ln -s "$(readlink -f build/sid-root)" "$folder/build/sid-root"
    (cd "$folder" && CCACHE_DISABLE=1 "${@:2}") >"$work/log" 2>&1 || {
        status=$?
        tail -n 20 "$work/log"
        exit "$status"
    }
}

build_small() { # its caller asks for the status, so that `set -e` is off in here
    scripts/static-libraries.sh || return
    cmake -S . -B built -G Ninja -DSPEEDBUMP_STATIC=ON -DSPEEDBUMP_TESTS=OFF -DSPEEDBUMP_UNITY=ON || return
    cmake --build built --target sbctl "$core"
}

umask 027
if [ $# = 2 ]; then
    first=$1 core=$2
    build "$work/sources" build_small
    second=$work/sources/built
    for file in sbctl $(cd "$second" && echo pyext/python/*/speed_bump/_core*.so); do
        cmp "$first/$file" "$second/$file"
        sha256sum "$second/$file"
    done
else
    build "$work/one" scripts/packages/build.sh
    umask 022
    build "$work/another" scripts/packages/build.sh
    ls "$work/one/out"
    diff -r "$work/one/out" "$work/another/out"
fi
echo "equal to the byte"
