#!/bin/bash
# SPDX-License-Identifier: MIT
# Every file names its licence in its first lines. Data that can't hold a comment is left out.
set -euo pipefail
. "$(dirname "$0")/files.sh"

left_out='^(LICENSE.*|.*\.(json|golden|bin|png|typed|pth)|tests/(unit/golden|fuzz/corpus|[^/]*/data)/.*)$'
mapfile -t files < <(project_files | grep -vE "$left_out")
count=${#files[@]}
failed=0
# One program for all of them: a process for each file takes minutes on some hosts.
awk '
    FNR <= 3 && /SPDX-License-Identifier: / { named[FILENAME] = 1 }
    FNR == 3 { nextfile }
    END {
        for (i = 1; i < ARGC; ++i)
            if (!(ARGV[i] in named)) {
                print ARGV[i] ": no SPDX-License-Identifier in the first three lines"
                missing = 1
            }
        exit missing
    }' "${files[@]}" || failed=1
echo "$count files looked at"
[ "$count" -gt 50 ] || failed=1
exit "$failed"
