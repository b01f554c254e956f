#!/bin/sh
# SPDX-License-Identifier: MIT
# Makes a Debian sid root with the newest Pythons, for building and testing the Python core, at
# build/sid-root. Takes half a minute; needs root and debootstrap. Does nothing if it is there.
set -eu

source_root=$(cd "$(dirname "$0")/.." && pwd)
root=${1:-$source_root/build/sid-root}

if [ -x "$root/usr/bin/python3.15" ] && [ -d "$root/usr/include/pybind11" ]; then
    echo "sid root: $root is there"
    exit 0
fi
# The mirror that this host's own apt uses for Debian.
mirror=$(apt-get indextargets --format '$(ORIGIN) $(REPO_URI)' 2>/dev/null |
    awk '$1 == "Debian" && $2 !~ /security|backports/ { print $2; exit }')
if [ -z "$mirror" ]; then
    echo "sid-root.sh: apt on this host knows no Debian mirror" >&2
    exit 1
fi
rm -rf "$root.new"
mkdir -p "$(dirname "$root")"
debootstrap --variant=minbase \
    --include=python3.14,python3.15,python3.14-dev,python3.15-dev,pybind11-dev \
    sid "$root.new" "$mirror"
rm -rf "$root"
mv "$root.new" "$root"
echo "sid root: made $root"
