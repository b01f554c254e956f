#!/bin/bash
# SPDX-License-Identifier: MIT
# The tables of structure offsets (user/cpython/layout_3*.inc) are those of the headers of each
# CPython of that version that is installed; on aarch64, too, where its compiler is there.
set -euo pipefail
. "$(dirname "$0")/files.sh"
need gcc
compilers=(gcc)
! command -v aarch64-linux-gnu-gcc >/dev/null || compilers+=(aarch64-linux-gnu-gcc)

failed=0
checked=0
for minor in 10 11 12; do
    table=user/cpython/layout_3$minor.inc
    for folder in /usr/include/python3.$minor \
        "${HOME:-/root}"/.pyenv/versions/3.$minor.*/include/python3.$minor; do
        [ -e "$folder/internal/pycore_interp.h" ] || continue
        checked=$((checked + 1))
        for compiler in "${compilers[@]}"; do
            case $compiler:$folder in
            aarch64*:/usr/include/*) continue ;; # the distribution's are of one machine
            esac
            "$compiler" -fsyntax-only -I"$folder" -I"$folder/internal" -x c - <<EOF || failed=1
#define Py_BUILD_CORE 1
#include <Python.h>
#include <frameobject.h>
#include <stddef.h>
#include <internal/pycore_interp.h>
#include <internal/pycore_runtime.h>
#if PY_MINOR_VERSION > 10
#include <internal/pycore_frame.h>
#endif
#define OFFSET(name, value, type, member) \
    _Static_assert(offsetof(type, member) == value, #name);
#define SIZE(name, value, type) _Static_assert(sizeof(type) == value, #name);
#include "$PWD/$table"
EOF
        done
    done
done
if [ "$checked" = 0 ]; then
    echo "no internal headers of CPython 3.10 to 3.12: skipped"
    exit 77
fi
exit "$failed"
