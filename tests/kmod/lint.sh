#!/bin/bash
# SPDX-License-Identifier: MIT
# checkpatch and sparse over the module: any finding fails. usage: lint.sh KERNEL OUT
# SB_CHECKPATCH names the kernel's scripts/checkpatch.pl, which is in its source package only.
# Status 77: skipped, with the reason.
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
kernel=$1
out=$2

command -v sparse >/dev/null || { echo "SKIP: no sparse"; exit 77; }
headers=$("$root/scripts/vm.sh" "$kernel" --headers) ||
    { echo "SKIP: kernel $kernel can't be fetched"; exit 77; }
skipped=0
if [ -n "${SB_CHECKPATCH:-}" ]; then
    # the module lives outside the kernel: it must look at the version, and KERNEL_VERSION() is what
    # checkpatch takes for a constant on the wrong side
    (cd "$root/kmod" && perl "$SB_CHECKPATCH" --no-tree --no-summary --terse \
        --max-line-length=100 --ignore=LINUX_VERSION_CODE,CONSTANT_COMPARISON \
        -f ./*.c ./*.h Kbuild Makefile)
else
    echo "SKIP checkpatch: SB_CHECKPATCH does not name it"
    skipped=1
fi

mkdir -p "$out/module"
cp "$root"/kmod/{*.c,*.h,Kbuild} "$out/module/"
make -C "$headers" M="$(readlink -f "$out/module")" C=2 modules >"$out/sparse.log" 2>&1 ||
    { cat "$out/sparse.log"; exit 1; }
if grep -E "^$(readlink -f "$out/module")/.*(warning|error):" "$out/sparse.log"; then
    echo "FAIL: sparse"
    exit 1
fi
echo "$((2 - skipped)) passed, 0 failed, $skipped skipped"
