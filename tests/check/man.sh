#!/bin/bash
# SPDX-License-Identifier: MIT
# The man pages pass mandoc's lint. Which of the manuals that they name are installed here says
# nothing about the pages.
set -euo pipefail
. "$(dirname "$0")/files.sh"
need mandoc

problems=$(mandoc -Tlint -W style docs/*.1 2>/dev/null || true)
problems=$(grep -v 'referenced manual not found' <<<"$problems" || true)
if [ -n "$problems" ]; then
    echo "$problems"
    exit 1
fi
