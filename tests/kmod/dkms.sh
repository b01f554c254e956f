#!/bin/bash
# SPDX-License-Identifier: MIT
# DKMS builds and installs the module for a kernel, into folders of its own, and takes it out again.
# usage: dkms.sh KERNEL OUT     Status 77: skipped, with the reason.
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
kernel=$1
out=$2

command -v dkms >/dev/null || { echo "SKIP: no dkms"; exit 77; }
folder=$("$root/scripts/vm.sh" "$kernel" --fetch) ||
    { echo "SKIP: kernel $kernel can't be fetched"; exit 77; }
release=$(cat "$folder/release")
rm -rf "$out"
mkdir -p "$out/dkms" "$out/src" "$out/modules/$release"
out=$(cd "$out" && pwd)
# as DKMS wants it: files of the module only, in a folder of its name
package=speed-bump/$(sed -n 's/^PACKAGE_VERSION="\(.*\)"$/\1/p' "$root/kmod/dkms.conf")
mkdir "$out/src/${package/\//-}"
cp "$root"/kmod/{*.c,*.h,Kbuild,Makefile,dkms.conf} "$out/src/${package/\//-}/"

run() {
    local command=$1
    shift
    dkms "$command" "$package" --dkmstree "$out/dkms" --sourcetree "$out/src" \
        --installtree "$out/modules" "$@" >"$out/$command.log" 2>&1 ||
        { cat "$out/$command.log"; find "$out/dkms" -name make.log -exec cat {} +; exit 1; }
}

for_kernel=(-k "$release" -a x86_64 --kernelsourcedir "$(readlink -f "$folder/headers/build")")
run add
run build "${for_kernel[@]}"
run install "${for_kernel[@]}" --no-depmod
run status
grep -q installed "$out/status.log"
module=$(find "$out/modules" -name 'speed_bump.ko*')
[ -n "$module" ] || { echo "FAIL: not installed"; exit 1; }
grep -q "^$release " <<<"$(modinfo -F vermagic "$module")"
run remove --all
[ -z "$(find "$out/modules" -name 'speed_bump.ko*')" ] || { echo "FAIL: not removed"; exit 1; }
echo "DKMS builds, installs and removes $package for $release"
