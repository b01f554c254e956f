#!/bin/bash
# SPDX-License-Identifier: MIT
# The man page passes mandoc's lint. Which of the manuals that it names are installed here says
# nothing about the page.
set -euo pipefail
. "$(dirname "$0")/files.sh"
need mandoc

problems=$(mandoc -Tlint -W style docs/speedbump.1 2>/dev/null || true)
problems=$(grep -v 'referenced manual not found' <<<"$problems" || true)
if [ -n "$problems" ]; then
    echo "$problems"
    exit 1
fi
