#!/bin/bash
# SPDX-License-Identifier: MIT
# Builds the static libraries that Debian does not ship (fmt, Zydis, and what elfutils 0.192 forgot in
# libelf.a: its eu-search.c), from Debian's sources of the very versions that are built with, and
# links them as build/static-libraries-MACHINE, where cmake -DSPEEDBUMP_STATIC=ON finds them. They
# are kept in the user's cache ($XDG_CACHE_HOME/speedbump/static-libraries-MACHINE-VERSIONS) for all
# source trees. Takes a minute the first time, does nothing when they are there. Needs no root. Status
# 77, with the reason, where the sources can't be had.
#
#   scripts/static-libraries.sh [MACHINE]     default: this host's; aarch64: with its cross compiler,
#                                             of the versions of build/arm64-root (arm64-root.sh)
set -euo pipefail
cd "$(dirname "$0")/.."

machine=${1:-$(uname -m)}
packages=(libfmt-dev libelf-dev)
[ "$machine" != x86_64 ] || packages+=(libzydis-dev)
tools=
[ "$machine" = "$(uname -m)" ] || tools=$machine-linux-gnu-

# source_of PACKAGE: the source of what is built with, and its version.
source_of() {
    if [ -z "$tools" ]; then
        dpkg-query -W -f '${source:Package} ${source:Version}' "$1"
    else
        awk -v package="$1" '$1 == package { print $2, $3; found = 1 } END { exit !found }' \
            build/arm64-root/packages
    fi
}

versions=
sources=()
for package in "${packages[@]}"; do
    found=$(source_of "$package") || {
        echo "SKIP: $package is not there (scripts/setup.sh build${tools:+ $machine})" >&2
        exit 77
    }
    sources+=("$found")
    versions+=-${found#* }
done
cache=${XDG_CACHE_HOME:-${HOME:-/root}/.cache}/speedbump
place=$cache/static-libraries-$machine$(tr -c 'A-Za-z0-9.\n-' _ <<<"$versions")
mkdir -p "$cache" build
link() { ln -sfn "$place" "build/static-libraries-$machine"; }
exec 9>"$place.lock"
flock 9 # another tree may be making them
if [ -s "$place/libeu.a" ]; then
    link
    exit 0
fi

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
# The host's own sources of packages, for their sources, with lists of their own.
mkdir -p "$work/lists/partial" "$work/parts"
for file in /etc/apt/sources.list.d/*.sources; do
    [ ! -r "$file" ] || sed 's/^Types:.*/Types: deb-src/' "$file" >"$work/parts/${file##*/}"
done
for file in /etc/apt/sources.list /etc/apt/sources.list.d/*.list; do
    [ ! -r "$file" ] || sed -nE 's/^[[:space:]]*deb[[:space:]]/deb-src /p' "$file" \
        >"$work/parts/${file##*/}.list"
done
apt=(-q -o "Dir::State::Lists=$work/lists" -o Dir::Etc::SourceList=/dev/null
    -o "Dir::Etc::SourceParts=$work/parts" -o Acquire::Languages=none
    -o Dir::Cache::srcpkgcache= -o Dir::Cache::pkgcache= -o APT::Sandbox::User=)
# A source of others that has none for us fails here and harms nothing: what counts is found below.
apt-get "${apt[@]}" update >"$work/log" 2>&1 || true
for index in "${!packages[@]}"; do
    package=${packages[index]}
    read -r source version <<<"${sources[index]}"
    (cd "$work" &&
        apt-get "${apt[@]}" source --download-only --tar-only "$source=$version" >>log 2>&1) || {
        cat "$work/log" >&2
        echo "SKIP: no sources of $source $version" >&2
        exit 77
    }
    mkdir "$work/$package"
    tar --extract --strip-components=1 --directory "$work/$package" \
        --file "$work/${source}"_*.orig.tar.*
done

flags=(-O2 -g -fPIC -DNDEBUG "-ffile-prefix-map=$work=.")
archive() { # NAME FOLDER COMPILER FLAG... -- FILE...
    local name=$1 folder=$2 compiler=$3 object objects=()
    shift 3
    local options=()
    while [ "$1" != -- ]; do
        options+=("$1")
        shift
    done
    shift
    for file in "$@"; do
        object=$work/$folder/$(tr / _ <<<"${file#"$work/$folder/"}").o
        "$compiler" "${flags[@]}" "${options[@]}" -c "$file" -o "$object"
        objects+=("$object")
    done
    "${tools}ar" rcsD "$work/out/$name" "${objects[@]}"
}
mkdir "$work/out"
archive libfmt.a libfmt-dev "${tools}g++" -std=c++20 "-I$work/libfmt-dev/include" -- \
    "$work/libfmt-dev/src/format.cc"
if [ "$machine" = x86_64 ]; then
    mapfile -t zydis < <(find "$work/libzydis-dev/src" -name '*.c' | LC_ALL=C sort)
    archive libZydis.a libzydis-dev gcc "-I$work/libzydis-dev/include" "-I$work/libzydis-dev/src" \
        -DZYDIS_STATIC_BUILD -DZYCORE_STATIC_BUILD -- "${zydis[@]}"
fi
: >"$work/config.h" # Debian builds elfutils without locks
archive libeu.a libelf-dev "${tools}gcc" -std=gnu99 -D_GNU_SOURCE "-I$work" "-I$work/libelf-dev/lib" -- \
    "$work/libelf-dev/lib/eu-search.c"
rm -rf "$place"
mv "$work/out" "$place"
link
echo "static libraries: $place"
