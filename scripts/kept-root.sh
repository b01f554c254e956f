# shellcheck shell=sh
# SPDX-License-Identifier: MIT
# For scripts that make a Debian root with some packages, kept in the user's cache for all source
# trees and linked as build/NAME. Needs root and debootstrap; without them or a network the script
# says "skipped", with the reason, and ends well.
#
#   kept_root NAME SUITE PACKAGES PROOF...   PACKAGES: comma separated; PROOF: paths in the root that
#                                            a whole one has

kept_root() {
    name=$1 suite=$2 packages=$3
    shift 3
    source_root=$(cd "$(dirname "$0")/.." && pwd)
    root=${XDG_CACHE_HOME:-${HOME:-/root}/.cache}/speedbump/$name
    link=$source_root/build/$name

    if _is_complete "$link" "$@"; then return; fi
    mkdir -p "$(dirname "$root")" "$(dirname "$link")"
    exec 9>"$root.lock"
    flock 9 # another tree may be making it
    if ! _is_complete "$root" "$@"; then
        command -v debootstrap >/dev/null || _skip "no debootstrap here"
        [ "$(id -u)" = 0 ] || _skip "not root"
        # shellcheck source=scripts/debian-mirror.sh
        . "$source_root/scripts/debian-mirror.sh"
        rm -rf --one-file-system "$root" "$root.new"
        echo "$name: making $root" >&2
        debootstrap --variant=minbase --include="$packages" \
            "$suite" "$root.new" ${mirror:+"$mirror"} >"$root.log" 2>&1 9>&- || # else its own
            _skip "debootstrap failed ($root.log)"
        rm -rf "$root.new/var/cache/apt/archives"/*.deb
        mv "$root.new" "$root"
    fi
    ln -sfnT "$root" "$link"
}

_skip() {
    echo "$name: skipped, $*" >&2
    exit 0
}

# _is_complete ROOT PROOF...
_is_complete() {
    _root=$1
    shift
    for _proof in "$@"; do
        [ -e "$_root/$_proof" ] || return 1
    done
}
