#!/bin/bash
# SPDX-License-Identifier: MIT
# Boots a kernel and runs the loader's tests in it. usage: run.sh KERNEL OUT BUILD TESTS [APPEND]
#   KERNEL  as for scripts/vm.sh      OUT    folder to build in
#   BUILD   where speedbump was built TESTS  bpf, kmod (with the module loaded), or lockdown
#   APPEND  words for the kernel's command line
# SB_SHORT=1 runs a part of the tests of sessions.
# SB_TESTS="FILE[:TEST,TEST...] ..." runs these of tests/runtime in place of the chosen ones.
# Status 77: skipped, with the reason.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
root=$(cd "$here/../.." && pwd)
kernel=$1 out=$2 build=$3 tests=$4 append=${5:-}

"$root/tests/kmod/build_module.sh" "$kernel" "$out"
/usr/bin/python3 "$here/python_zip.py" "$out/python"

exec "$root/scripts/vm.sh" "$kernel" --memory 2048 --append "$append" \
    --timeout "${SB_TIMEOUT:-800}" --log "$out/console-$tests.log" \
    --add "$out/python/usr:/usr" --add "$build/speedbump:/bin/" --add "$build/sbctl:/bin/" \
    --add "$build/programs:/programs" --add "$root/tests/runtime:/tests" \
    --add "$here/guest.sh:/guest.sh" --add "$here/guest_test.py:/tests/" \
    --add "$out/module/speed_bump.ko:/speed_bump.ko" \
    -- env SB_TESTS="${SB_TESTS:-}" SB_SHORT="${SB_SHORT:-}" sh /guest.sh "$tests"
