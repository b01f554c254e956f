#!/bin/sh
# SPDX-License-Identifier: MIT
# stress.sh BUILD [CYCLES [KILLS [PYTHON...]]]: the long version of the tests runtime.inject.*, as
# root. 1,000 cycles and 200 kills on every kind of target unless told.
set -u
build=$1
cycles=${2:-1000}
kills=${3:-200}
[ $# -gt 3 ] && shift 3 || set -- "${HOME:-/root}"/.pyenv/versions/3.1[0-9]*/bin/python3
here=$(dirname "$0")
folder=$build/tests/runtime/inject
failed=0

# The core to load: one for all Pythons with a GIL, else one built for this Python.
core_for() {
    headers=$("$1" -c 'import sysconfig as s
if s.get_config_var("Py_GIL_DISABLED"): print(s.get_path("include"))')
    if [ -z "$headers" ]; then
        echo "$folder/_core.abi3.so"
        return
    fi
    mkdir -p "$folder/free-threaded"
    "${CC:-cc}" -O2 -shared -fPIC -DSB_FREE_THREADED "-I$headers" \
        -o "$folder/free-threaded/_core.so" "$here/../../programs/inject_core.c"
    echo "$folder/free-threaded/_core.so"
}

for kind in ${KINDS:-loop sleep accept select epoll threads dlopen longcall memmove signals forks \
    asyncio}; do
    for python; do
        "$folder/inject_stress" --cycles "$cycles" --kills "$kills" \
            --core "$(core_for "$python")" "$here/targets.py" "$kind" "$python" || failed=1
    done
done
exit $failed
