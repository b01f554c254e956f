#!/bin/bash
# SPDX-License-Identifier: MIT
# Runs sites_test in a machine of another kernel: the forms of this host's libraries, what emulation
# can run of them. usage: vm.sh KERNEL OUT SITES_TEST ENGINE [OPTION...]
#   KERNEL as for scripts/vm.sh; OUT: folder to build in; ENGINE: bpf or kmod; OPTIONs of sites_test
# Status 77: skipped, with the reason.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
root=$(cd "$here/../.." && pwd)
kernel=$1 out=$2 sites_test=$3 engine=$4
shift 4

mkdir -p "$out"
adds=()
first=
if [ "$engine" = kmod ]; then
    "$root/tests/kmod/build_module.sh" "$kernel" "$out"
    adds+=(--add "$out/module/speed_bump.ko:/speed_bump.ko")
    first='insmod /speed_bump.ko max_targets=1024 || exit 1;'
elif ! reason=$("$root/scripts/vm.sh" --check); then
    echo "skipped: $reason"
    exit 77
fi
"$sites_test" --write-forms "$out/forms"
exec "$root/scripts/vm.sh" "$kernel" --memory 2048 --timeout "${SB_TIMEOUT:-2400}" \
    --log "$out/console.log" --add "$sites_test:/bin/" --add "$out/forms:/forms" "${adds[@]}" \
    -- sh -c "$first exec sites_test --forms /forms --engine $engine $*"
