#!/bin/bash
# SPDX-License-Identifier: MIT
# C++ is formatted as .clang-format says. The C of bpf/ and kmod/ is kernel style and not looked at.
set -euo pipefail
. "$(dirname "$0")/files.sh"
need_version clang-format 14

mapfile -t sources < <(project_files | grep -E '^(user|tests|pyext)/.*\.(cpp|h)$')
[ "${#sources[@]}" -gt 20 ] || {
    echo "only ${#sources[@]} sources found"
    exit 1
}
clang-format --dry-run -Werror "${sources[@]}"
