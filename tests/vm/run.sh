#!/bin/bash
# SPDX-License-Identifier: MIT
# Boots a kernel and runs the loader's tests in it. usage: run.sh KERNEL OUT BUILD TESTS [APPEND]
#   KERNEL  as for scripts/vm.sh      OUT    folder to build in
#   BUILD   where speedbump was built TESTS  bpf, kmod (with the module loaded), or lockdown
#   APPEND  words for the kernel's command line
# SB_SHORT=1 runs a part of the tests of sessions.
# SB_TESTS="FILE[:TEST,TEST...] ..." runs these of tests/runtime in place of the chosen ones.
# SB_ROOT=FOLDER of what BUILD was cross-built with.
# SB_PYTHON=VERSION of that folder; else that of the host.
# SB_ARCHIVE=FILE: the programs and cores are those of an archive (scripts/archive.sh).
# Status 77: skipped, with the reason.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
root=$(cd "$here/../.." && pwd)
kernel=$1 out=$2 build=$3 tests=$4 append=${5:-}

other=() module=()
[ -z "${SB_ROOT:-}" ] || other=(--root "$SB_ROOT")
if [ "$tests" = kmod ] || [ -z "${SB_ROOT:-}" ]; then
    "$root/tests/kmod/build_module.sh" "$kernel" "$out"
    module=(--add "$out/module/speed_bump.ko:/speed_bump.ko")
fi
if [ -n "${SB_PYTHON:-}" ] && [ ! -e "$SB_ROOT/usr/bin/python$SB_PYTHON" ]; then
    echo "SKIP: no Python $SB_PYTHON in $SB_ROOT (scripts/arm64-root.sh)"
    exit 77
elif [ -n "${SB_PYTHON:-}" ]; then # which compiles its library itself
    PYTHONHOME=$SB_ROOT/usr qemu-aarch64-static -L "$SB_ROOT" "$SB_ROOT/usr/bin/python$SB_PYTHON" \
        "$here/python_zip.py" "$out/python" "$SB_ROOT"
else
    /usr/bin/python3 "$here/python_zip.py" "$out/python" ${SB_ROOT:+"$SB_ROOT"}
fi
bin=$build cores=() # for the machine's Python; those for others may need newer libraries
if [ -n "${SB_ARCHIVE:-}" ]; then
    rm -rf "$out/archive"
    mkdir "$out/archive"
    tar -xf "$SB_ARCHIVE" -C "$out/archive" --strip-components=1
    bin=$out/archive/bin cores=(--add "$out/archive/lib/speedbump/cores:/lib/speedbump/cores")
else
    pythons='*'
    [ -n "${SB_ROOT:-}" ] || pythons=$(/usr/bin/python3 -c 'import platform; print(platform.python_version())')
    for core in "$build"/pyext/python/$pythons/speed_bump/_core.*.so; do
        [ ! -e "$core" ] || cores+=(--add "$core:/lib/speedbump/cores/")
    done
fi

exec "$root/scripts/vm.sh" "$kernel" "${other[@]}" --memory 2048 --append "$append" \
    --timeout "${SB_TIMEOUT:-2400}" --log "$out/console-$tests.log" \
    --add "$out/python/usr:/usr" --add "$bin/speedbump:/bin/" --add "$bin/sbctl:/bin/" \
    --add "$build/programs:/programs" --add "$root/tests/programs/known_service.py:/programs/" \
    --add "$root/tests/runtime:/tests" \
    --add "$here/guest.sh:/guest.sh" --add "$here/guest_test.py:/tests/" --add "$here/attach_test.py:/tests/" \
    --add "$here/registers.py:/tests/" "${cores[@]}" "${module[@]}" \
    -- env SB_TESTS="${SB_TESTS:-}" SB_SHORT="${SB_SHORT:-}" sh /guest.sh "$tests"
