#!/bin/bash
# SPDX-License-Identifier: MIT
# The man page passes mandoc's lint.
set -euo pipefail
. "$(dirname "$0")/files.sh"
need mandoc

problems=$(mandoc -Tlint -W style docs/speedbump.1 2>/dev/null || true)
if [ -n "$problems" ]; then
    echo "$problems"
    exit 1
fi
