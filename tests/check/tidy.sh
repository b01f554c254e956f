#!/bin/bash
# SPDX-License-Identifier: MIT
# C++ passes clang-tidy with the checks of .clang-tidy.
#   tidy.sh BUILD
set -euo pipefail
. "$(dirname "$0")/files.sh"
need clang-tidy
need python3

exec python3 tests/check/tidy.py "$1"
