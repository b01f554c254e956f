#!/bin/sh
# SPDX-License-Identifier: MIT
# stress.sh BUILD [CYCLES [KILLS [PYTHON...]]]: the long version of the tests runtime.inject.*, as
# root. 1,000 cycles and 200 kills on every kind of target unless told.
set -u
build=$1
cycles=${2:-1000}
kills=${3:-200}
[ $# -gt 3 ] && shift 3 || set -- "$HOME"/.pyenv/versions/3.1[0-9]*/bin/python3
here=$(dirname "$0")
failed=0
for kind in ${KINDS:-loop sleep accept select epoll threads dlopen longcall memmove signals forks \
    asyncio}; do
    "$build/tests/runtime/inject/inject_stress" --cycles "$cycles" --kills "$kills" \
        --core "${CORE:-$build/tests/runtime/inject/_core.abi3.so}" \
        "$here/targets.py" "$kind" "$@" || failed=1
done
exit $failed
