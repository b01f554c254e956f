#!/bin/sh
# SPDX-License-Identifier: MIT
# Makes a Debian sid root with the newest Pythons and pybind11, which building and testing the
# Python core for all versions needs, and links it as build/sid-root. It is kept in the user's cache
# ($XDG_CACHE_HOME/speedbump/sid-root) for all source trees. Takes a minute the first time; does
# nothing when it is there. Needs root and debootstrap; without them or a network it says "skipped".
set -eu

source_root=$(cd "$(dirname "$0")/.." && pwd)
root=${XDG_CACHE_HOME:-$HOME/.cache}/speedbump/sid-root
link=$source_root/build/sid-root

skip() {
    echo "sid root: skipped, $*: no cores for the newest Pythons" >&2
    exit 0
}

is_complete() { [ -x "$1/usr/bin/python3.15" ] && [ -d "$1/usr/include/pybind11" ]; }

if is_complete "$link"; then exit 0; fi
mkdir -p "$(dirname "$root")" "$(dirname "$link")"
exec 9>"$root.lock"
flock 9 # another tree may be making it
if ! is_complete "$root"; then
    command -v debootstrap >/dev/null || skip "no debootstrap here"
    [ "$(id -u)" = 0 ] || skip "not root"
    # shellcheck source=scripts/debian-mirror.sh
    . "$source_root/scripts/debian-mirror.sh"
    rm -rf --one-file-system "$root" "$root.new"
    echo "sid root: making $root" >&2
    debootstrap --variant=minbase \
        --include=python3.14,python3.15,python3.14-dev,python3.15-dev,pybind11-dev \
        sid "$root.new" ${mirror:+"$mirror"} >"$root.log" 2>&1 9>&- || # else debootstrap's own
        skip "debootstrap failed ($root.log)"
    rm -rf "$root.new/var/cache/apt/archives"/*.deb
    mv "$root.new" "$root"
fi
ln -sfn "$root" "$link"
