#!/bin/sh
# SPDX-License-Identifier: MIT
# Builds a free-threaded CPython from Debian's source package, since no distribution has one
# ready-made, and links it as build/python-free-threaded, where cmake finds it: 3.14 of sid, or 3.13
# of stable where the mirror has no sources of sid. It is kept in the user's cache
# ($XDG_CACHE_HOME/speedbump/python-free-threaded) for all source trees. On demand: takes some
# minutes the first time, does nothing when it is there, goes on where it was interrupted. The
# source is fetched in the sid root (sid-root.sh), by root; a C compiler of the host builds it.
set -eu

source_root=$(cd "$(dirname "$0")/.." && pwd)
root=$source_root/build/sid-root
prefix=${XDG_CACHE_HOME:-${HOME:-/root}/.cache}/speedbump/python-free-threaded
work=$prefix.build

# fetch SUITE VERSION: the upstream source of a suite's Python, unpacked at $work.
fetch() {
    echo "deb-src $mirror $1 main" >"$root/etc/apt/sources.list.d/source.list"
    rm -rf "$root/var/tmp/python" "$work.new"
    mkdir -p "$root/var/tmp/python" "$work.new"
    chroot "$root" sh -euc '
        apt-get -q -o Acquire::Check-Valid-Until=false update
        cd /var/tmp/python
        apt-get -q source --download-only --tar-only "$1"' sh "python$2/$1" || return 1
    tar --extract --strip-components=1 --directory "$work.new" \
        --file "$root"/var/tmp/python/python"$2"_*.orig.tar.xz
    rm -rf "$root/var/tmp/python"
    mv "$work.new" "$work"
}

if [ ! -x "$prefix/bin/python3" ]; then
    "$source_root/scripts/sid-root.sh"
    if [ ! -x "$work/configure" ]; then
        mirror=$(awk '$1 == "deb" { print $2; exit }' "$root/etc/apt/sources.list")
        cp /etc/resolv.conf "$root/etc/resolv.conf"
        fetch sid 3.14 || fetch trixie 3.13
    fi
    cd "$work"
    [ -f Makefile ] ||
        ./configure --quiet --prefix="$prefix" --disable-gil --without-ensurepip \
            --disable-test-modules
    make --silent --jobs "$(nproc)"
    make --silent install >/dev/null
    rm -rf "$work"
fi
mkdir -p "$source_root/build"
ln -sfn "$prefix" "$source_root/build/python-free-threaded"
echo "free-threaded Python: build/python-free-threaded, $("$prefix/bin/python3" --version)"
