#!/bin/bash
# SPDX-License-Identifier: MIT
# Gives the files of all packages the form that distributions want, and one date.
# usage: files.sh STAGE VERSION MAINTAINER      STAGE has a folder for each package
set -euo pipefail
stage=$1 version=$2 maintainer=$3
here=$(cd "$(dirname "$0")" && pwd)
root=$(cd "$here/../.." && pwd)
epoch=${SOURCE_DATE_EPOCH:-$(git -C "$root" log -1 --format=%ct)}

declare -A names=([speedbump]=speedbump [dkms]=speedbump-dkms [python]=python3-speed-bump)
for part in "${!names[@]}"; do
    package=${names[$part]}
    [ -d "$stage/$part/usr" ] || continue
    documents=$stage/$part/usr/share/doc/$package
    mkdir -p "$documents"
    {
        cat "$root/LICENSE"
        printf '\nDebian has the GPL of version 2 as /usr/share/common-licenses/GPL-2.\n'
    } >"$documents/copyright"
    gzip -9n >"$documents/changelog.gz" <<CHANGELOG
$package ($version) unstable; urgency=medium

  * See the project's CHANGELOG.md.

 -- $maintainer  $(LC_ALL=C date -u -R -d "@$epoch")
CHANGELOG
    overrides=$here/$part/lintian-overrides
    [ ! -e "$overrides" ] || [[ $stage == */Linux/RPM/* ]] ||
        install -D -m 644 "$overrides" "$stage/$part/usr/share/lintian/overrides/$package"
    find "$stage/$part" -path '*/man/*' -name '*.[1-9]' -exec gzip -9n {} +
    chmod -R u=rwX,go=rX "$stage/$part"
    find "$stage/$part" -exec touch --no-dereference --date="@$epoch" {} +
done
