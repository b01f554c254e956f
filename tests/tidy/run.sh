#!/bin/bash
# SPDX-License-Identifier: MIT
# C++ passes clang-tidy with the checks of .clang-tidy.
#   run.sh BUILD     Status 77: skipped, with the reason.
set -euo pipefail
. "$(dirname "$0")/../check/files.sh"
need_version clang-tidy 14
need clang++
need python3

exec python3 -B "$(dirname "$0")/tidy.py" "$1"
