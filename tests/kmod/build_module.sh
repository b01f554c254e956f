#!/bin/bash
# SPDX-License-Identifier: MIT
# Builds the module for a kernel of scripts/vm.sh. usage: build_module.sh KERNEL OUT
# OUT/module/speed_bump.ko is the result; any warning of the compiler fails. SB_ROOT=FOLDER of aarch64, for a
# KERNEL of it. Status 77: skipped, with the reason.
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
kernel=$1
out=$2

if ! reason=$("$root/scripts/vm.sh" --check ${SB_ROOT:+aarch64}); then
    echo "SKIP: $reason"
    exit 77
fi
if ! said=$("$root/scripts/vm.sh" "$kernel" --fetch 2>&1 >/dev/null); then
    echo "SKIP: kernel $kernel can't be fetched: $(tail -n 1 <<<"$said")"
    exit 77
fi

# the build leaves its files beside the sources: it gets a copy of them
mkdir -p "$out/module"
cp -u "$root"/kmod/{*.c,*.h,Kbuild} "$out/module/"
"$root/scripts/vm.sh" "$kernel" --make "$out/module" W=1 >"$out/build.log" 2>&1 ||
    { cat "$out/build.log"; exit 1; }
if grep -i 'warning:' "$out/build.log"; then
    echo "FAIL: the module builds with warnings"
    exit 1
fi
