#!/bin/sh
# SPDX-License-Identifier: MIT
# payload_check.sh OBJECTS: fails when the section that is copied into targets has a relocation
# against anything outside itself. OBJECTS: as CMake lists them, with semicolons.
set -eu
objects=$(printf '%s\n' "$@" | tr ';' '\n' | grep -E 'payload_(x86_64|aarch64)\.cpp\.o$')
for object in $objects; do
    # What is left are calls and addresses inside the section, which the linker resolves relative to
    # themselves. Not adrp, which goes by pages: the copy lies elsewhere in its.
    bad=$(readelf -rW "$object" |
        awk '/^Relocation section/ { inside = index($0, "\047.relaspeedbump_payload\047") > 0; next }
             inside && $3 ~ /^R_/ && $5 !~ /^(speedbump_payload_.*|__start_speedbump_payload)$/ { print }
             inside && $3 ~ /^R_/ && $3 !~ /^R_(X86_64_(PC|PLT)32|AARCH64_(CALL26|JUMP26|ADR_PREL_LO21))$/ { print }')
    if ! readelf -SW "$object" | grep -q ' speedbump_payload '; then
        echo "no section speedbump_payload in $object" >&2
        exit 1
    fi
    if [ -n "$bad" ]; then
        echo "the payload refers to something outside itself:" >&2
        echo "$bad" >&2
        exit 1
    fi
done
