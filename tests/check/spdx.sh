#!/bin/bash
# SPDX-License-Identifier: MIT
# Every file names its licence in its first lines. Data that can't hold a comment is left out.
set -euo pipefail
. "$(dirname "$0")/files.sh"

failed=0
count=0
while IFS= read -r file; do
    case $file in
    LICENSE* | *.json | *.golden | *.bin | *.png | *.typed | *.pth) continue ;;
    tests/unit/golden/* | tests/fuzz/corpus/* | tests/*/data/*) continue ;;
    esac
    count=$((count + 1))
    if ! grep -q 'SPDX-License-Identifier: ' <(head -n 3 -- "$file"); then
        echo "$file: no SPDX-License-Identifier in the first three lines"
        failed=1
    fi
done < <(project_files)
echo "$count files looked at"
[ "$count" -gt 50 ] || failed=1
exit "$failed"
