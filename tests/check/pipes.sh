#!/bin/bash
# SPDX-License-Identifier: MIT
# Under `set -o pipefail` a pipe fails at random when its reader leaves before the writer has written
# all: no script pipes into grep -q, head, `awk ... exit` or `sed ...q`. Keep the output first, and
# search it with <<<.
set -euo pipefail
. "$(dirname "$0")/files.sh"

# early_readers FILE: the lines (a trailing | or \ joins it with the next) of the file that do.
early_readers() {
    awk '
        /^[ \t]*#/ { next }
        {
            start = line == "" ? FNR : start
            line = line $0
            if (line ~ /(\\|\|)$/) { sub(/\\$/, "", line); next }
            if (line ~ /[^|]\|&?[ \t]*(LC_ALL=[^ ]* )?([ef]|x?z)?grep( [^|]*)? (-[A-Za-z]*[qlm][A-Za-z0-9]*|--quiet|--max-count)/ ||
                line ~ /[^|]\|&?[ \t]*head([ \t)]|$)/ ||
                line ~ /[^|]\|&?[ \t]*awk [^|]*[ {;]exit/ ||
                line ~ /[^|]\|&?[ \t]*sed [^|]*[0-9;{\/]q([ ;}'"'"'"]|$)/)
                print FILENAME ":" start ": " line
            line = ""
        }' "$1"
}

# It finds them, and only them. (@ stands for a pipe, for this file is looked at as well.)
self_test() {
    local sample
    sample=$(mktemp)
    tr @ '|' >"$sample" <<'EARLY'
a @ grep -q b
a @
  head -n 1
a @ awk '{ print; exit }'
a @ sed 5q
x=$(a @ b @ head -1)
EARLY
    [ "$(early_readers "$sample" | wc -l)" = 5 ] || return 1
    tr @ '|' >"$sample" <<'WHOLE'
grep -q b <<<"$a"
a @@ grep -q b c
# a @ head
a @ grep -v b
a @ awk '{ print }'
head -n 1 file
WHOLE
    [ -z "$(early_readers "$sample")" ] || return 1
    rm "$sample"
}

self_test || {
    echo "this check does not find what it is for"
    exit 1
}
found=
while IFS= read -r file; do
    grep -qE '^[^#]*set [^#]*pipefail' "$file" || continue
    found+=$(early_readers "$file")
done < <(project_files | grep -vE '\.(golden|json|png)$')
if [ -n "$found" ]; then
    echo "$found"
    exit 1
fi
