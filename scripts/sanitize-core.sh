#!/bin/bash
# SPDX-License-Identifier: MIT
# Runs the tests of the Python core under sanitizers, on demand: the interpreters are not built with
# them, so the sanitizer's library is preloaded.
#
#   scripts/sanitize-core.sh address,undefined|thread [INTERPRETER...]   names as in
#   build/pyext/interpreters.tsv; default: 3.10.13 3.12.1 3.13.0, those that exist
set -euo pipefail
cd "$(dirname "$0")/.."
sanitizers=${1:?usage: sanitize-core.sh address,undefined|thread [INTERPRETER...]}
shift
[ $# -gt 0 ] || set -- 3.10.13 3.12.1 3.13.0
build=build-core-${sanitizers%%,*}

cmake -S . -B "$build" -G Ninja -DCMAKE_BUILD_TYPE=RelWithDebInfo -DSPEEDBUMP_LOADER=OFF \
    -DSPEEDBUMP_SANITIZE="$sanitizers" >/dev/null
names=()
targets=()
for name in "$@"; do
    grep -q "^$name	" "$build/pyext/interpreters.tsv" || continue
    names+=("--interpreter=$name")
    targets+=("core-$name")
done
[ ${#names[@]} -gt 0 ] || {
    echo "none of these interpreters is there: $*" >&2
    exit 1
}
cmake --build "$build" --target "${targets[@]}"

libraries=
for sanitizer in ${sanitizers//,/ }; do
    case $sanitizer in
    address) libraries+=" $(g++ -print-file-name=libasan.so)" ;;
    thread) libraries+=" $(g++ -print-file-name=libtsan.so)" ;;
    undefined) libraries+=" $(g++ -print-file-name=libubsan.so)" ;;
    esac
done
# The interpreter leaves memory and threads behind when it ends.
export ASAN_OPTIONS=detect_leaks=0:abort_on_error=1:handle_segv=0
export TSAN_OPTIONS=report_signal_unsafe=0:report_thread_leaks=0:exitcode=66
export UBSAN_OPTIONS=print_stacktrace=1
# The runner itself and its loader are plain: only the interpreters under test get the library.
export SPEEDBUMP_TEST_PRELOAD=${libraries# }
# What a sanitizer keeps back of freed memory is no leak.
exec setarch --addr-no-randomize /usr/bin/python3 -m pytest tests/python -q -rs -p no:cacheprovider \
    --deselect=tests/python/test_programs.py::test_install_cycles_leave_nothing \
    --interpreters="$build/pyext/interpreters.tsv" "${names[@]}"
