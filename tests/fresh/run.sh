#!/bin/bash
# SPDX-License-Identifier: MIT
# What a newcomer does, in a minimal root of a Debian suite in which nothing is installed: setup,
# build, the checks, and one real attach. Shares the kernel, and, so that it takes minutes and not a
# quarter of an hour, caches: the packages that were fetched for such a root before, and ccache's.
#   run.sh SUITE
# Status 77: skipped, with the reason.
set -euo pipefail
suite=$1
project=$(cd "$(dirname "$0")/../.." && pwd)
skip() {
    echo "skipped: $*"
    exit 77
}
[ "$(id -u)" = 0 ] || skip "needs root"
command -v debootstrap >/dev/null || skip "no debootstrap here"
git -C "$project" rev-parse HEAD >/dev/null 2>&1 || skip "not a clone"

# shellcheck source=scripts/debian-mirror.sh
. "$project/scripts/debian-mirror.sh"
cache=${XDG_CACHE_HOME:-${HOME:-/root}/.cache}/speedbump/fresh-$suite
objects=$(ccache --get-config cache_dir 2>/dev/null || echo "$cache/objects")
mkdir -p "$cache/packages/partial" "$objects"
exec 9>"$cache/lock"
flock 9 # one at a time fills the caches
root=$(mktemp -d)
trap 'rm -rf --one-file-system "$root"' EXIT
if [ ! -e "$cache/base.tar" ]; then
    debootstrap --variant=minbase --include=ca-certificates "$suite" "$root" ${mirror:+"$mirror"} \
        >"$cache/debootstrap.log" 2>&1 9>&- || skip "debootstrap failed ($cache/debootstrap.log)"
    rm -f "$root"/var/cache/apt/archives/*.deb
    tar -C "$root" -cf "$cache/base.tar.new" .
    mv "$cache/base.tar.new" "$cache/base.tar"
else
    tar -C "$root" -xf "$cache/base.tar"
fi
cp /etc/resolv.conf "$root/etc/resolv.conf"
git clone -q "$project" "$root/srv/speedbump"

# In the root. The tests that are run here must not be skipped: setup.sh brings what they need.
cat >"$root/srv/newcomer.sh" <<'NEWCOMER'
set -euo pipefail
cd /srv/speedbump
step() { printf '== %s (%s s)\n' "$*" "$SECONDS"; }
step setup
scripts/setup.sh build check >/srv/log 2>&1 || { tail -n 40 /srv/log; exit 1; }
step build
export CCACHE_BASEDIR=$PWD CCACHE_NOHASHDIR=true
{ cmake --preset release -DSPEEDBUMP_UNITY=ON && cmake --build --preset release --target speedbump test_programs; } \
    >/srv/log 2>&1 || { tail -n 40 /srv/log; exit 1; }
step tests
ctest --preset release --no-tests=error -L '^check$' -LE kmod --output-junit /srv/check.xml
ctest --preset release --no-tests=error -R 'runtime.control.set_pause_and_resume' \
    --output-junit /srv/attach.xml
if grep -H '<skipped' /srv/check.xml /srv/attach.xml; then exit 1; fi
step done
NEWCOMER

# The mounts go with the name space.
# shellcheck disable=SC2016
unshare --mount --propagation private bash -euc '
    root=$1
    mount -t proc proc "$root/proc"
    mount --rbind /sys "$root/sys"
    mount --rbind /dev "$root/dev"
    mount --bind "$2" "$root/var/cache/apt/archives"
    mkdir -p "$root/root/.cache/ccache"
    mount --bind "$3" "$root/root/.cache/ccache"
    exec chroot "$root" env -i HOME=/root PATH=/usr/sbin:/usr/bin:/sbin:/bin LANG=C.UTF-8 \
        http_proxy="$http_proxy" bash /srv/newcomer.sh
' - "$root" "$cache/packages" "$objects" 9>&-
