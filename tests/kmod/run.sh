#!/bin/bash
# SPDX-License-Identifier: MIT
# Builds the module for one of the distribution's kernels and runs its tests in a machine of it.
# usage: run.sh KERNEL OUT [TEST...]     KERNEL as for scripts/vm.sh; OUT: folder to build in
# SB_SBCTL names the sbctl to test (skipped without).
# SB_ROOT=FOLDER of aarch64 (arm64-root.sh), for a KERNEL of it.
# SB_FULL=1 for the full counts of the long tests; SB_APPEND for the kernel's command line, such as
# "slub_debug=FZPU kfence.sample_interval=1 preempt=full". Status 77: skipped, with the reason.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
root=$(cd "$here/../.." && pwd)
kernel=$1
out=$2
shift 2

"$here/build_module.sh" "$kernel" "$out"

machine=x86_64 prefix='' other=() environment=(SB_FULL="${SB_FULL:-0}")
if [ -n "${SB_ROOT:-}" ]; then
    machine=aarch64 prefix=aarch64-linux-gnu- other=(--root "$SB_ROOT")
    [ "${SPEEDBUMP_VM_KVM:-0}" = 1 ] || environment+=(SB_LOAD_ON_ONE_CPU=1)
fi
sources=("$here/module_sites_$machine.c" "$here/make_elf.c")
for source in "$here"/module_*.c; do
    [[ $source == */module_sites_* ]] || sources+=("$source")
done
# that no data of the file is mapped as code, as x86-64 has it by itself
cflags=(-std=gnu11 -O2 -Wall -Wextra -Wno-format-zero-length -Wl,-z,separate-code)
"${prefix}gcc" "${cflags[@]}" -I"$root/kmod" -pthread -o "$out/module_test" "${sources[@]}"
"${prefix}g++" -O2 -Wall -Wextra -shared -fPIC -o "$out/libvictim.so" "$here/victim_library.cpp"
"${prefix}strip" -o "$out/libvictim_stripped.so" "$out/libvictim.so"
victim=("$here/victim.c" -L"$out" -lvictim -Wl,-rpath,/lib)
"${prefix}gcc" "${cflags[@]}" -fPIE -pie -o "$out/victim_pie" "${victim[@]}"
"${prefix}gcc" "${cflags[@]}" -fno-pie -no-pie -o "$out/victim_fixed" "${victim[@]}"
"${prefix}strip" -o "$out/victim_stripped" "$out/victim_pie"

adds=()
for program in module_test victim_pie victim_fixed victim_stripped; do
    adds+=(--add "$out/$program:/bin/")
done
[ -z "${SB_SBCTL:-}" ] || adds+=(--add "$SB_SBCTL:/bin/sbctl")
exec "$root/scripts/vm.sh" "$kernel" "${other[@]}" --module overlay --memory 2048 \
    --append "${SB_APPEND:-}" --timeout "${SB_TIMEOUT:-1200}" --log "$out/console.log" "${adds[@]}" \
    --add "$out/libvictim.so:/lib/" --add "$out/libvictim_stripped.so:/lib/" \
    --add "$out/module/speed_bump.ko:/speed_bump.ko" \
    -- env "${environment[@]}" /bin/module_test "$@"
