#!/bin/bash
# SPDX-License-Identifier: MIT
# Makes the archive, the packages (.deb, .rpm) and the wheels, of the last commit, in a new minimal
# root of Debian 12. Needs root and debootstrap.
#
#   scripts/package.sh [OUT]       OUT: the folder for them, default build/packages
#
# The cores are for the Pythons of Debian 12 and sid, and for those under ~/.pyenv, where there are
# any. SPEEDBUMP_MACHINE=aarch64 cross-builds all, with cores for the Pythons of Debian 12, 13 and sid,
# for build/packages-aarch64. SOURCE_DATE_EPOCH is the date in all of them, by default that of the commit.
set -euo pipefail
cd "$(dirname "$0")/.."
machine=${SPEEDBUMP_MACHINE:-$(uname -m)}
out=build/packages
groups=(build package)
if [ "$machine" != "$(uname -m)" ]; then
    out+=-$machine
    groups+=("$machine")
fi
out=${1:-$out}
mkdir -p "$out"
# shellcheck source=scripts/debian-root.sh
. scripts/debian-root.sh
scripts/sid-root.sh
root=$(mktemp -d)
trap 'rm -rf --one-file-system "$root"' EXIT
make_root bookworm "$root"
mkdir "$root/srv/speedbump"
git archive HEAD | tar -C "$root/srv/speedbump" -x

# To look at only: interpreters that Debian 12 lacks.
binds=(--bind-try "$(readlink -f build/sid-root)" srv/speedbump/build/sid-root
    --bind-try ~/.pyenv root/.pyenv)
# What was compiled before, of the same text by the same compiler.
objects=$(ccache --get-config cache_dir 2>/dev/null) && binds+=(--bind-try "$objects" root/.cache/ccache)
epoch=${SOURCE_DATE_EPOCH:-$(git log -1 --format=%ct)}
in_root "$root" "${binds[@]}" SOURCE_DATE_EPOCH="$epoch" SPEEDBUMP_MACHINE="$machine" bash -euc '
    cd /srv/speedbump
    scripts/setup.sh "$@" >/srv/log 2>&1 || { tail -n 40 /srv/log; exit 1; }
    scripts/packages/build.sh >/srv/log 2>&1 || { tail -n 40 /srv/log; exit 1; }
    lintian --fail-on error,warning out/*.deb' bash "${groups[@]}"
rm -f "$out"/*.deb "$out"/*.rpm "$out"/*.whl "$out"/*.tar.gz
cp "$root"/srv/speedbump/out/* "$out/"
ls -l "$out"
