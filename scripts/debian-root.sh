# shellcheck shell=bash
# SPDX-License-Identifier: MIT
# Minimal Debian roots, in which nothing is installed. To be sourced. Needs root and debootstrap.
# shellcheck source=scripts/debian-mirror.sh
. "$(dirname "${BASH_SOURCE[0]}")/debian-mirror.sh"
root_cache=${XDG_CACHE_HOME:-${HOME:-/root}/.cache}/speedbump
mkdir -p "$root_cache/packages/partial"
exec 9>"$root_cache/packages.lock"
flock 9 # apt works on what was fetched for other roots, one at a time

# make_root SUITE FOLDER: a minimal root of a suite, which is kept as an archive in the user's cache.
# Each step says what becomes of its failure: bash forgets `set -e` where a caller asks for the status.
make_root() {
    local suite=$1 folder=$2 base=$root_cache/root-$1.tar
    if [ -s "$base" ]; then
        tar -C "$folder" -xf "$base" || return 1
    else
        debootstrap --variant=minbase --include=ca-certificates "$suite" "$folder" \
            ${mirror:+"$mirror"} >"$base.log" 2>&1 9>&- || {
            tail -n 5 "$base.log" >&2
            return 1
        }
        rm -f "$folder"/var/cache/apt/archives/*.deb || return 1
        tar -C "$folder" --one-file-system -cf "$base.new" . || return 1
        mv "$base.new" "$base" || return 1
    fi
    chmod 755 "$folder" || return 1 # apt gives up its rights
    cp /etc/resolv.conf "$folder/etc/resolv.conf" || return 1
    # it need not survive a power cut, and writing each file out at once takes minutes
    mkdir -p "$folder/etc/dpkg/dpkg.cfg.d" || return 1
    echo force-unsafe-io >"$folder/etc/dpkg/dpkg.cfg.d/unsafe-io" || return 1
    # a mirror that stands still for weeks is no reason to fail; sid says until when its lists are valid
    echo 'Acquire::Check-Valid-Until "false";' >"$folder/etc/apt/apt.conf.d/99any-date" || return 1
}

# in_root FOLDER [--bind-try PLACE INSIDE]... COMMAND...: with this kernel's /proc, /sys and /dev, what
# was fetched for roots of any suite before, and those PLACEs that exist. The mounts go with the
# command's mount namespace.
in_root() {
    # shellcheck disable=SC2016
    unshare --mount --propagation private bash -euc '
        root=$1 packages=$2
        shift 2
        mount -t proc proc "$root/proc"
        mount --rbind /sys "$root/sys"
        mount --rbind /dev "$root/dev"
        mount --bind "$packages" "$root/var/cache/apt/archives"
        while [ "$1" = --bind-try ]; do
            if [ -e "$2" ]; then
                mkdir -p "$root/$3"
                mount --bind "$2" "$root/$3"
            fi
            shift 3
        done
        exec chroot "$root" env -i HOME=/root LANG=C.UTF-8 DEBIAN_FRONTEND=noninteractive \
            PATH=/usr/sbin:/usr/bin:/sbin:/bin http_proxy="$http_proxy" "$@"
    ' - "$1" "$root_cache/packages" "${@:2}"
}
