#!/bin/sh
# SPDX-License-Identifier: MIT
# Builds a free-threaded CPython from the distribution's source package, once, at
# build/python3.13t: no distribution has one ready-made. The source is that of Debian stable, which
# the archive keeps; it is fetched in the sid root (sid-root.sh). Does nothing if it is there.
set -eu

source_root=$(cd "$(dirname "$0")/.." && pwd)
root=${SID_ROOT:-$source_root/build/sid-root}
prefix=$source_root/build/python3.13t

if [ -x "$prefix/bin/python3.13t" ]; then
    echo "free-threaded Python: $prefix is there"
    exit 0
fi
mirror=$(awk '$1 == "deb" { print $2; exit }' "$root/etc/apt/sources.list")
cp /etc/resolv.conf "$root/etc/resolv.conf"
echo "deb-src $mirror trixie main" >"$root/etc/apt/sources.list.d/source.list"
mkdir -p "$root/var/tmp/python"
chroot "$root" sh -euc '
    apt-get -o Acquire::Check-Valid-Until=false update
    cd /var/tmp/python
    apt-get source --download-only python3.13'
work=$prefix.build
rm -rf "$work"
mkdir -p "$work"
tar --extract --strip-components=1 --directory "$work" \
    --file "$root"/var/tmp/python/python3.13_*.orig.tar.xz
cd "$work"
./configure --quiet --prefix="$prefix" --disable-gil --without-ensurepip --disable-test-modules
make --silent --jobs "$(nproc)"
make --silent install
rm -rf "$work"
echo "free-threaded Python: made $prefix"
