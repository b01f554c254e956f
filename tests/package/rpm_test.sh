#!/bin/bash
# SPDX-License-Identifier: MIT
# The .rpm that scripts/package.sh made: the files are those of the .deb, nothing is asked for that a
# host with glibc 2.28 lacks, and the programs run in a root that has nothing but them.
# usage: rpm_test.sh PACKAGES     Status 77: skipped, with the reason.
set -euo pipefail
skip() {
    echo "SKIP: $*"
    exit 77
}
packages=$1
[ "$(id -u)" = 0 ] || skip "not root"
command -v rpm2cpio >/dev/null || skip "no rpm here (scripts/setup.sh package)"
command -v busybox >/dev/null || skip "no busybox here (scripts/setup.sh package)"
compgen -G "$packages/*.rpm" >/dev/null || skip "no packages in $packages: scripts/package.sh makes them"
work=$(mktemp -d)
trap 'rm -rf --one-file-system "$work"' EXIT

# sums FOLDER: of each file, but for what only Debian wants
sums() { (cd "$1" && find . -type f -not -path '*/lintian/*' -exec sha256sum {} + | LC_ALL=C sort -k2); }

for package in speedbump speedbump-dkms; do
    mkdir -p "$work/$package.rpm" "$work/$package.deb"
    rpm2cpio "$packages/$package"-[0-9]*.rpm | (cd "$work/$package.rpm" && busybox cpio -id 2>/dev/null)
    dpkg-deb -x "$packages/$package"_*.deb "$work/$package.deb"
    for folder in "$work/$package.deb" "$work/$package.rpm"; do # rpm takes the compiler's name out
        [ ! -d "$folder/usr/bin" ] || strip --remove-section=.comment "$folder"/usr/bin/*
    done
    diff <(sums "$work/$package.deb") <(sums "$work/$package.rpm")
    echo "$package: $(sums "$work/$package.rpm" | wc -l) files, those of the .deb"
done

rpm -qp --requires "$packages"/speedbump-[0-9]*.rpm 2>/dev/null >"$work/needs"
while IFS= read -r need; do
    case $need in
    rpmlib\(* | rtld\(GNU_HASH\) | libc.so.6\(\)* | ld-linux-x86-64.so.2\(\)*) continue ;;
    libc.so.6\(GLIBC_* | ld-linux-x86-64.so.2\(GLIBC_*)
        version=${need#*GLIBC_}
        printf '%s\n' "${version%%)*}" 2.28 | sort -VC && continue
        ;;
    esac
    echo "speedbump needs $need"
    exit 1
done <"$work/needs"

# shellcheck disable=SC2016 # the mounts go with the name space
unshare --mount --propagation private sh -euc '
    mkdir "$1/proc" "$1/sys"
    mount -t proc proc "$1/proc"
    mount --rbind /sys "$1/sys"
    exec chroot "$1" /usr/bin/speedbump doctor' - "$work/speedbump.rpm" >"$work/doctor"
grep 'Python cores.*for CPython 3\.' "$work/doctor"
