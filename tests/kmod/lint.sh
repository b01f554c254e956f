#!/bin/bash
# SPDX-License-Identifier: MIT
# checkpatch and sparse over the module: any finding fails. usage: lint.sh KERNEL OUT
# checkpatch.pl is in the kernel's source package only: that of scripts/debug_kernel.sh is taken where it
# has been run, else SB_CHECKPATCH names it.
# Status 77: skipped, with the reason.
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
kernel=$1
out=$2

command -v sparse >/dev/null || { echo "SKIP: no sparse"; exit 77; }
"$root/scripts/vm.sh" "$kernel" --fetch >/dev/null ||
    { echo "SKIP: kernel $kernel can't be fetched"; exit 77; }
skipped=0
checkpatch=${SB_CHECKPATCH:-$root/build/vm/debug-$kernel/headers/build/scripts/checkpatch.pl}
if [ -e "$checkpatch" ]; then
    # the module lives outside the kernel: it must look at the version, and KERNEL_VERSION() is what
    # checkpatch takes for a constant on the wrong side
    (cd "$root/kmod" && perl "$checkpatch" --no-tree --no-summary --terse \
        --max-line-length=100 --ignore=LINUX_VERSION_CODE,CONSTANT_COMPARISON \
        -f ./*.c ./*.h Kbuild Makefile)
else
    echo "SKIP checkpatch: no $checkpatch (SB_CHECKPATCH)"
    skipped=1
fi

mkdir -p "$out/module"
cp "$root"/kmod/{*.c,*.h,Kbuild} "$out/module/"
"$root/scripts/vm.sh" "$kernel" --make "$out/module" C=2 >"$out/sparse.log" 2>&1 ||
    { cat "$out/sparse.log"; exit 1; }
if grep -E "^$(readlink -f "$out/module")/.*(warning|error):" "$out/sparse.log"; then
    echo "FAIL: sparse"
    exit 1
fi
echo "$((2 - skipped)) passed, 0 failed, $skipped skipped"
