#!/bin/bash
# SPDX-License-Identifier: MIT
# What scripts/package.sh made, in a minimal root of a Debian suite in which nothing is installed: it
# is installed as users do, and slows what the suite has.
# usage: roots_test.sh PACKAGES SUITE deb|dkms|archive|wheel     Status 77: skipped, with the reason.
set -euo pipefail
skip() {
    echo "SKIP: $*"
    exit 77
}
packages=$1 suite=$2 kind=$3
[ "$(id -u)" = 0 ] || skip "not root"
compgen -G "$packages/*.deb" >/dev/null || skip "no packages in $packages: scripts/package.sh makes them"
# shellcheck source=scripts/debian-root.sh
. "$(dirname "$0")/../../scripts/debian-root.sh"
root=$(mktemp -d)
trap 'rm -rf --one-file-system "$root"' EXIT
make_root "$suite" "$root" || skip "no root of $suite"
cp "$(dirname "$0")/in_root.sh" "$packages"/* "$root/srv/"
in_root "$root" bash /srv/in_root.sh "$kind"
echo "$kind on $suite: good"
